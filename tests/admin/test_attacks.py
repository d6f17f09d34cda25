"""Attacks on the HTTP API, one test for each kind."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sluicemq.admin.app import HEADERS
from sluicemq.admin.caller import COOKIE, CSRF_HEADER
from sluicemq.admin.endpoints import SMALL_BYTES, Endpoint
from sluicemq.cli.local import LocalBroker
from sluicemq.management.operation import Need
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, Kind
from sluicemq.model.rows import encode, row
from tests.server.conftest import Start
from tests.support.api import PASSWORD, ApiFixture, HttpClient, in_event_loop
from tests.support.http import HTTP, PHPMQ, TIMEOUT, Client, Response, exchange_bytes

FOREIGN = "of-others.secret"
OWN = "own.jobs"
SCRIPT = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def endpoint_path(endpoint: Endpoint, name: str) -> str:
    """Return a path of the endpoint; `name` is the destination."""
    path = endpoint.operation.path
    for part in re.findall(r"{\*?[a-z_]+}", path):
        value = {"{kind}": "queue", "{name}": quote(name, safe=""), "{*rest}": "x"}.get(part, "1")
        path = path.replace(part, value)
    return path


async def request_endpoint(
    http_client: HttpClient, endpoint: Endpoint, name: str, **headers: str
) -> Any:
    body = {} if endpoint.operation.body is not None else None
    return await http_client.request(
        endpoint.operation.method,
        endpoint_path(endpoint, name),
        body,
        prefix=endpoint.operation.prefix,
        **headers,
    )


def protected_endpoints(api_fixture: ApiFixture) -> Iterator[Endpoint]:
    for endpoint in api_fixture.endpoints:
        if endpoint.operation.needs is not Need.NOTHING:
            yield endpoint


# --- permission escalation -------------------------------------------------------------------


@in_event_loop
async def test_unknown_session_is_unauthorized(api_fixture: ApiFixture) -> None:
    api_fixture.add("root", superuser=True)
    http_client = api_fixture.http_client()
    http_client.cookie, http_client.csrf = "made up", "made up"
    for endpoint in protected_endpoints(api_fixture):
        assert (await request_endpoint(http_client, endpoint, FOREIGN)).status == 401, endpoint


@in_event_loop
async def test_every_endpoint_requires_its_permission(api_fixture: ApiFixture) -> None:
    """Every endpoint, with every permission except the required one."""
    api_fixture.add("root", superuser=True)
    for name in (FOREIGN, OWN):
        api_fixture.broker.destinations.declare(Address(Kind.QUEUE, name))
        api_fixture.broker.destinations.declare(Address(Kind.TOPIC, name))
    checked = 0
    for operation in Operation:
        rest = " ".join(permission for permission in Operation if permission is not operation)
        api_fixture.add(f"no-{operation}", f"own.*: {rest}")
        http_client = api_fixture.http_client()
        await http_client.login(f"no-{operation}")
        for endpoint in protected_endpoints(api_fixture):
            if endpoint.operation.needs is Need.SUPERUSER:
                assert (await request_endpoint(http_client, endpoint, OWN)).status == 403, endpoint
            elif endpoint.operation.has_address:
                assert (await request_endpoint(http_client, endpoint, FOREIGN)).status == 403, (
                    endpoint
                )
                if endpoint.operation.needs == (operation,):
                    checked += 1
                    assert (await request_endpoint(http_client, endpoint, OWN)).status == 403, (
                        endpoint
                    )
    # destinations and users are unchanged
    assert {address.name for address in api_fixture.broker.destinations} >= {FOREIGN, OWN}
    assert set(api_fixture.store.read().users) == {
        "root",
        *(f"no-{permission}" for permission in Operation),
    }
    assert checked > 5


@in_event_loop
async def test_endpoints_with_several_permissions_require_each(api_fixture: ApiFixture) -> None:
    """Endpoints that check permissions themselves; each with every permission but one."""
    api_fixture.add("root", superuser=True)
    for name in (FOREIGN, OWN):
        api_fixture.broker.destinations.declare(Address(Kind.QUEUE, name))
    own_path = f"/destinations/queue/{OWN}"
    actions = f"{own_path}/messages/actions"
    own_target = {"target": {"kind": "queue", "name": OWN + ".copy"}}
    attempts: list[tuple[str, str, str, Any]] = [
        ("create", "PUT", "/destinations/queue/own.new", {}),
        ("manage", "PUT", own_path, {"max_messages": 1}),
        ("consume", "POST", actions, {"action": "delete", "ids": ["1"]}),
        ("consume", "POST", actions, {"action": "redeliver", "ids": ["1"]}),
        ("consume", "POST", actions, {"action": "redrive", "ids": ["1"]}),
        ("consume", "POST", actions, {"action": "move", "ids": ["1"], **own_target}),
        ("produce", "POST", actions, {"action": "move", "ids": ["1"], **own_target}),
        ("browse", "POST", actions, {"action": "copy", "ids": ["1"], **own_target}),
        ("produce", "POST", actions, {"action": "copy", "ids": ["1"], **own_target}),
        ("manage", "POST", actions, {"action": "delete", "all": True}),
        ("manage", "DELETE", f"/subscriptions?destination={OWN}&name=x", None),
    ]
    # all permissions for the own destinations give none for others
    foreign_target = {"target": {"kind": "queue", "name": FOREIGN}}
    attempts += [
        ("", "POST", actions, {"action": action, "all": True, **foreign_target})
        for action in ("move", "copy")
    ]
    attempts += [("", "PUT", own_path, {"dead_letter": True, "dead_letter_queue": FOREIGN})]
    for missing_permission, method, path, body in attempts:
        name = f"no-{missing_permission or 'others'}"
        http_client = api_fixture.http_client()
        if name not in api_fixture.store.read().users:
            rest = " ".join(
                permission for permission in Operation if permission != missing_permission
            )
            api_fixture.add(name, f"own.*: {rest}")
        await http_client.login(name)
        response = await http_client.request(method, path, body)
        assert (response.status, response.code) == (403, "forbidden"), (
            missing_permission,
            method,
            path,
            body,
        )
    assert api_fixture.broker.destinations[Address(Kind.QUEUE, OWN)].settings.max_messages == 0


@in_event_loop
async def test_batch_does_not_flood_the_audit_log(api_fixture: ApiFixture) -> None:
    api_fixture.add("anna", "other: produce")
    http_client = api_fixture.http_client()
    await http_client.login("anna")
    body = b"".join(encode([row(f"q{number}") for number in range(3)]))
    path = "/batches?writer=w&batch=0&partition=0&part=0"
    assert (await http_client.request("POST", path, body)).status == 409
    denials = [line for line in api_fixture.audit_lines() if line.startswith("denied")]
    assert denials == ["denied: anna produce q0 and 2 others"]


@in_event_loop
async def test_names_of_special_identities_are_reserved(api_fixture: ApiFixture) -> None:
    """Names of special identities cannot be user names."""
    api_fixture.add("root", superuser=True)
    root = api_fixture.http_client()
    await root.login("root")
    for name in ("(local)", "(admin token)", "(anonymous)", ""):
        response = await root.request("PUT", f"/users/{quote(name)}", {"password": PASSWORD})
        assert response.status in (404, 409), name
    assert [*api_fixture.store.read().users] == ["root"]


# --- login -----------------------------------------------------------------------------------


@in_event_loop
async def test_repeated_login_failures_are_throttled(api_fixture: ApiFixture) -> None:
    """Only the first few passwords and tokens are checked, on any endpoint."""
    api_fixture.add("root", superuser=True)
    attacker = api_fixture.http_client("10.6.6.6:1")
    credentials = base64.b64encode(b"root:another guess").decode()
    for guess in range(4):
        responses = (
            await attacker.login("root", f"guess {guess}"),
            await attacker.request("GET", "/status", Authorization=f"Bearer guess{guess}"),
        )
        for response in responses:
            if guess < 3:
                assert (response.status, response.code) == (401, "authentication-failed")
            else:
                assert_throttled(response)
    assert_throttled(await attacker.request("GET", "/status", Authorization=f"Basic {credentials}"))
    # the right password is not checked either; other users and other addresses can log in
    assert_throttled(await attacker.login("root"))
    api_fixture.add("anna")
    assert (await api_fixture.http_client("10.6.6.6:2").login("anna")).status == 200
    assert (await api_fixture.http_client("10.6.6.7:1").login("root")).status == 200
    api_fixture.now += 1
    assert (await attacker.login("root")).status == 200
    assert "login failed: root" in api_fixture.audit_lines()
    assert [line for line in api_fixture.audit_lines() if line.startswith("login refused")]


def assert_throttled(response: Response) -> None:
    assert (response.status, response.code) == (429, "too-many-failures")
    assert response.headers["retry-after"] == "1"
    assert "try again in 1 s" in response.json()["detail"]
    assert "www-authenticate" not in response.headers


@in_event_loop
async def test_guesses_of_the_own_password_are_throttled(api_fixture: ApiFixture) -> None:
    """An open session must not allow guessing the password."""
    api_fixture.add("root", superuser=True)
    browser = api_fixture.http_client("10.6.6.6:1")
    await browser.login("root")
    guesses = [{"current_password": f"guess {n}", "new_password": "mine now"} for n in range(6)]
    responses = [await browser.request("POST", "/session/password", guess) for guess in guesses]
    assert [response.status for response in responses] == [401] * 3 + [429] * 3


@in_event_loop
async def test_login_replaces_the_cookie_of_the_client(api_fixture: ApiFixture) -> None:
    """A cookie chosen by the client never becomes a session (session fixation)."""
    api_fixture.add("anna")
    browser = api_fixture.http_client()
    planted_cookie = browser.cookie = "planted"
    await browser.login("anna")
    assert browser.cookie != planted_cookie
    first = browser.cookie
    await browser.login("anna")
    assert browser.cookie != first
    attacker = api_fixture.http_client("10.6.6.6:1")
    attacker.cookie = planted_cookie
    assert (await attacker.request("GET", "/session")).status == 401
    assert len({first, browser.cookie, planted_cookie}) == 3
    assert len(browser.cookie) >= 43  # 256 bits


# --- other origins ---------------------------------------------------------------------------


@in_event_loop
async def test_changes_require_the_csrf_token(api_fixture: ApiFixture) -> None:
    """The cookie alone does not authorize requests that change state (CSRF)."""
    api_fixture.add("root", superuser=True)
    victim, other_client = api_fixture.http_client(), api_fixture.http_client()
    await victim.login("root")
    await other_client.login("root")
    valid_token, other_token = victim.csrf, other_client.csrf
    for endpoint in protected_endpoints(api_fixture):
        if endpoint.operation.changes:
            for token in ("", "x", other_token):
                victim.csrf = token
                response = await request_endpoint(victim, endpoint, OWN)
                assert (response.status, response.code) == (403, "csrf-token-missing"), endpoint
    assert (await victim.request("GET", "/session")).status == 200  # the session is still valid
    victim.csrf = valid_token
    assert (await victim.request("PUT", "/roles/r")).status == 201
    victim.csrf = ""
    # pages of other origins cannot send a token in a header
    victim.cookie = ""
    victim.headers["Authorization"] = f"Bearer {api_fixture.token('root')}"
    assert (await victim.request("PUT", "/roles/s")).status == 201


@in_event_loop
async def test_requests_from_other_origins_are_rejected(api_fixture: ApiFixture) -> None:
    """With a session, without users, and for the login itself."""
    anonymous = api_fixture.http_client()
    attacks: list[dict[str, str]] = [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ]
    for rejected_headers in attacks:
        for method, path in (("GET", "/status"), ("POST", "/session"), ("PUT", "/roles/x")):
            response = await anonymous.request(
                method, path, {} if method != "GET" else None, **rejected_headers
            )
            assert (response.status, response.code) == (403, "cross-origin"), rejected_headers
    api_fixture.add("root", superuser=True)
    victim = api_fixture.http_client()
    await victim.login("root")
    for rejected_headers in attacks:
        assert (await victim.request("PUT", "/roles/x", **rejected_headers)).code == "cross-origin"
    # the console itself, and a link on another page
    for accepted_headers in (
        {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        {"Sec-Fetch-Site": "none"},
    ):
        assert (await victim.request("GET", "/session", **accepted_headers)).status == 200
    # other origins may not read the response
    response = await victim.request("GET", "/session")
    assert not [name for name in response.headers if name.startswith("access-control-")]


# --- scripts in names ------------------------------------------------------------------------


@in_event_loop
async def test_scripts_in_names_are_never_rendered(api_fixture: ApiFixture) -> None:
    """No response has a type that a browser renders, so stored and reflected scripts never run."""
    api_fixture.broker.destinations.declare(Address(Kind.QUEUE, SCRIPT))
    http_client = api_fixture.http_client()
    for endpoint in api_fixture.endpoints:
        if not endpoint.operation.prefix or endpoint.operation.media == "text/event-stream":
            continue
        for path in (
            endpoint_path(endpoint, SCRIPT),
            f"{endpoint_path(endpoint, SCRIPT)}?{quote(SCRIPT)}=1",
        ):
            body = {SCRIPT: SCRIPT} if endpoint.operation.body is not None else None
            response = await http_client.request(endpoint.operation.method, path, body)
            kind = response.headers.get("content-type", "application/json")
            assert kind.partition(";")[0] not in (
                "text/html",
                "image/svg+xml",
                "text/javascript",
                "application/xml",
            ), endpoint
            for name in HEADERS:
                assert name.lower() in response.headers, endpoint
            assert response.headers["x-content-type-options"] == "nosniff"
            assert "script-src" not in response.headers["content-security-policy"]
            assert "default-src 'none'" in response.headers["content-security-policy"]
            if response.body and kind in ("application/json", "application/problem+json"):
                json.loads(response.body)
    not_found = await http_client.request("GET", f"/{quote(SCRIPT)}", prefix="")
    assert not_found.headers["content-type"] == "application/problem+json"


# --- paths -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path_factory.mktemp("broker"), [PHPMQ, HTTP]) as broker:
        yield broker


@pytest.mark.parametrize("base", ["/console", "/api/v1/journal/segments", "/api/v1/journal/slots"])
def test_paths_lead_to_no_other_file(broker: LocalBroker, base: str) -> None:
    """Path traversal returns no other file."""
    (broker.directory / "secret").write_text("do not show")
    suffixes = (
        "../secret",
        "..%2fsecret",
        "%2e%2e/secret",
        "..%5csecret",
        "%2e%2e%2f%2e%2e%2fsecret",
    )
    absolute_path = quote(str(broker.directory / "secret"), safe="")
    for suffix in (
        *suffixes,
        absolute_path,
        "/" + str(broker.directory / "secret"),
        "..%00/secret",
        "%00",
    ):
        for depth in range(0, 9, 4):
            path = f"{base}/{'../' * depth}{suffix}"
            request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            head, _, body = exchange_bytes(broker.port("http"), request.encode()).partition(
                b"\r\n\r\n"
            )
            assert head[9:12] in (b"400", b"404"), path
            assert b"do not show" not in body


# --- oversized and slow ----------------------------------------------------------------------


@in_event_loop
async def test_oversized_bodies_are_rejected(api_fixture: ApiFixture) -> None:
    """No endpoint reads more than its limit, or a body without a length."""
    anonymous = api_fixture.http_client()
    for endpoint in api_fixture.endpoints:
        operation = endpoint.operation
        if not operation.changes:
            continue
        assert SMALL_BYTES <= endpoint.limit <= 512 * 1024 * 1024
        length_header = {"Content-Length": str(endpoint.limit + 1)}
        for name, headers, status in (
            ("large", length_header, 413),
            ("huge", {"Content-Length": "9" * 30}, 413),
            ("unknown", {"Transfer-Encoding": "chunked"}, 411),
        ):
            query = (
                "?writer=w&batch=0&partition=0&part=0"
                if endpoint.operation.path == "/batches"
                else ""
            )
            path = endpoint_path(endpoint, OWN) + query
            response = await anonymous.request(endpoint.operation.method, path, **headers)
            assert response.status == status, (name, endpoint, response.body)
            assert response.headers["connection"] == "close"


def test_deep_and_wide_documents_are_rejected_quickly(broker: LocalBroker) -> None:
    """Small JSON documents that are expensive to parse."""
    bodies = [b"[" * 60_000, b'{"a":' * 12_000, b'{"user":"' + b"\\u0000" * 10_000 + b'"}']
    bodies += [b"{%s}" % b",".join(b'"%d":0' % n for n in range(6000)), b"1" * 60_000, b"\xff\xfe"]
    with Client(broker.port("http")) as client:
        before = time.monotonic()
        for body, path in itertools.product(bodies, ("/users/a", "/session")):
            method = "PUT" if path == "/users/a" else "POST"
            assert client.request(method, path, body).status in (200, 400, 409)
        assert time.monotonic() - before < TIMEOUT


def test_slow_http_does_not_delay_other_clients(broker: LocalBroker) -> None:
    """Many requests that never end; test_http_session.py tests their time limits."""
    port = broker.port("http")
    connections = []
    for number in range(200):
        connection = socket.create_connection(("127.0.0.1", port), TIMEOUT)
        connections.append(connection)
        head = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n"
        connection.sendall(head if number % 2 else head + b"\r\n{")
    with Client(port) as client:
        for connection in connections:
            connection.sendall(b"X" if connection is connections[0] else b" ")
            assert client.get("/status").status == 200
    for connection in connections:
        with closing(connection):
            pass
    assert broker.status()["pid"] == broker.pid


def test_oversized_head_is_rejected_early(start: Start) -> None:
    """The head is rejected as soon as it is too long."""
    broker = start(f"{HTTP}?max-header-bytes=4096")
    padding = b"a" * 10_000_000
    for head in (
        b"GET /%s" % padding,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n%s" % (b"A: b\r\n" * 1_000_000),
        b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: %s=%s" % (COOKIE.encode(), padding),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n%s: %s" % (CSRF_HEADER.encode(), padding),
    ):
        before = broker.status()["resident_memory_bytes"]
        try:
            response = exchange_bytes(broker.port("http"), head)
        except ConnectionError:
            pass  # the broker closed the connection during the request
        else:
            assert response.startswith(b"HTTP/1.1 400 ")
        assert broker.status()["resident_memory_bytes"] < before + 4_000_000


def test_only_the_file_system_identifies_an_owner(broker: LocalBroker) -> None:
    """The admin socket belongs to its owner; no header makes another client an owner."""
    assert (broker.directory / "admin.sock").stat().st_mode & 0o777 == 0o600
    with Client(broker.port("http")) as client:
        for headers in ({"X-Forwarded-For": "unix"}, {"Forwarded": "for=unix"}):
            assert client.get("/session", **headers).json()["user"] == ""


def test_invalid_cookies_are_unauthorized(tmp_path: Path) -> None:
    async def scenario() -> None:
        api_fixture = ApiFixture(tmp_path)
        api_fixture.add("root", superuser=True)
        http_client = api_fixture.http_client()
        for value in (
            f"{COOKIE}=",
            f"{COOKIE}=a; {COOKIE}=b",
            f"{COOKIE}={'x' * 3000}",
            f'{COOKIE}="\\"',
            ";;;=;==",
            "\xff\xfe",
        ):
            assert (await http_client.request("GET", "/status", Cookie=value)).status == 401, value
        api_fixture.authenticator.close()

    asyncio.run(scenario())
