"""OpenAPI 3.1 document, generated from the route table that dispatches requests, so that both
always agree. It contains the API only, without the console's files and the metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec.json import schema_components
from starlette.responses import Response

from sluicemq import __version__
from sluicemq.admin.browser_sessions import COOKIE
from sluicemq.admin.errors import MEDIA_TYPE, PROBLEM_TYPE
from sluicemq.admin.routing import KINDS, PREFIX, Call, Endpoint, Need, RawBody
from sluicemq.model.access import Operation

PLACE: Final = "#/components/schemas/{name}"
_PAGE: Final = re.compile(rb'\bPage[_[]([A-Za-z]+)[]_](?=")')
_TAGS: Final = {"history": "overview", "openapi.json": "overview", "status": "health"}
"""Tags of paths whose first part is no resource."""
_BINARY: Final = {"schema": {"type": "string", "format": "binary"}}


class Problem(msgspec.Struct, frozen=True):
    """Problem document of a request that was not carried out (RFC 9457). `type` and `code` are for
    programs, `title` and `detail` for people; some errors have further members."""

    type: str
    title: str
    status: int
    detail: str
    code: str


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Return the document as JSON values."""
    documented = [endpoint for endpoint in endpoints if endpoint.prefix == PREFIX]
    types = [Problem, *_types(documented)]
    found, schemas = schema_components(types, ref_template=PLACE)
    refs = {id(kind): schema for kind, schema in zip(types, found, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in documented:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, refs)
    made = {
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
            "schemas": {**schemas, "DestinationKind": {"type": "string", "enum": list(KINDS)}},
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
                    "description": "Requests that change something show the session's own token "
                    "in the header X-CSRF-Token, too.",
                },
            },
        },
        "security": [{"basic": []}, {"token": []}, {"session": []}],
    }
    # msgspec names Page[UserView] Page_UserView_, with the title Page[UserView]
    renamed: dict[str, Any] = msgspec.json.decode(_PAGE.sub(rb"\1Page", msgspec.json.encode(made)))
    return renamed


def _types(endpoints: Iterable[Endpoint]) -> Iterator[Any]:
    for endpoint in endpoints:
        if isinstance(endpoint.body, type) and not isinstance(endpoint.body, RawBody):
            yield endpoint.body
        if endpoint.answer is not None:
            yield endpoint.answer


def _operation(endpoint: Endpoint, refs: dict[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.operation_id,
        "summary": endpoint.summary,
        "description": _needs(endpoint),
        "tags": [_tag(endpoint.path)],
        "parameters": [*_in_path(endpoint), *_in_query(endpoint)],
        "responses": _responses(endpoint, refs),
    }
    if endpoint.needs is Need.NOTHING:
        operation["security"] = []
    if isinstance(endpoint.body, RawBody):
        operation["requestBody"] = {"required": True, "content": {endpoint.body.value: _BINARY}}
    elif endpoint.body is not None:
        content = {MEDIA_TYPE: {"schema": refs[id(endpoint.body)]}}
        required = any(field.required for field in msgspec.structs.fields(endpoint.body))
        operation["requestBody"] = {"required": required, "content": content}
    return operation


def _tag(path: str) -> str:
    """Return the resource of a path."""
    parts = path.split("/")[1:]
    inner = [part for part in parts if part in ("messages", "slots")]
    return inner[0] if inner else _TAGS.get(parts[0], parts[0])


def _needs(endpoint: Endpoint) -> str:
    if isinstance(endpoint.needs, Operation):
        return f"Takes the permission to {endpoint.needs} the destination."
    if isinstance(endpoint.needs, tuple):
        operations = " or ".join(endpoint.needs)
        return f"Takes the permission to {operations} the destination, depending on the request."
    return f"For {endpoint.needs.value}."


def _in_path(endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    for part in endpoint.path.split("/"):
        if not part.startswith("{"):
            continue
        name = part[1:-1]
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if name == "kind" and endpoint.of_path:
            schema = {"$ref": PLACE.format(name="DestinationKind")}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    for name in endpoint.of_path:
        yield {
            "name": name,
            "in": "query",
            "description": "The name in base64, if it cannot stand in a path; the path has ~.",
            "schema": {"type": "string"},
        }
    if endpoint.query is None:
        return
    _, schemas = schema_components([endpoint.query], ref_template=PLACE)
    [schema] = schemas.values()
    required = schema.get("required", ())
    for name, property_schema in schema["properties"].items():
        parameter = {"name": name, "in": "query", "required": name in required}
        if "description" in property_schema:
            parameter["description"] = property_schema.pop("description")
        yield {**parameter, "schema": property_schema}


def _responses(endpoint: Endpoint, refs: dict[int, Any]) -> dict[str, Any]:
    refused = {"$ref": "#/components/responses/Problem"}
    done: dict[str, Any] = {"description": "Done."}
    if endpoint.answer is not None:
        done["content"] = {endpoint.media: {"schema": refs[id(endpoint.answer)]}}
    elif endpoint.status != 204:
        done["content"] = {endpoint.media: {} if endpoint.media == MEDIA_TYPE else _BINARY}
    statuses = dict.fromkeys((endpoint.status, *endpoint.besides), done)
    if endpoint.created:
        statuses[201] = done
    return {
        **{str(status): response for status, response in statuses.items()},
        "4XX": refused,
        "5XX": refused,
    }


class OpenApiEndpoints:
    """Handlers of `/openapi.json`."""

    def __init__(self, endpoints: Callable[[], Iterable[Endpoint]]) -> None:
        self._endpoints = endpoints
        self._content = b""

    async def show(self, call: Call) -> Response:
        """GET /openapi.json; generated by the first request, which takes a while."""
        if not self._content:
            self._content = await asyncio.to_thread(self._make)
        return Response(self._content, media_type=MEDIA_TYPE)

    def _make(self) -> bytes:
        return msgspec.json.encode(document(self._endpoints()))


def endpoints(table: Callable[[], Iterable[Endpoint]]) -> list[Endpoint]:
    """Return the endpoints of /openapi.json; `table` returns all endpoints."""
    handlers = OpenApiEndpoints(table)
    return [
        Endpoint(
            "GET",
            "/openapi.json",
            "getOpenApiDocument",
            handlers.show,
            "OpenAPI document",
            Need.NOTHING,
        )
    ]
