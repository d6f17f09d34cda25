"""Conversion of a JSON Schema into Spark's DDL.

| JSON Schema                                       | Spark                           |
|---------------------------------------------------|---------------------------------|
| `object` with `properties`                        | columns; nested: STRUCT         |
| `object` with `additionalProperties: {...}` only  | MAP<STRING, ...>                |
| `array` with one `items` schema                   | ARRAY                           |
| `integer`                                         | BIGINT                          |
| `number`                                          | DOUBLE                          |
| `number`, `integer` with `multipleOf: 0.01`       | DECIMAL(38, 2)                  |
| `boolean`                                         | BOOLEAN                         |
| `string`                                          | STRING                          |
| `string` with `format: date-time`, `date`         | TIMESTAMP, DATE                 |
| `string` with `contentEncoding: base64`           | BINARY                          |
| `["T", "null"]`                                   | T                               |
| `enum`, `const` without `type`, all values alike  | type of the values              |
| `$ref: "#/$defs/..."`, `"#/definitions/..."`      | the schema it refers to         |

Constraints on values (`minimum`, `pattern`, `required`, ...) do not change a column's type and are
ignored: declare them as expectations. Alternatives (`oneOf`, `anyOf`, ...), tuples and recursive
references have no column type and are errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
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
_FORMATS: Final = {"date-time": "TIMESTAMP", "date": "DATE"}


class JsonSchemaError(ConfigurationError):
    """Errors in a JSON Schema; each problem begins with the place, such as `#/properties/id`."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


def ddl_of_json_schema(text: str) -> str:
    """Return the columns of a JSON Schema in Spark's DDL. Raises JsonSchemaError."""
    try:
        root = json.loads(text)
    except ValueError as error:
        raise JsonSchemaError([f"this is not JSON: {error}"]) from None
    if not isinstance(root, dict):
        raise JsonSchemaError(["#: a schema is an object"])
    converter = _Converter(root)
    columns = converter.columns(root)
    if converter.problems:
        raise JsonSchemaError(converter.problems)
    return columns


class _PlaceError(Exception):
    """Error at one place of a schema, which has no column type therefore."""

    def __init__(self, place: str, text: str) -> None:
        super().__init__(f"{place}: {text}")


class _Converter:
    """Converts one document and collects its errors."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._open: list[str] = []  # references on the way to the present place
        self.problems: list[str] = []

    def columns(self, schema: Mapping[str, Any]) -> str:
        try:
            resolved = self._resolved(schema, "#", 0)
            properties = resolved.get("properties")
            if self._type(resolved, "#") != "object" or not isinstance(properties, dict):
                raise _PlaceError("#", "a table needs a schema of type object with properties")
        except _PlaceError as error:
            self.problems.append(str(error))
            return ""
        return ", ".join(
            f"{quoted(name)} {self._convert(item, f'#/properties/{name}', 1)}"
            for name, item in properties.items()
        )

    def _resolved(self, schema: Any, place: str, depth: int) -> dict[str, Any]:
        """Follow references. Raises _PlaceError, also for constructs without a column type."""
        while isinstance(schema, dict) and "$ref" in schema:
            reference = schema["$ref"]
            if not isinstance(reference, str) or not reference.startswith("#/"):
                raise _PlaceError(place, f"$ref {reference!r}: only references into the same file")
            if reference in self._open:
                raise _PlaceError(
                    place, f"$ref {reference!r} is recursive: a table has no such type"
                )
            self._open.append(reference)
            schema = self._at(reference)
            if schema is None:
                raise _PlaceError(place, f"$ref {reference!r} refers to nothing")
        if depth > MAX_DEPTH:
            raise _PlaceError(place, f"nested more than {MAX_DEPTH} deep")
        if not isinstance(schema, dict):
            raise _PlaceError(place, "this is no schema: an object is expected")
        for key in _UNSUPPORTED:
            if key in schema:
                raise _PlaceError(
                    place, f"{key} is not supported: declare one type, or STRING in schema = ..."
                )
        return schema

    def _at(self, reference: str) -> Any:
        found: Any = self._root
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                return None
            found = found[name]
        return found

    def _type(self, schema: Mapping[str, Any], place: str) -> str:
        """Return the one type besides "null". Raises _PlaceError."""
        given = schema.get("type")
        if given is None:
            given = self._implied(schema)
        types = [given] if isinstance(given, str) else given
        if not isinstance(types, list) or not types:
            raise _PlaceError(place, "type is missing")
        others = [item for item in types if item != "null"]
        if len(others) != 1:
            raise _PlaceError(place, f"type {given!r}: a column has exactly one type besides null")
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
        return sorted({names[type(value)] for value in values if type(value) in names}) or None

    def _convert(self, given: Any, place: str, depth: int) -> str:
        """Return the type of a column or of a part of one; STRING after an error."""
        outer = len(self._open)
        try:
            return self._column_type(self._resolved(given, place, depth), place, depth)
        except _PlaceError as error:
            self.problems.append(str(error))
            return "STRING"
        finally:
            del self._open[outer:]

    def _column_type(self, schema: Mapping[str, Any], place: str, depth: int) -> str:
        kind = self._type(schema, place)
        if kind == "object":
            return self._object(schema, place, depth)
        if kind == "array":
            return self._array(schema, place, depth)
        if kind == "string":
            if schema.get("contentEncoding") == "base64":
                return "BINARY"
            return _FORMATS.get(str(schema.get("format")), "STRING")
        if kind in ("number", "integer") and "multipleOf" in schema:
            return self._decimal(schema["multipleOf"], kind, place)
        if kind in _SCALARS:
            return _SCALARS[kind]
        raise _PlaceError(place, f"type {kind!r} is unknown")

    def _decimal(self, step: Any, kind: str, place: str) -> str:
        """Return a DECIMAL whose scale is that of a power of ten."""
        try:
            exponent = Decimal(str(step)).normalize().as_tuple()
        except InvalidOperation:
            raise _PlaceError(place, f"multipleOf {step!r} is no number") from None
        scale = exponent.exponent
        if not isinstance(scale, int) or exponent.digits != (1,) or scale >= 0:
            return _SCALARS[kind]
        return f"DECIMAL({_PRECISION}, {-scale})"

    def _object(self, schema: Mapping[str, Any], place: str, depth: int) -> str:
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            fields = ", ".join(
                f"{quoted(name)}: {self._convert(item, f'{place}/properties/{name}', depth + 1)}"
                for name, item in properties.items()
            )
            return f"STRUCT<{fields}>"
        values = schema.get("additionalProperties")
        if isinstance(values, dict):
            inner = self._convert(values, f"{place}/additionalProperties", depth + 1)
            return f"MAP<STRING, {inner}>"
        raise _PlaceError(place, "an object without properties: name its properties")

    def _array(self, schema: Mapping[str, Any], place: str, depth: int) -> str:
        items = schema.get("items")
        if isinstance(items, list):
            raise _PlaceError(place, "items is a list (a tuple): give one schema for all items")
        if items is None or isinstance(items, bool):
            raise _PlaceError(place, "an array without items: give the schema of its items")
        return f"ARRAY<{self._convert(items, f'{place}/items', depth + 1)}>"
