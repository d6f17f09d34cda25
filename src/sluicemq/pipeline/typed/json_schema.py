"""Conversion of a JSON Schema into Spark's DDL (docs/pipeline/typed-tables.md has the types)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.schema import quoted

MAX_DEPTH: Final = 32
"""Maximum nesting of a schema; deeper ones are rejected."""
_PRECISION: Final = 38
_UNSUPPORTED: Final = (
    *("oneOf", "anyOf", "allOf", "not", "if", "then", "else"),
    *("prefixItems", "patternProperties", "dependentSchemas", "unevaluatedProperties"),
    *("$dynamicRef", "$recursiveRef"),
)
_SCALARS: Final = {"boolean": "BOOLEAN", "integer": "BIGINT", "number": "DOUBLE"}
_SCALES: Final = {float(f"1e-{scale}"): scale for scale in range(1, _PRECISION + 1)}
"""Scale of a decimal by the value of `multipleOf`."""
_FORMATS: Final = {"date-time": "TIMESTAMP", "date": "DATE"}


def ddl_of_json_schema(text: str) -> str:
    """Return the columns of a JSON Schema as a STRUCT in Spark's DDL.

    Raises ConfigurationError with a line for each problem, which begins with the path, such as
    `#/properties/id`.
    """
    try:
        root = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"this is not JSON: {error}") from None
    converter = _Converter(root)
    columns = converter.convert(root, "#", 0)
    if converter.problems:
        raise ConfigurationError("\n".join(converter.problems))
    if not columns.startswith("STRUCT<"):
        raise ConfigurationError("#: a table needs a schema of type object with properties")
    return columns


class _Converter:
    """Converts one document and collects its errors."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._open: list[str] = []  # references on the way to the present path
        self.problems: list[str] = []

    def convert(self, schema: Any, path: str, depth: int) -> str:
        """Return the type of a column or of a part of one; STRING after an error."""
        outer = len(self._open)
        try:
            return self._column_type(self._resolved(schema, depth), path, depth)
        except ConfigurationError as error:
            self.problems.append(f"{path}: {error}")
            return "STRING"
        finally:
            del self._open[outer:]

    def _resolved(self, schema: Any, depth: int) -> dict[str, Any]:
        """Follow references. Raises ConfigurationError, also for constructs without a type."""
        while isinstance(schema, dict) and "$ref" in schema:
            reference = schema["$ref"]
            if not isinstance(reference, str) or not reference.startswith("#/"):
                raise ConfigurationError(f"$ref {reference!r}: only references into the same file")
            if reference in self._open:
                raise ConfigurationError(
                    f"$ref {reference!r} is recursive: a table has no such type"
                )
            self._open.append(reference)
            schema = self._root
            try:
                for part in reference[2:].split("/"):
                    schema = schema[part.replace("~1", "/").replace("~0", "~")]
            except (KeyError, TypeError):
                raise ConfigurationError(
                    f"$ref {reference!r}: the file has no such schema"
                ) from None
        if depth > MAX_DEPTH:
            raise ConfigurationError(f"nested more than {MAX_DEPTH} deep")
        if not isinstance(schema, dict):
            raise ConfigurationError("a schema must be an object")
        for key in _UNSUPPORTED:
            if key in schema:
                raise ConfigurationError(
                    f"{key} is not supported: declare one type, or STRING in schema = ..."
                )
        return schema

    def _type(self, schema: Mapping[str, Any]) -> str:
        """Return the one type besides "null". Raises ConfigurationError."""
        declared = schema.get("type", self._implied(schema))
        types = [declared] if isinstance(declared, str) else declared
        if not isinstance(types, list) or not types:
            raise ConfigurationError("type is missing")
        others = [item for item in types if item != "null"]
        if len(others) != 1:
            raise ConfigurationError(
                f"type {declared!r}: a column has exactly one type besides null"
            )
        return str(others[0])

    @staticmethod
    def _implied(schema: Mapping[str, Any]) -> Any:
        """Return the type that a schema without `type` has: by its values, or its keywords."""
        if "properties" in schema:
            return "object"
        if "items" in schema:
            return "array"
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        names = {bool: "boolean", int: "integer", float: "number", str: "string"}
        if not isinstance(values, list):
            return None
        return sorted({names[type(value)] for value in values if type(value) in names})

    def _column_type(self, schema: Mapping[str, Any], path: str, depth: int) -> str:
        kind = self._type(schema)
        step = schema.get("multipleOf")
        if kind == "object":
            return self._object(schema, path, depth)
        if kind == "array":
            return self._array(schema, path, depth)
        if kind == "string":
            is_binary = schema.get("contentEncoding") == "base64"
            return "BINARY" if is_binary else _FORMATS.get(str(schema.get("format")), "STRING")
        if kind in ("number", "integer") and isinstance(step, float) and step in _SCALES:
            return f"DECIMAL({_PRECISION}, {_SCALES[step]})"
        if kind in _SCALARS:
            return _SCALARS[kind]
        raise ConfigurationError(f"type {kind!r} is unknown")

    def _object(self, schema: Mapping[str, Any], path: str, depth: int) -> str:
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            fields = ", ".join(
                f"{quoted(name)}: {self.convert(item, f'{path}/properties/{name}', depth + 1)}"
                for name, item in properties.items()
            )
            return f"STRUCT<{fields}>"
        values = schema.get("additionalProperties")
        if isinstance(values, dict):
            inner = self.convert(values, f"{path}/additionalProperties", depth + 1)
            return f"MAP<STRING, {inner}>"
        raise ConfigurationError("an object without properties: name its properties")

    def _array(self, schema: Mapping[str, Any], path: str, depth: int) -> str:
        items = schema.get("items")
        if isinstance(items, list):
            raise ConfigurationError("items is a list (a tuple): give one schema for all items")
        if items is None or isinstance(items, bool):
            raise ConfigurationError("an array without items: give the schema of its items")
        return f"ARRAY<{self.convert(items, f'{path}/items', depth + 1)}>"
