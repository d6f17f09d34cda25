"""The HTTP application without a network: tests call it directly and set the clock."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sluicemq.admin.app import Application
from sluicemq.admin.caller import COOKIE, BrowserSessions, Caller
from sluicemq.broker import Broker, ManualClock
from sluicemq.journal import MemoryJournal
from sluicemq.journal.interface import Journal
from sluicemq.model.access import Operation, Permission
from sluicemq.model.url import Url
from sluicemq.security import records
from sluicemq.security.access import AuthSettings
from sluicemq.security.authenticator import Authenticator
from sluicemq.security.passwords import hash_password
from sluicemq.security.records import UserRecord, UserStore, make_token
from sluicemq.security.user_service import UserService
from sluicemq.server.config import BrokerSettings, Config
from sluicemq.server.configuration_reference import EffectiveConfiguration
from sluicemq.server.event_loop import EventLoopBatch
from tests.admin.context import context
from tests.support.http import Response
from tests.support.scan_time import ScanTime

PASSWORD = "correct horse"
HASH = hash_password(PASSWORD)


class StubTransport:
    """A transport with the attributes that the application uses."""

    peer_user = ""

    def __init__(self, peer: str) -> None:
        self.peer = peer

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay, callback)

    def disconnect(self, reason: str) -> None:
        pass


class ApiFixture:
    """An application with a broker in memory and users in a directory, in a running event loop."""

    def __init__(
        self,
        directory: Path,
        *,
        now: float = 1_000_000.0,
        journal: Journal | None = None,
        backup_dir: Path | None = None,
        **settings: Any,
    ) -> None:
        """Create the broker; `settings` are fields of AuthSettings.

        Without `journal` messages are in memory only, without `backup_dir` backups are disabled.
        """
        loop = asyncio.get_running_loop()
        self.now = now
        self.clock = ManualClock()
        self.scan_time = ScanTime()
        self.broker = Broker(
            journal or MemoryJournal(), self.clock, start_deadline=self.scan_time.start
        )
        self.batch = EventLoopBatch(loop, self.broker, self._failed)
        self.directory = directory
        self.store = UserStore(directory / "users.json")
        config = Config(
            broker=BrokerSettings(data_dir=directory, backup_dir=backup_dir),
            auth=AuthSettings(**settings),
        )
        self.authenticator = Authenticator(
            config.auth,
            config.users_file,
            loop.call_soon_threadsafe,
            clock=lambda: self.now,
            wall=lambda: self.now,
        )
        self.context = context(
            self.broker,
            users=UserService(self.authenticator),
            sessions=BrowserSessions(self.clock, config.http),
            audit=self.authenticator.audit,
            configuration=EffectiveConfiguration(config),
        )
        self.application = Application(self.context)
        self.endpoints = self.application.table.endpoints

    def _failed(self, error: Exception) -> None:
        raise error

    def add(self, name: str, *permissions: str, superuser: bool = False) -> None:
        """Add a user; permissions are like "jobs.*: produce consume"."""
        granted_permissions = []
        for text in permissions:
            pattern, _, words = text.partition(": ")
            operations = frozenset(Operation(word) for word in words.split())
            granted_permissions.append(Permission(pattern, operations))
        user = UserRecord(
            password=HASH,
            superuser=superuser,
            permissions=tuple(granted_permissions),
            created=1,
            updated=1,
        )
        self.store.change(lambda db: records.add_user(db, name, user), "a test")

    def token(self, name: str, expires: int = 0) -> str:
        token, record = make_token("", 1, expires)
        self.store.change(lambda db: records.add_token(db, name, record, 1), "a test")
        return token

    def http_client(self, peer: str = "127.0.0.1:1", *, local: bool = False) -> HttpClient:
        """Return a client on a new connection; with `local`, to the admin socket."""
        transport: Any = StubTransport(peer)
        access = (
            self.authenticator.open_local(transport)
            if local
            else self.authenticator.open(transport, Url("http"), "", logs_in=True)
        )
        return HttpClient(self, Caller(transport, access, ""))

    def audit_lines(self) -> list[str]:
        """Return the events of the audit log in order, with user and operation."""
        lines = reversed(self.authenticator.audit.recent())
        return [
            f"{line.event}: {line.user} {line.operation} {line.result}".strip() for line in lines
        ]


class HttpClient:
    """A client on one connection. Each request has `headers`, and `cookie` and `csrf` if set."""

    def __init__(self, api_fixture: ApiFixture, caller: Caller) -> None:
        self._api_fixture = api_fixture
        self.caller = caller
        self.headers: dict[str, str] = {}
        self.cookie = ""
        self.csrf = ""

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        prefix: str = "/api/v1",
        watch: Callable[[bytes], None] | None = None,
        **headers: str,
    ) -> Response:
        """Send a request; `body` is sent as JSON unless it is bytes. `watch` is called with each
        chunk of the response body when it arrives."""
        data = body if isinstance(body, bytes) else b"" if body is None else _json(body)
        sent_headers = {"Host": "localhost", **self.headers, **headers}
        if body is not None:
            sent_headers["Content-Length"] = str(len(data))
        if self.cookie:
            sent_headers.setdefault("Cookie", f"{COOKIE}={self.cookie}")
        if self.csrf:
            sent_headers.setdefault("X-CSRF-Token", self.csrf)
        target, _, query = f"{prefix}{path}".partition("?")
        scope = {
            "type": "http",
            # ASGI 2.4: `send` reports a disconnected client, `receive` need not wait for it
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(target),
            "raw_path": target.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(n.lower().encode(), v.encode("latin-1")) for n, v in sent_headers.items()],
            "state": {"caller": self.caller},
        }
        events: list[Any] = []
        rest = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> Any:
            return rest.pop() if rest else {"type": "http.disconnect"}

        async def send(event: Any) -> None:
            events.append(event)
            if watch is not None:
                watch(event.get("body", b""))

        await self._api_fixture.application(scope, receive, send)
        response_headers = {
            name.decode(): value.decode("latin-1") for name, value in events[0]["headers"]
        }
        content = b"".join(event.get("body", b"") for event in events[1:])
        return Response(events[0]["status"], response_headers, content)

    async def get_items(self, path: str) -> list[dict[str, Any]]:
        """Return the items of a list that the client may read."""
        response = await self.request("GET", path)
        assert response.status == 200, response
        items: list[dict[str, Any]] = response.json()["items"]
        return items

    async def login(self, user: str, password: str = PASSWORD) -> Response:
        """Log in as the console does."""
        response = await self.request("POST", "/session", {"user": user, "password": password})
        if response.status == 200:
            self.store_session(response)
        return response

    def store_session(self, response: Response) -> None:
        """Keep the cookie and the CSRF token of a login response, as a browser does."""
        self.cookie = response.headers["set-cookie"].partition(";")[0].partition("=")[2]
        self.csrf = response.json()["csrf_token"]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


Scenario = Callable[..., Coroutine[Any, Any, None]]


def in_event_loop(scenario: Scenario) -> Callable[..., None]:
    """Run a test in an event loop with an `ApiFixture`, its first parameter."""

    @wraps(scenario)
    def run(tmp_path: Path, **arguments: Any) -> None:
        async def run_scenario() -> None:
            api_fixture = ApiFixture(tmp_path, max_login_failures=3)
            try:
                await scenario(api_fixture, **arguments)
            finally:
                api_fixture.authenticator.close()
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)

        asyncio.run(run_scenario())

    # pytest reads the parameters of the test from the signature
    parameters = list(inspect.signature(scenario).parameters.values())[1:]
    directory = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = inspect.Signature([directory, *parameters])  # type: ignore[attr-defined]
    return run
