"""Browser sessions: login, content, timeouts and logout."""

from __future__ import annotations

import asyncio
import threading
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from sluicemq.admin.caller import BrowserSessions
from sluicemq.broker import ManualClock
from sluicemq.management.settings import HttpSettings
from sluicemq.management.users import UserRequest
from sluicemq.model.access import EVERYBODY
from sluicemq.security import records
from sluicemq.security.access import Credentials, LoginCallback
from sluicemq.security.authenticator import MAX_CHANGES, MAX_OWN_CHANGES, ConnectionAccess
from sluicemq.security.passwords import hash_password
from tests.support.api import HASH, PASSWORD, ApiFixture, in_event_loop

OTHER_HASH = hash_password("new")
DEMOTION = UserRequest(superuser=False)


@in_event_loop
async def test_session_is_valid_on_all_connections_until_logout(api_fixture: ApiFixture) -> None:
    api_fixture.add("anna", "jobs.*: browse produce")
    browser = api_fixture.http_client()
    response = await browser.login("anna")
    assert response.status == 200
    attributes = response.headers["set-cookie"].split("; ")[1:]
    assert sorted(attributes) == ["HttpOnly", "Path=/", "SameSite=strict"]
    info = response.json()
    assert (info["user"], info["superuser"]) == ("anna", False)
    assert info["permissions"] == [
        {"pattern": "jobs.*", "operations": ["produce", "browse"], "ignore_case": False}
    ]
    # the session is valid on another connection, too
    other_client = api_fixture.http_client()
    other_client.cookie, other_client.csrf = browser.cookie, browser.csrf
    assert (await other_client.request("GET", "/session")).json() == info
    assert (await other_client.request("GET", "/status")).status == 200
    response = await other_client.request("DELETE", "/session")
    deletion = response.headers["set-cookie"].split("; ")
    assert deletion[0] == 'sluicemq_session=""'
    assert {"HttpOnly", "Max-Age=0", "Path=/", "SameSite=strict"} < set(deletion)
    assert "Secure" not in deletion
    for http_client in (browser, other_client):
        response = await http_client.request("GET", "/status")
        assert (response.status, response.code) == (401, "authentication-required")


@in_event_loop
async def test_cookie_is_secure_over_tls(api_fixture: ApiFixture) -> None:
    api_fixture.add("anna")
    browser = api_fixture.http_client()
    browser.caller.tls = True
    assert "; Secure" in (await browser.login("anna")).headers["set-cookie"]
    assert "; Secure" in (await browser.request("DELETE", "/session")).headers["set-cookie"]


@in_event_loop
async def test_token_begins_a_session(api_fixture: ApiFixture) -> None:
    api_fixture.add("anna")
    for credentials in (
        {"token": api_fixture.token("anna")},
        {"password": api_fixture.token("anna")},
    ):
        browser = api_fixture.http_client()
        response = await browser.request("POST", "/session", credentials)
        assert response.json()["user"] == "anna"
        browser.store_session(response)
        assert (await browser.request("GET", "/status")).status == 200


@in_event_loop
async def test_invalid_logins_begin_no_session(api_fixture: ApiFixture) -> None:
    api_fixture.add("anna")
    browser = api_fixture.http_client()
    for body in ({}, {"user": "anna"}, {"password": ""}):
        assert (await browser.request("POST", "/session", body)).code == "authentication-required"
    for body in ({"user": "anna", "password": "x"}, {"token": "x"}):
        response = await browser.request("POST", "/session", body)
        assert (response.status, response.code) == (401, "authentication-failed")
        assert "set-cookie" not in response.headers
    for body in (b"", b"[]", b'{"user": 1}', b'{"who": "anna"}'):
        assert (await browser.request("POST", "/session", body)).status in (400, 401)
    assert len(api_fixture.context.sessions) == 0


@in_event_loop
async def test_browsers_get_no_authentication_challenge(api_fixture: ApiFixture) -> None:
    """Browsers would keep the password and send it with requests of other origins."""
    api_fixture.add("anna")
    http_client = api_fixture.http_client()
    assert "www-authenticate" in (await http_client.request("GET", "/status")).headers
    for header in ({"X-Requested-With": "console"}, {"Sec-Fetch-Mode": "cors"}):
        assert (
            "www-authenticate"
            not in (await http_client.request("GET", "/status", **header)).headers
        )


