"""Users, roles and tokens over the API, settings, and the audit log."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.url import Url
from sluicemq.security.access import AuthSettings
from sluicemq.server.config import BrokerSettings, Config
from sluicemq.server.configuration_reference import EffectiveConfiguration
from sluicemq.server.listener_settings import Listener
from tests.support.api import PASSWORD, ApiFixture, HttpClient, in_event_loop


async def log_in_as_root(api_fixture: ApiFixture) -> HttpClient:
    api_fixture.add("root", superuser=True)
    http_client = api_fixture.http_client()
    assert (await http_client.login("root")).status == 200
    return http_client


@in_event_loop
async def test_user_is_created_changed_and_deleted(api_fixture: ApiFixture) -> None:
    admin = await log_in_as_root(api_fixture)
    fields = {"password": "some password", "roles": []}
    assert (
        await admin.request("PUT", "/users/anna?expect=existing", fields)
    ).code == "user-not-found"
    response = await admin.request("PUT", "/users/anna?expect=new", fields)
    assert response.status == 201
    view = response.json()
    assert (view["name"], view["has_password"], view["allow_digest"]) == ("anna", True, False)
    assert (await admin.request("PUT", "/users/anna?expect=new", fields)).code == "user-exists"
    permission = {"pattern": "jobs.*", "operations": ["consume", "produce", "consume"]}
    granted = await admin.request("PUT", "/users/anna/permissions", permission)
    assert granted.json()["permissions"] == [
        {"pattern": "jobs.*", "operations": ["produce", "consume"], "ignore_case": False}
    ]
    anna = api_fixture.http_client()
    assert (await anna.login("anna", "some password")).json()["permissions"]
    # omitted fields are unchanged
    changed = await admin.request("PUT", "/users/anna", {"superuser": True})
    assert (changed.status, changed.json()["superuser"]) == (200, True)
    assert (await anna.request("GET", "/audit")).status == 200
    await admin.request("PUT", "/users/anna", {"superuser": False, "allow_digest": False})
    rejection = await admin.request("PUT", "/users/anna", {"allow_digest": True})
    assert (rejection.status, rejection.code) == (409, "rejected")
    digest = {"password": "another password", "allow_digest": True}
    assert (await admin.request("PUT", "/users/anna", digest)).json()["allow_digest"] is True
    changed_view = await admin.request("PUT", "/users/anna", {"password": None})
    assert (changed_view.json()["has_password"], changed_view.json()["allow_digest"]) == (
        False,
        False,
    )
    assert (await admin.request("DELETE", "/users/anna/permissions?pattern=jobs.*")).status == 204
    assert (await admin.request("GET", "/users/anna")).json()["permissions"] == []
    assert (await admin.request("DELETE", "/users/anna")).status == 204
    for method in ("GET", "DELETE"):
        assert (await admin.request(method, "/users/anna")).code == "user-not-found"
    page = (await admin.request("GET", "/users?filter=o")).json()
    assert ([item["name"] for item in page["items"]], page["total"]) == (["root"], 1)
    audit_lines = api_fixture.audit_lines()
    assert "change: root PUT /api/v1/users/anna done" in audit_lines
    assert "change: root PUT /api/v1/users/anna 409" in audit_lines
    assert "user added: anna" in audit_lines
    assert not [line for line in audit_lines if "password" in line and "some" in line]


@in_event_loop
async def test_change_on_a_full_disk_is_refused_as_such(
    api_fixture: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = await log_in_as_root(api_fixture)

    def fail_to_write(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sluicemq.security.records.write_atomically", fail_to_write)
    change = {"current_password": PASSWORD, "new_password": "another password"}
    for method, path, body in (
        ("PUT", "/users/anna", {"password": "some password"}),
        ("POST", "/session/password", change),
    ):
        response = await admin.request(method, path, body)
        assert (response.status, response.code) == (507, "low-disk-space")
        assert response.headers["retry-after"] == "1"


@in_event_loop
async def test_last_superuser_is_deleted_only_if_forced(api_fixture: ApiFixture) -> None:
    admin = await log_in_as_root(api_fixture)
    for method, body in (("DELETE", None), ("PUT", {"superuser": False})):
        response = await admin.request(method, "/users/root", body)
        assert (response.status, response.code) == (403, "forbidden")
    api_fixture.add("anna")
    assert (await admin.request("DELETE", "/users/root")).status == 403
    assert (await admin.request("DELETE", "/users/root?force=true")).status == 204
    assert (await admin.request("GET", "/users")).status == 401


@in_event_loop
async def test_token_is_returned_once(api_fixture: ApiFixture) -> None:
    admin = await log_in_as_root(api_fixture)
    response = await admin.request("POST", "/users/root/tokens", {"label": "for a script"})
    assert response.status == 201
    token = response.json()
    script = api_fixture.http_client()
    script.headers["Authorization"] = f"Bearer {token['token']}"
    view = await script.request("GET", "/users/root")
    assert [item["id"] for item in view.json()["tokens"]] == [token["id"]]
    assert token["token"].encode() not in view.body
    expires = int(api_fixture.now * 1000) + 5001
    timed = (await admin.request("POST", "/users/root/tokens", {"expires": expires})).json()
    items = (await admin.request("GET", "/users/root")).json()["tokens"]
    [item] = [item for item in items if item["id"] == timed["id"]]
    assert item["created"] == api_fixture.now * 1000
    assert item["expires"] == timed["expires"] == (api_fixture.now + 6) * 1000
    rejection = await admin.request("POST", "/users/root/tokens", {"expires": 5})
    assert (rejection.status, rejection.code) == (409, "rejected")
    assert (await admin.request("DELETE", "/users/root/tokens/none")).code == "token-not-found"
    assert (await admin.request("DELETE", f"/users/root/tokens/{token['id']}")).status == 204
    assert (await script.request("GET", "/status")).status == 401


@in_event_loop
async def test_role_is_created_assigned_and_deleted(api_fixture: ApiFixture) -> None:
    admin = await log_in_as_root(api_fixture)
    api_fixture.add("anna")
    assert (await admin.request("PUT", "/roles/readers?expect=existing")).code == "role-not-found"
    assert (await admin.request("PUT", "/roles/readers?expect=new")).status == 201
    assert (await admin.request("PUT", "/roles/readers")).status == 200
    assert (await admin.request("PUT", "/roles/readers?expect=new")).code == "role-exists"
    permission = {"pattern": "*", "operations": ["browse"], "ignore_case": True}
    assert (await admin.request("PUT", "/roles/readers/permissions", permission)).status == 200
    assert (await admin.request("PUT", "/users/anna/roles/readers")).json()["roles"] == ["readers"]
    assert (await admin.request("PUT", "/users/anna/roles/none")).code == "role-not-found"
    anna = api_fixture.http_client()
    assert (await anna.login("anna")).json()["permissions"] == [permission]
    [view] = (await admin.request("GET", "/roles")).json()["items"]
    assert view == {"name": "readers", "permissions": [permission], "users": ["anna"]}
    assert (await admin.request("DELETE", "/roles/readers")).code == "rejected"  # anna has it
    assert (await admin.request("PUT", "/users/anna", {"roles": ["none"]})).code == "role-not-found"
    assert (await admin.request("PUT", "/users/anna", {"roles": []})).json()["roles"] == []
    assert (await admin.request("DELETE", "/users/anna/roles/readers")).status == 204
    assert (await admin.request("DELETE", "/roles/readers/permissions?pattern=*")).status == 204
    assert (await admin.request("GET", "/roles/readers")).json()["permissions"] == []
    assert (await admin.request("DELETE", "/roles/readers")).status == 204


@in_event_loop
async def test_long_lists_have_pages(api_fixture: ApiFixture) -> None:
    admin = await log_in_as_root(api_fixture)
    for number in range(5):
        api_fixture.add(f"user{number}")
        assert (await admin.request("PUT", f"/roles/role{number}")).status == 201
    for path, name in (("/users", "user"), ("/roles", "role")):
        part = f"{path}?filter={name}&limit=2"
        page = (await admin.request("GET", f"{part}&offset=2")).json()
        assert ([item["name"] for item in page.pop("items")], page) == (
            [f"{name}2", f"{name}3"],
            {"total": 5, "next_cursor": "4"},
        )
        last = (await admin.request("GET", f"{part}&order=desc")).json()["items"]
        assert [item["name"] for item in last] == [f"{name}4", f"{name}3"]
        assert (await admin.request("GET", f"{part}&offset=16")).json()["items"] == []
        assert (await admin.request("GET", f"{part}&offset=-1")).code == "bad-parameter"


@in_event_loop
async def test_only_the_owner_adds_the_first_user(api_fixture: ApiFixture) -> None:
    """Otherwise any client that reaches the port of a broker without users could add
    the first user."""
    anonymous = api_fixture.http_client()
    settings = {"password": PASSWORD, "superuser": True}
    response = await anonymous.request("PUT", "/users/root", settings)
    assert (response.status, response.code) == (409, "authentication-disabled")
    assert (await anonymous.request("PUT", "/roles/r")).code == "authentication-disabled"
    assert api_fixture.store.read().users == {}
    owner = api_fixture.http_client("unix", local=True)
    assert (await owner.request("PUT", "/users/root", settings)).status == 201
    assert api_fixture.store.read().changed_by == "(local) at unix"
    assert (await anonymous.request("PUT", "/users/root", settings)).status == 401


def test_users_are_not_denied_where_no_login_is_required(tmp_path: Path) -> None:
    async def scenario() -> None:
        api_fixture = ApiFixture(tmp_path, required="never")
        api_fixture.add("root", superuser=True)
        response = await api_fixture.http_client().request("PUT", "/users/anna", {})
        assert response.code == "authentication-disabled"
        assert "has no users" not in response.json()["detail"]
        api_fixture.authenticator.close()

    asyncio.run(scenario())


@in_event_loop
async def test_invalid_users_are_rejected(api_fixture: ApiFixture) -> None:
    admin = await log_in_as_root(api_fixture)
    for path, body in (
        ("/users/a%20b", {"password": "x"}),
        ("/users/%ff", {"password": "x"}),
        ("/users/" + "a" * 65, {"password": "x"}),
        ("/users/anna", {"password": "\ud800"}),
        ("/users/anna", {"password": "x" * 1025}),
        ("/users/anna", {"password": ""}),
        ("/users/anna", {"superuser": 1}),
        ("/users/anna", {"more": 1}),
        ("/users/root/permissions", {"pattern": "", "operations": ["browse"]}),
        ("/users/root/permissions", {"pattern": "a", "operations": []}),
        ("/users/root/permissions", {"pattern": "a", "operations": ["rule"]}),
        ("/users/none/permissions", {"pattern": "a", "operations": ["browse"]}),
    ):
        response = await admin.request("PUT", path, body)
        assert response.status in (400, 404, 409), (path, body, response)
    response = await admin.request("PUT", "/users/CN=%ff", {"password": "x"})
    assert "cannot be a user's name" in response.json()["detail"]
    assert [*api_fixture.store.read().users] == ["root"]


@in_event_loop
async def test_audit_log_lists_the_latest_events_first(api_fixture: ApiFixture) -> None:
    admin = await log_in_as_root(api_fixture)
    api_fixture.add("anna")
    anna = api_fixture.http_client("10.0.0.7:1234")
    await anna.login("anna", "wrong")
    await anna.login("anna")
    await anna.request("GET", "/audit")
    lines = (await admin.request("GET", "/audit?limit=3")).json()["items"]
    assert [line["event"] for line in lines] == ["denied", "login", "login failed"]
    assert lines[0] == {
        "time": lines[0]["time"],
        "event": "denied",
        "peer": "10.0.0.7:1234",
        "user": "anna",
        "operation": "GET /api/v1/audit",
    }
    for limit in ("0", "1001", "x", "1.0"):
        assert (await admin.request("GET", f"/audit?limit={limit}")).code == "bad-parameter"


@in_event_loop
async def test_health_needs_no_login(api_fixture: ApiFixture) -> None:
    api_fixture.add("root", superuser=True)
    http_client = api_fixture.http_client()
    for prefix in ("", "/api/v1"):
        for path in ("/health/live", "/health/ready"):
            assert (await http_client.request("GET", path, prefix=prefix)).json() == {
                "state": "serving"
            }
    for state in ("starting", "stopping", "failed"):
        api_fixture.context.process.now = state  # type: ignore[attr-defined]
        ready = await http_client.request("GET", "/health/ready")
        assert (ready.status, ready.code) == (503, "not-ready")
        assert ready.json()["state"] == state
        assert (await http_client.request("GET", "/health/live")).json() == {"state": state}


def test_effective_settings_name_their_source(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a hidden secret\n")
    config = Config(
        broker=BrokerSettings(data_dir=tmp_path),
        auth=AuthSettings(admin_token_file=tmp_path / "token", login_backoff=2.5),
        listeners=(Listener(url=Url.parse("jmq+unix:///run/x.sock"), socket_mode=0o600),),
        destinations={Address(Kind.QUEUE, "orders"): DestinationSettings()},
    )
    effective = EffectiveConfiguration(config, {"auth.login_backoff": "/etc/sluicemq.toml"})
    assert effective.declares(Address(Kind.QUEUE, "orders"))
    assert not effective.declares(Address(Kind.TOPIC, "orders"))
    views = effective.settings()
    by_name = {view.name: view for view in views}
    delay = by_name["auth.login_backoff"]
    assert (delay.value, delay.default, delay.unit) == (2.5, 1.0, "s")
    assert delay.source == "/etc/sluicemq.toml"
    assert by_name["broker.ephemeral"].source == "default"
    assert by_name["listeners[0].socket_mode"].value == "0600"
    assert by_name["listeners[0].url"].value == "jmq+unix:///run/x.sock"
    assert "listeners[0].window" not in by_name  # of another protocol
    assert all(view.description for view in views if "." in view.name and "url" not in view.name)
    assert not any(view.name.startswith("destinations") for view in views)
    assert not any("hidden secret" in str(view.value) for view in views)


def test_changes_of_users_do_not_block_the_event_loop(tmp_path: Path) -> None:
    """The event loop continues during the 20 ms of hashing. Several attempts are made because other
    processes may use the cores."""

    async def scenario() -> None:
        api_fixture = ApiFixture(tmp_path)
        owner = api_fixture.http_client("unix", local=True)
        maximum = 0
        for name in "abcde":
            iterations = 0
            path = f"/users/{name}"
            request = asyncio.ensure_future(owner.request("PUT", path, {"password": PASSWORD}))
            while not request.done():
                iterations += 1
                await asyncio.sleep(0)
            assert request.result().status == 201
            maximum = max(maximum, iterations)
        api_fixture.authenticator.close()
        assert maximum > 50

    asyncio.run(scenario())


@in_event_loop
async def test_short_passwords_are_accepted_with_a_warning(api_fixture: ApiFixture) -> None:
    admin = await log_in_as_root(api_fixture)
    view = (await admin.request("PUT", "/users/anna", {"password": "12345678901"})).json()
    assert "fewer than 12 characters" in view["warnings"][0]
    for body in ({"password": "123456789012"}, {"superuser": True}, {"password": None}):
        assert (await admin.request("PUT", "/users/anna", body)).json()["warnings"] == []


def test_minimum_length_holds_for_every_new_password(tmp_path: Path) -> None:
    async def scenario() -> None:
        api_fixture = ApiFixture(tmp_path, min_password_length=12)
        try:
            admin = await log_in_as_root(api_fixture)
            for name in ("anna", "root"):
                response = await admin.request("PUT", f"/users/{name}", {"password": "12345678901"})
                assert (response.status, response.code) == (409, "rejected")
                message = response.json()["detail"]
                assert "has 11 characters, and this broker requires 12" in message
            scenario = {"current_password": PASSWORD, "new_password": "12345678901"}
            assert (await admin.request("POST", "/session/password", scenario)).status == 409
            assert [*api_fixture.store.read().users] == ["root"]
            body = {"password": "123456789012"}
            assert (await admin.request("PUT", "/users/anna", body)).status == 201
        finally:
            api_fixture.authenticator.close()

    asyncio.run(scenario())
