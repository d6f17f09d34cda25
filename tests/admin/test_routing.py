"""Paths and parameters of a route table, and its OpenAPI document."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from pathlib import Path
from types import NoneType
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from sluicemq.admin.endpoints import Call, Endpoint, RouteTable, address_in, parameters, read_query
from sluicemq.admin.errors import ApiError, error_response
from sluicemq.admin.openapi import document
from sluicemq.management.operation import ApiOperation, Need, NoParameters
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, Kind, decode_name
from tests.support.api import ApiFixture, in_event_loop


async def never(call: Call, parameters: Any) -> None:
    """Stand in for a handler, which is never called."""


class QueryParameters(msgspec.Struct, frozen=True):
    count: Annotated[int, Meta(ge=0, le=10, description="How many.")] = 1
    word: str = ""
    sure: bool = False


class Body(msgspec.Struct, frozen=True):
    word: str


class NameParameters(msgspec.Struct, frozen=True):
    name: str


class BodyParameters(msgspec.Struct, frozen=True):
    body: Body


class NamedBodyParameters(msgspec.Struct, frozen=True):
    name: str
    body: Body
    sure: bool = False


class PartParameters(msgspec.Struct, frozen=True):
    address: Address
    part: str


class RestParameters(msgspec.Struct, frozen=True):
    rest: str


def operation(
    method: str, path: str, parameters: type[msgspec.Struct] = NoParameters, **more: Any
) -> ApiOperation[Any, Any]:
    permission, response = more.pop("needs", Need.USER), more.pop("response", NoneType)
    return ApiOperation(
        "doIt", method, path, permission, f"{method} {path}", parameters, response, **more
    )


def endpoint(
    method: str, path: str, parameters: type[msgspec.Struct] = NoParameters, **more: Any
) -> Endpoint:
    return Endpoint(operation(method, path, parameters, **more), never)


TABLE = RouteTable(
    [
        endpoint("GET", "/things"),
        endpoint("POST", "/things", BodyParameters, response=Body, status=201),
        endpoint("GET", "/things/all", QueryParameters),
        endpoint("GET", "/things/{name}", NameParameters, needs=Need.NOTHING),
        endpoint("DELETE", "/things/{name}", NameParameters, status=204),
        endpoint(
            "GET",
            "/{kind}/{name}/parts/{part}",
            PartParameters,
            needs=(Operation.BROWSE,),
            response=list[Body],
        ),
        endpoint("PUT", "/things/{name}", NameParameters, response=Body, other_statuses=(201,)),
        endpoint("GET", "/files/{*rest}", RestParameters, prefix=""),
        endpoint("GET", "/", prefix=""),
    ]
)


def find(method: str, path: str) -> tuple[str, dict[str, str]]:
    route, names = TABLE.find(method, path.encode())
    return route.operation.path, names


@pytest.mark.parametrize(
    ("path", "found", "names"),
    [
        ("/api/v1/things", "/things", {}),
        ("/api/v1/things/all", "/things/all", {}),
        ("/api/v1/things/al", "/things/{name}", {"name": "al"}),
        ("/api/v1/things/a%2Fb%20%C3%A9", "/things/{name}", {"name": "a/b é"}),
        ("/api/v1/things/%ff", "/things/{name}", {"name": "\udcff"}),
        ("/api/v1/things/%zz%2", "/things/{name}", {"name": "%zz%2"}),
        ("/api/v1/things/%61ll", "/things/{name}", {"name": "all"}),
        (
            "/api/v1/queue/a%2Fparts%2Fb/parts/7",
            "/{kind}/{name}/parts/{part}",
            {"kind": "queue", "name": "a/parts/b", "part": "7"},
        ),
        ("/files/", "/files/{*rest}", {"rest": ""}),
        ("/files/a/b%2F..", "/files/{*rest}", {"rest": "a/b/.."}),
        ("/", "/", {}),
    ],
)
def test_paths_lead_to_their_route(path: str, found: str, names: dict[str, str]) -> None:
    assert find("GET", path) == (found, names)
    assert find("HEAD", path) == (found, names)


@pytest.mark.parametrize(
    "path",
    ["", "x", "/api/v1", "/api/v1/", "/api/v1/things/", "/api/v1//things", "/things", "/files"],
)
def test_unknown_paths_are_not_found(path: str) -> None:
    with pytest.raises(ApiError) as error:
        find("GET", path)
    assert (error.value.status, error.value.code) == (404, "not-found")


def test_other_methods_are_not_allowed() -> None:
    with pytest.raises(ApiError) as error:
        find("POST", "/api/v1/things/x")
    assert error.value.status == 405
    assert error.value.headers["Allow"] == "DELETE, GET, HEAD, PUT"
    with pytest.raises(ValueError, match="twice"):
        RouteTable([endpoint("GET", "/x/{a}"), endpoint("GET", "/x/{b}")])


@given(st.binary(max_size=50))
def test_any_name_finds_its_destination(raw: bytes) -> None:
    encoded = "".join(f"%{byte:02x}" for byte in raw)
    if raw:
        _, names = find("GET", f"/api/v1/topic/{encoded}/parts/1")
        assert address_in(names, {}) == Address(Kind.TOPIC, decode_name(raw))
    _, names = find("GET", "/api/v1/queue/~/parts/1")
    for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
        for text in (alphabet(raw).decode(), alphabet(raw).decode().rstrip("=")):
            assert address_in(names, {"name_base64": text}) == (Kind.QUEUE, decode_name(raw))


@pytest.mark.parametrize(
    ("kind", "name", "encoded", "code"),
    [
        ("heap", "a", "", "not-found"),
        ("queue", "a", "YQ==", "bad-parameter"),
        ("queue", "~", "%", "bad-parameter"),
        ("queue", "~", "Y", "bad-parameter"),
    ],
)
def test_invalid_destinations_are_rejected(kind: str, name: str, encoded: str, code: str) -> None:
    query = {"name_base64": encoded} if encoded else {}
    with pytest.raises(ApiError) as error:
        address_in({"kind": kind, "name": name}, query)
    assert error.value.code == code


def test_query_parameters_are_decoded() -> None:
    query_operation = operation("GET", "/x", QueryParameters)
    for text, expected in (
        (b"", QueryParameters()),
        (b"count=7&word=a%20b&sure=true", QueryParameters(7, "a b", True)),
        (b"word=%ff", QueryParameters(word="\udcff")),
        (b"sure=1", QueryParameters(sure=True)),
    ):
        assert parameters(query_operation, {}, read_query(text)) == expected


def test_parameters_combine_path_query_and_body() -> None:
    thing_operation = operation("PUT", "/things/{name}", NamedBodyParameters)
    names, query = {"name": "\udcff"}, {"sure": "true"}
    assert parameters(thing_operation, names, query, Body("a")) == NamedBodyParameters(
        "\udcff", Body("a"), True
    )
    with pytest.raises(ApiError, match="unknown; there are sure"):
        parameters(thing_operation, names, {"name": "other"}, Body("a"))
    part = operation("GET", "/{kind}/{name}/parts/{part}", PartParameters)
    names = {"kind": "topic", "name": "~", "part": "7"}
    request = parameters(part, names, {"name_base64": "YQ=="})
    assert request == PartParameters(Address(Kind.TOPIC, "a"), "7")


@pytest.mark.parametrize(
    "text",
    [
        *(b"count=" + value for value in (b"11", b"x", b"", b"1.0", b"%D9%A1", b"1&count=2")),
        b"sure=yes",
        b"other=1",
        b"name_base64=YQ==",
        b"&".join([b"word=1"] * 101),
    ],
)
def test_invalid_parameters_are_rejected(text: bytes) -> None:
    with pytest.raises(ApiError) as error:
        parameters(operation("GET", "/x", QueryParameters), {}, read_query(text))
    assert error.value.code == "bad-parameter"


def test_document_describes_the_routes() -> None:
    description = document(endpoint.operation for endpoint in TABLE.endpoints)
    assert sorted(description["paths"]) == [
        "/things",
        "/things/all",
        "/things/{name}",
        "/{kind}/{name}/parts/{part}",
    ]
    post = description["paths"]["/things"]["post"]
    ref = {"schema": {"$ref": "#/components/schemas/Body"}}
    assert post["requestBody"] == {"required": True, "content": {"application/json": ref}}
    assert post["responses"]["201"]["content"]["application/json"] == ref
    assert description["components"]["schemas"]["Body"]["required"] == ["word"]
    [count, *_] = description["paths"]["/things/all"]["get"]["parameters"]
    assert count == {
        "name": "count",
        "in": "query",
        "required": False,
        "description": "How many.",
        "schema": {"type": "integer", "minimum": 0, "maximum": 10, "default": 1},
    }
    part = description["paths"]["/{kind}/{name}/parts/{part}"]["get"]
    names = [parameter["name"] for parameter in part["parameters"]]
    assert names == ["kind", "name", "part", "name_base64"]
    assert part["parameters"][0]["schema"] == {"$ref": "#/components/schemas/DestinationKind"}
    assert description["components"]["schemas"]["DestinationKind"]["enum"] == ["queue", "topic"]
    assert description["paths"]["/things/{name}"]["get"]["security"] == []
    assert "security" not in part
    assert sorted(description["paths"]["/things/{name}"]["put"]["responses"]) == [
        "200",
        "201",
        "4XX",
        "5XX",
    ]


def test_invalid_utf8_in_an_error_is_escaped() -> None:
    response = json.loads(error_response(ApiError(404, "not-found", "there is no \udcff")).body)
    assert response == {
        "type": "/problems/not-found",
        "title": "Not found",
        "status": 404,
        "detail": "there is no \\udcff",
        "code": "not-found",
    }


@in_event_loop
async def test_operations_and_components_have_readable_names(api_fixture: ApiFixture) -> None:
    description = document(endpoint.operation for endpoint in api_fixture.endpoints)
    operations = [
        operation for path in description["paths"].values() for operation in path.values()
    ]
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids) > 50
    assert [name for name in ids if not re.fullmatch("[a-z]+([A-Z][a-z]+)+", name)] == []
    assert all(len(operation["tags"]) == 1 for operation in operations)
    names = [*description["components"]["schemas"], *description["components"]["responses"]]
    assert [name for name in names if not re.fullmatch("([A-Z][a-z]+)+", name)] == []


@in_event_loop
async def test_document_describes_parameters_and_fields(api_fixture: ApiFixture) -> None:
    description = document(endpoint.operation for endpoint in api_fixture.endpoints)
    paths = description["paths"]
    undescribed = {
        (operation["operationId"], parameter["name"])
        for path in paths.values()
        for operation in path.values()
        for parameter in operation["parameters"]
        if "description" not in parameter
    }
    assert undescribed == set()
    schemas = description["components"]["schemas"]
    slot = schemas["SlotView"]
    assert slot["description"] == "A slot."
    assert slot["properties"]["lease_until"]["description"] == (
        "end of its lease in ms since the epoch; 0 = it has none"
    )
    history = schemas["HistoryView"]["properties"]
    assert history["ready"]["description"] == history["unacked"]["description"]
    # an extended type has the descriptions of the type that it extends
    for name in ("MessageView", "MessageItem"):
        assert schemas[name]["properties"]["attempts"]["description"].startswith("number of deliv")
    assert schemas["BodyView"]["properties"]["class"]["description"].startswith("class of an obj")
    problem = schemas["Problem"]["description"]
    assert "\n" not in problem
    publish = paths["/destinations/{kind}/{name}/messages"]["post"]
    assert publish["description"] == "Requires the permission `produce` on the destination."
    actions = paths["/destinations/{kind}/{name}/messages/actions"]["post"]
    assert actions["description"] == (
        "Requires the permission `browse` or `consume` or `manage` on the destination, depending "
        "on the request."
    )
    assert paths["/users"]["get"]["description"] == "Requires a superuser."
    assert publish["responses"]["201"]["description"] == "Created"


def test_every_endpoint_is_in_the_document(tmp_path: Path) -> None:
    async def scenario() -> None:
        api_fixture = ApiFixture(tmp_path)
        response = await api_fixture.http_client().request("GET", "/openapi.json")
        paths = response.json()["paths"]
        for declared in (endpoint.operation for endpoint in api_fixture.endpoints):
            if declared.prefix:
                operation = paths[declared.path][declared.method.lower()]
                assert operation["summary"] == declared.summary
                ids.append(operation["operationId"])
        api_fixture.authenticator.close()

    ids: list[str] = []
    asyncio.run(scenario())
    assert len(ids) == len(set(ids)) > 20