@in_event_loop
async def test_permissions_apply_at_once_and_sessions_end_with_their_credentials(
    api_fixture: ApiFixture,
) -> None:
    api_fixture.add("root", superuser=True)
    api_fixture.add("anna", superuser=True)
    password_client, token_client = api_fixture.http_client(), api_fixture.http_client()
    header_client = api_fixture.http_client()
    token = api_fixture.token("anna")
    header_client.headers["Authorization"] = f"Bearer {token}"
    await password_client.login("anna")
    token_client.store_session(await token_client.request("POST", "/session", {"token": token}))

    async def statuses(path: str) -> list[int]:
        clients = (password_client, token_client, header_client)
        return [(await http_client.request("GET", path)).status for http_client in clients]

    assert await statuses("/audit") == [200, 200, 200]
    api_fixture.store.change(
        lambda db: records.change_user(db, "anna", DEMOTION, "", "", 2), "a test"
    )
    assert await statuses("/audit") == [403, 403, 403]
    assert await statuses("/session") == [200, 200, 200]
    api_fixture.store.change(
        lambda db: records.change_user(db, "anna", UserRequest(password="new"), "", "", 2), "a test"
    )
    assert await statuses("/session") == [401, 200, 200]
    [record] = api_fixture.store.read().users["anna"].tokens
    api_fixture.store.change(lambda db: records.remove_token(db, "anna", record.id, 2), "a test")
    assert await statuses("/session") == [401, 401, 401]


@in_event_loop
async def test_password_changed_after_its_check_ends_the_login(api_fixture: ApiFixture) -> None:
    api_fixture.add("anna")
    begin = ConnectionAccess.login

    def login(self: Any, peer: str, credentials: Credentials, admitted: LoginCallback) -> None:
        def change_password(result: Any) -> None:
            request = UserRequest(password="new")
            api_fixture.store.change(
                lambda db: records.change_user(db, "anna", request, OTHER_HASH, "", 2), "a test"
            )
            api_fixture.authenticator.refresh()
            admitted(result)

        begin(self, peer, credentials, change_password)

    session_client, header_client = api_fixture.http_client(), api_fixture.http_client()
    encoded = b64encode(f"anna:{PASSWORD}".encode()).decode()
    header_client.headers["Authorization"] = f"Basic {encoded}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConnectionAccess, "login", login)
        assert (await session_client.login("anna")).status == 200
    assert (await session_client.request("GET", "/status")).status == 401
    request = UserRequest(password=PASSWORD)
    api_fixture.store.change(
        lambda db: records.change_user(db, "anna", request, HASH, "", 2), "a test"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConnectionAccess, "login", login)
        assert (await header_client.request("GET", "/status")).status == 200
    assert (await header_client.request("GET", "/status")).status == 401


@in_event_loop
async def test_token_that_expires_ends_its_session(api_fixture: ApiFixture) -> None:
    api_fixture.add("anna")
    browser = api_fixture.http_client()
    token = api_fixture.token("anna", expires=1_000_060)
    browser.store_session(await browser.request("POST", "/session", {"token": token}))
    api_fixture.now += 59
    assert (await browser.request("GET", "/session")).status == 200
    api_fixture.now += 1
    assert (await browser.request("GET", "/session")).status == 401


@in_event_loop
async def test_changed_password_ends_other_sessions(api_fixture: ApiFixture) -> None:
    api_fixture.add("anna")
    browser, other_client = api_fixture.http_client(), api_fixture.http_client()
    await browser.login("anna")
    await other_client.login("anna")
    wrong_password_response = await browser.request(
        "POST", "/session/password", {"current_password": "no", "new_password": "better horse"}
    )
    assert (wrong_password_response.status, wrong_password_response.code) == (
        401,
        "authentication-failed",
    )
    token_as_password = {
        "current_password": api_fixture.token("anna"),
        "new_password": "better horse",
    }
    assert (await browser.request("POST", "/session/password", token_as_password)).status == 401
    old_cookie = browser.cookie
    response = await browser.request(
        "POST", "/session/password", {"current_password": PASSWORD, "new_password": "better horse"}
    )
    assert response.status == 200
    browser.store_session(response)
    assert browser.cookie != old_cookie
    assert (await browser.request("GET", "/session")).status == 200
    assert (await other_client.request("GET", "/session")).status == 401
    assert (await other_client.login("anna", PASSWORD)).status == 401
    assert (await other_client.login("anna", "better horse")).status == 200
    assert "change: anna POST /api/v1/session/password done" in api_fixture.audit_lines()


def test_admin_token_is_not_the_current_password_of_a_user(tmp_path: Path) -> None:
    async def scenario() -> None:
        token_file = tmp_path / "token"
        token_file.write_text("a token that was made up")
        api_fixture = ApiFixture(tmp_path, admin_token_file=token_file)
        api_fixture.add("anna")
        browser = api_fixture.http_client()
        await browser.login("anna")
        passwords = {"current_password": token_file.read_text(), "new_password": "better horse"}
        response = await browser.request("POST", "/session/password", passwords)
        assert (response.status, response.code) == (401, "authentication-failed")
        api_fixture.authenticator.close()

    asyncio.run(scenario())


