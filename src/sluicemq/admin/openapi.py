"""OpenAPI 3.1 document, generated from the route table that dispatches requests, so that both
always agree. It contains the API only, without the console's files and the metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from inspect import cleandoc
from types import NoneType
from typing import Any, Final

import msgspec
from msgspec.json import schema_components
from starlette.responses import Response

from sluicemq import __version__
from sluicemq.admin.caller import COOKIE, CSRF_HEADER
from sluicemq.admin.endpoints import Call, handles
from sluicemq.admin.errors import MEDIA_TYPE, PROBLEM_TYPE, Problem
from sluicemq.management.broker import GET_OPENAPI_DOCUMENT
from sluicemq.management.operation import KINDS, PREFIX, ApiOperation, Need, NoParameters

SCHEMA_REFERENCE: Final = "#/components/schemas/{name}"
_PAGE: Final = re.compile(rb'\bPage[_[]([A-Za-z]+)[]_](?=")')
_TAGS: Final = {"history": "overview", "openapi.json": "overview", "status": "health"}
"""Tags of paths whose first part is no resource."""
_FIELD: Final = re.compile(r"^(\w+(?:, \w+)*) {2,}(\S.*(?:\n +.*)*)", re.MULTILINE)
"""Field, or several fields, and their description in a docstring."""
_ADDRESS: Final[dict[str, dict[str, Any]]] = {
    "kind": {
        "$ref": SCHEMA_REFERENCE.format(name="DestinationKind"),
        "description": "Kind of the destination.",
    },
    "name": {
        "type": "string",
        "minLength": 1,
        "description": "Name of the destination; `~` if `name_base64` has it.",
    },
    "name_base64": {
        "type": "string",
        "description": "Bytes of the name in base64, for a name that a URL cannot carry.",
    },
}
"""Parameters of a path that identifies a destination."""
_BINARY: Final = {"schema": {"type": "string", "format": "binary"}}


def document(operations: Iterable[ApiOperation[Any, Any]]) -> dict[str, Any]:
    """Return the document as JSON values."""
    sorted_operations = sorted(
        (operation for operation in operations if operation.prefix == PREFIX),
        key=lambda operation: (operation.path, operation.method),
    )
    types = [
        Problem,
        *(
            kind
            for operation in sorted_operations
            for kind in (operation.body, operation.answer)
            if kind not in (None, NoneType, bytes)
        ),
    ]
    references, schemas = schema_components(types, ref_template=SCHEMA_REFERENCE)
    for schema in schemas.values():
        if "properties" in schema:
            _describe_fields(schema)
    for kind in types:
        for base in getattr(kind, "__mro__", ())[1:]:
            for name, inherited in schemas.get(base.__name__, {}).get("properties", {}).items():
                properties = schemas[kind.__name__]["properties"]
                properties[name] = inherited | properties[name]
    refs = {id(kind): schema for kind, schema in zip(types, references, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for operation in sorted_operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, refs)
    draft = {
        "openapi": "3.1.0",
        "info": {
            "title": "SluiceMQ",
            "version": __version__,
            "description": "Administration of a message broker, and endpoints for data pipelines. "
            "Sizes are in bytes, times in ms since the epoch, durations in ms, rates per second.",
        },
        "servers": [{"url": PREFIX}],
        "paths": paths,
        "components": {
            "schemas": {
                **dict(sorted(schemas.items())),
                "DestinationKind": {"type": "string", "enum": list(KINDS)},
            },
            "responses": {
                "Problem": {
                    "description": "The request was not carried out.",
                    "content": {PROBLEM_TYPE: {"schema": refs[id(Problem)]}},
                }
            },
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": COOKIE,
                    "description": "Requests that change something also carry the session's CSRF "
                    f"token in the header {CSRF_HEADER}.",
                },
            },
        },
        "security": [{"basic": []}, {"token": []}, {"session": []}],
    }
    # msgspec names Page[UserView] Page_UserView_, with the title Page[UserView]
    renamed: dict[str, Any] = msgspec.json.decode(_PAGE.sub(rb"\1Page", msgspec.json.encode(draft)))
    return renamed


def _describe_fields(schema: dict[str, Any]) -> None:
    """Move the descriptions of fields from the docstring of a type to the fields."""
    docstring = cleandoc(schema.get("description", ""))
    for names, text in _FIELD.findall(docstring):
        for name in names.split(", "):
            schema["properties"][name]["description"] = " ".join(text.split())
    schema["description"] = " ".join(_FIELD.sub("", docstring).split())


def _described(operation: ApiOperation[Any, Any], refs: dict[int, Any]) -> dict[str, Any]:
    operation_object: dict[str, Any] = {
        "operationId": operation.operation_id,
        "summary": operation.summary,
        "description": _needs(operation),
        "tags": [_tag(operation.path)],
        "parameters": list(_parameters(operation)),
        "responses": _responses(operation, refs),
    }
    if operation.needs is Need.NOTHING:
        operation_object["security"] = []
    if operation.raw_body:
        operation_object["requestBody"] = {
            "required": True,
            "content": {operation.raw_body: _BINARY},
        }
    elif operation.body is not None:
        content = {MEDIA_TYPE: {"schema": refs[id(operation.body)]}}
        required = any(field.required for field in msgspec.structs.fields(operation.body))
        operation_object["requestBody"] = {"required": required, "content": content}
    return operation_object


def _tag(path: str) -> str:
    """Return the resource of a path."""
    parts = path.split("/")[1:]
    resources = [part for part in parts if part in ("messages", "slots")]
    return resources[0] if resources else _TAGS.get(parts[0], parts[0])


def _needs(operation: ApiOperation[Any, Any]) -> str:
    if not isinstance(operation.needs, tuple):
        return operation.needs.value
    permissions = " or ".join(f"`{permission}`" for permission in operation.needs)
    condition = ", depending on the request" if len(operation.needs) > 1 else ""
    scope = "the destination" if operation.has_address else "each destination of the request"
    return f"Requires the permission {permissions} on {scope}{condition}."


def _parameters(operation: ApiOperation[Any, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parameters of the path, then those of the query."""
    [reference], schemas = schema_components([operation.parameters], ref_template="{name}")
    schema = schemas[reference["$ref"]]
    properties = {**schema["properties"], **(_ADDRESS if operation.has_address else {})}
    by_base64 = ("name_base64",) if operation.has_address else ()
    for name in (*operation.path_names, *by_base64, *operation.query_names):
        is_in_path = name in operation.path_names
        property_schema = dict(properties[name])
        parameter = {
            "name": name,
            "in": "path" if is_in_path else "query",
            "required": is_in_path or name in schema.get("required", ()),
        }
        if "description" in property_schema:
            parameter["description"] = property_schema.pop("description")
        yield {**parameter, "schema": property_schema}


def _responses(operation: ApiOperation[Any, Any], refs: dict[int, Any]) -> dict[str, Any]:
    refused = {"$ref": "#/components/responses/Problem"}
    success: dict[str, Any] = {}
    if id(operation.answer) in refs:
        success["content"] = {operation.media: {"schema": refs[id(operation.answer)]}}
    elif operation.answer is bytes:
        success["content"] = {operation.media: {} if operation.media == MEDIA_TYPE else _BINARY}
    statuses = map(HTTPStatus, (operation.status, *operation.other_statuses))
    return {
        **{str(status): {"description": status.phrase, **success} for status in statuses},
        "4XX": refused,
        "5XX": refused,
    }


@dataclass(slots=True, eq=False)
class OpenApiService:
    """Handlers of `/openapi.json`."""

    _operations: Callable[[], Iterable[ApiOperation[Any, Any]]]
    _content: bytes = b""

    @handles(GET_OPENAPI_DOCUMENT)
    async def show(self, call: Call, parameters: NoParameters) -> Response:
        """Return the document, which the first request generates in another thread."""
        if not self._content:
            values = await asyncio.to_thread(document, self._operations())
            self._content = msgspec.json.encode(values)
        return Response(self._content, media_type=MEDIA_TYPE)