@in_event_loop
async def test_changes_of_the_own_password_do_not_block_administrators(
    api_fixture: ApiFixture,
) -> None:
    api_fixture.add("root", superuser=True)
    api_fixture.add("anna")
    root = api_fixture.http_client()
    await root.login("root")
    browsers = [api_fixture.http_client() for _ in range(MAX_CHANGES)]
    for browser in browsers:
        await browser.login("anna")
    is_free = threading.Event()
    api_fixture.authenticator._changes.submit(is_free.wait)
    passwords = {"current_password": PASSWORD, "new_password": PASSWORD}
    changes = [
        asyncio.create_task(browser.request("POST", "/session/password", passwords))
        for browser in browsers
    ]
    for _ in range(20):  # until the changes are pending
        await asyncio.sleep(0)
    removal = asyncio.create_task(root.request("DELETE", "/users/anna"))
    await asyncio.sleep(0)
    is_free.set()
    assert (await removal).status == 204
    statuses = [response.status for response in await asyncio.gather(*changes)]
    assert statuses.count(200) == MAX_OWN_CHANGES


@in_event_loop
async def test_clients_without_login_have_no_session_and_password(api_fixture: ApiFixture) -> None:
    for http_client, name in (
        (api_fixture.http_client(), ""),
        (api_fixture.http_client("unix", local=True), "(local)"),
    ):
        response = await http_client.request("POST", "/session", {"user": "x", "password": "y"})
        expected = {"user": name, "superuser": True, "csrf_token": "", "permissions": []}
        assert (response.status, response.json()) == (200, expected)
        assert "set-cookie" not in response.headers
        password_response = await http_client.request(
            "POST", "/session/password", {"current_password": "x", "new_password": "y"}
        )
        assert (password_response.status, password_response.code) == (409, "no-password")


@in_event_loop
async def test_guests_are_anonymous_in_the_audit_log(api_fixture: ApiFixture) -> None:
    await api_fixture.http_client().request("PUT", "/destinations/queue/jobs", {})
    [line] = api_fixture.audit_lines()
    assert line.startswith("change: (anonymous) PUT /api/v1/destinations/queue/jobs")


@in_event_loop
async def test_users_with_a_certificate_cannot_change_a_password(api_fixture: ApiFixture) -> None:
    """The certificate does not prove knowledge of the old password."""
    api_fixture.add("anna")
    http_client = api_fixture.http_client()
    http_client.caller.access._transport.peer_user = "anna"
    assert (await http_client.request("GET", "/session")).json()["user"] == "anna"
    passwords = {"current_password": "anything", "new_password": "mine now"}
    response = await http_client.request("POST", "/session/password", passwords)
    assert (response.status, response.code) == (409, "no-password")


@in_event_loop
async def test_permissions_of_a_certificate_apply_at_once_whatever_the_header(
    api_fixture: ApiFixture,
) -> None:
    api_fixture.add("root", superuser=True)
    api_fixture.add("anna", superuser=True)
    http_client = api_fixture.http_client()
    http_client.caller.access._transport.peer_user = "anna"
    http_client.headers["Authorization"] = "Bearer unused"
    assert (await http_client.request("GET", "/audit")).status == 200
    for change, status in (
        (lambda db: records.change_user(db, "anna", DEMOTION, "", "", 2), 403),
        (lambda db: records.remove_user(db, "anna"), 401),
    ):
        api_fixture.store.change(change, "a test")
        assert (await http_client.request("GET", "/audit")).status == status


@in_event_loop
async def test_guest_needs_a_login_once_users_exist(api_fixture: ApiFixture) -> None:
    """This applies to open connections, too."""
    anonymous = api_fixture.http_client()
    assert (await anonymous.request("GET", "/audit")).status == 200
    api_fixture.add("root", superuser=True)
    assert (await anonymous.request("GET", "/audit")).status == 401


def test_sessions_end_after_idle_and_absolute_timeouts() -> None:
    clock = ManualClock()
    sessions = BrowserSessions(clock, HttpSettings(session_idle_timeout=60, session_lifetime=200))
    secret, session = sessions.begin("", lambda: EVERYBODY)
    for _ in range(3):
        clock.advance(59_000)
        assert sessions.find(secret) is session
    clock.advance(22_000)
    assert sessions.current(session) is EVERYBODY
    clock.advance(1_000)  # 200 s, and used just now
    assert sessions.find(secret) is None
    secret, session = sessions.begin("", lambda: EVERYBODY)
    for _ in range(2):
        clock.advance(30_000)
        current = sessions.current(session)  # reading the session does not count as use
    assert current is None
    assert sessions.find(secret) is None
    assert len(sessions) == 0


def test_too_many_sessions_end_the_least_recently_used() -> None:
    sessions = BrowserSessions(ManualClock(), HttpSettings(max_sessions=2))
    first, second = (sessions.begin("", lambda: EVERYBODY)[0] for _ in range(2))
    assert sessions.find(first)
    third, _ = sessions.begin("", lambda: EVERYBODY)
    assert [bool(sessions.find(session)) for session in (first, second, third)] == [
        True,
        False,
        True,
    ]


def test_user_cannot_end_the_sessions_of_others() -> None:
    sessions = BrowserSessions(ManualClock(), HttpSettings(max_sessions=3))
    secrets = [
        sessions.begin(user, lambda: EVERYBODY)[0]
        for user in ("root", "anna", "anna", "anna", "bert")
    ]
    are_valid = [bool(sessions.find(secret)) for secret in secrets]
    assert are_valid == [True, False, False, True, True]
