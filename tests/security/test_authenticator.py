"""Logins, the resulting identities, and the audit log."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec.structs import replace

from sluicemq.management.users import UserRequest
from sluicemq.model.access import ANONYMOUS, EVERYBODY, Identity, Operation, Permission
from sluicemq.model.errors import (
    AccessDenied,
    AccessError,
    AuthenticationFailed,
    AuthenticationMissing,
    ConfigurationError,
    LoginBusy,
    LowDiskSpace,
    SluiceError,
    TooManyFailures,
    UserExists,
    UserNotFound,
)
from sluicemq.model.url import Url
from sluicemq.security import records
from sluicemq.security.access import AuthSettings, Credentials
from sluicemq.security.audit import MAX_PER_MINUTE
from sluicemq.security.authenticator import (
    ADMIN,
    MAX_CHANGES,
    MAX_OWN_CHANGES,
    Authenticator,
    ConnectionAccess,
)
from sluicemq.security.passwords import (
    NO_DIGEST,
    UNMATCHABLE_HASH,
    digest_answer,
    digest_form,
    page_digest_answer,
)
from sluicemq.security.records import (
    Change,
    UserRecord,
    UserStore,
    change_user,
    make_token,
    save_user,
)
from tests.security.test_login_queue import ManualEventLoop

ADMIN_TOKEN = "a-token-that-was-made-up"
CONSUME = Permission("orders.*", frozenset({Operation.CONSUME}))


class StubTransport:
    """A transport with the attributes that the authenticator uses."""

    def __init__(self, peer: str, peer_user: str = "") -> None:
        self.peer = peer
        self.peer_user = peer_user
        self.calls: list[Callable[[], None]] = []
        self.disconnect_reason = ""

    def disconnect(self, reason: str) -> None:
        self.disconnect_reason = reason

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        assert delay == 0
        self.calls.append(callback)


class AuthenticatorFixture:
    """An authenticator with a user database, a clock and a loop; hashes are not computed."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.now = 1_000_000.0
        self.loop = ManualEventLoop()
        self.compared: list[tuple[str, str]] = []
        self.directory = directory
        self.store = UserStore(directory / "users.json")
        self.settings = AuthSettings(**settings)
        self._authenticators: list[Authenticator] = []

    @functools.cached_property
    def authenticator(self) -> Authenticator:
        return self.make_authenticator()

    def make_authenticator(self, **fields: Any) -> Authenticator:
        authenticator = Authenticator(
            self.settings,
            self.store.path,
            self.loop.call_soon,
            **fields,
            clock=lambda: self.now,
            wall=lambda: self.now,
            verify=self._verify,
        )
        self._authenticators.append(authenticator)
        return authenticator

    def close(self) -> None:
        for authenticator in self._authenticators:
            authenticator.close()

    def _verify(self, stored: str, password: str, highest: int) -> bool:
        self.compared.append((stored, password))
        return stored == fake_hash(password)

    def add(self, name: str, password: str = "", **fields: Any) -> None:
        record = UserRecord(
            password=fake_hash(password) if password else "", created=1, updated=1, **fields
        )
        self.store.change(lambda database: records.add_user(database, name, record), "the test")

    def open(
        self, peer: str = "10.0.0.1:5", url: str = "vibemq://", peer_user: str = ""
    ) -> tuple[ConnectionAccess, StubTransport]:
        transport = StubTransport(peer, peer_user)
        return self.authenticator.open(transport, Url.parse(url), "", logs_in=True), transport  # type: ignore[arg-type]

    def begin_login(
        self, access: ConnectionAccess, peer: str, credentials: Credentials
    ) -> list[Any]:
        """Begin a login; its result is added to the returned list."""
        results: list[Any] = []
        access.login(peer, credentials, results.append)
        assert results == [], "the login ended within the call"
        return results

    def login(
        self, user: str = "", password: str = "", token: str = "", peer: str = "10.0.0.1:5"
    ) -> Any:
        """Log in on a new connection; return the identity or the error."""
        return self.authenticate(Credentials(user, password, token), peer)

    def authenticate(self, credentials: Credentials, peer: str = "10.0.0.1:5") -> Any:
        """Log in with any credentials on a new connection; return the identity or the error."""
        access, transport = self.open(peer)
        results = self.begin_login(access, peer, credentials)
        while not transport.calls:
            self.loop.run_one()
        transport.calls.pop()()
        (result,) = results
        return result


def fake_hash(password: str) -> str:
    return f"$argon2id${password}"


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[AuthenticatorFixture]:
    fixture = AuthenticatorFixture(tmp_path)
    yield fixture
    fixture.close()


@pytest.fixture
def log() -> Iterator[list[dict[str, Any]]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


# --- users of connections -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("required", "users", "listen", "logs_in", "certificate", "guest"),
    [
        # without users: all permissions, but only from this host
        ("auto", False, "phpmq://", False, "", EVERYBODY),
        ("auto", False, "vibemq://", True, "", EVERYBODY),
        ("auto", False, "phpmq://0.0.0.0", False, "", ANONYMOUS),
        ("auto", False, "vibemq://0.0.0.0", True, "", None),
        ("auto", False, "phpmq+unix:///s", False, "", EVERYBODY),
        # with users: a login is required if the protocol has one
        ("auto", True, "phpmq://", False, "", EVERYBODY),
        ("auto", True, "vibemq://", True, "", None),
        ("auto", True, "vibemq+unix:///s", True, "", None),
        ("auto", True, "phpmq://0.0.0.0", False, "", ANONYMOUS),
        ("auto", True, "phpmq://0.0.0.0?user=anna", False, "", "anna"),
        ("auto", True, "phpmq://?user=anna", False, "", "anna"),
        ("auto", True, "phpmq://?user=ghost", False, "", ANONYMOUS),
        ("auto", True, "auto://:1?user=anna", True, "", None),
        ("auto", True, "auto://0.0.0.0:1", False, "", ANONYMOUS),
        ("always", False, "vibemq://", True, "", None),
        ("always", False, "phpmq://", False, "", ANONYMOUS),
        ("always", True, "phpmq://?user=anna", False, "", "anna"),
        ("never", True, "vibemq://", True, "", EVERYBODY),
        ("never", True, "phpmq://", False, "", EVERYBODY),
        # a certificate names the user
        ("auto", False, "phpmq+tls://0.0.0.0", False, "anna", EVERYBODY),
        ("auto", True, "phpmq+tls://0.0.0.0", False, "anna", "anna"),
        ("auto", True, "phpmq+tls://?user=anna", False, "ghost", ANONYMOUS),
        ("auto", True, "vibemq+tls://", True, "anna", "anna"),
        ("auto", True, "vibemq+tls://", True, "ghost", None),
        ("never", False, "phpmq+tls://?user=anna", False, "anna", EVERYBODY),
        ("never", True, "phpmq+tls://?user=other", False, "anna", "anna"),
        ("never", True, "phpmq+tls://?user=anna", False, "ghost", ANONYMOUS),
        ("never", True, "vibemq+tls://", True, "anna", "anna"),
    ],
)
def test_connection_acts_as_its_user(
    tmp_path: Path,
    required: str,
    users: bool,
    listen: str,
    logs_in: bool,
    certificate: str,
    guest: Identity | str | None,
) -> None:
    fixture = AuthenticatorFixture(tmp_path, required=required)
    if users:
        fixture.add("anna", permissions=(CONSUME,))
    url = Url.parse(listen)
    user = dict(url.options).get("user", "")
    transport: Any = StubTransport("10.0.0.1:5", certificate)
    access = fixture.authenticator.open(transport, url, user, logs_in=logs_in)
    if isinstance(guest, str):
        assert access.guest is not None
        assert access.guest.name == guest
        assert access.guest.may(Operation.CONSUME, "orders.new")
        assert not access.guest.may(Operation.PRODUCE, "orders.new")
    else:
        assert access.guest is guest
    assert (access.users is not None) == fixture.authenticator.required
    fixture.close()


def test_insecure_public_opens_public_listeners(fixture: AuthenticatorFixture) -> None:
    authenticator = fixture.make_authenticator(insecure_public=True)
    for listen, logs_in in (("phpmq://0.0.0.0", False), ("vibemq://0.0.0.0", True)):
        transport: Any = StubTransport("10.0.0.1:5")
        access = authenticator.open(transport, Url.parse(listen), "", logs_in=logs_in)
        assert access.guest is EVERYBODY


def test_credentials_are_ignored_where_no_login_is_required(
    fixture: AuthenticatorFixture,
) -> None:
    assert fixture.login("anna", "x") is EVERYBODY
    assert fixture.login() is EVERYBODY


# --- logins -------------------------------------------------------------------------------------


def test_correct_password_logs_in(fixture: AuthenticatorFixture, log: list[dict[str, Any]]) -> None:
    fixture.add("anna", "right", permissions=(CONSUME,))
    identity = fixture.login("anna", "right")
    assert identity.name == "anna"
    assert identity.may(Operation.CONSUME, "orders.new")
    assert not identity.superuser
    assert {
        "event": "login",
        "user": "anna",
        "method": "password",
        "peer": "10.0.0.1:5",
    }.items() <= (log[-1].items())


@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("anna", "wrong"),
        ("Anna", "right"),
        ("unknown", "right"),
        ("tokenonly", "right"),
        ("", "right"),
        ("anna", "right "),
        ("anna", "x" * 2000),
        ("a" * 5000, "\udc80"),
    ],
)
def test_other_passwords_and_users_are_rejected(
    fixture: AuthenticatorFixture, log: list[dict[str, Any]], user: str, password: str
) -> None:
    fixture.add("anna", "right")
    fixture.add("tokenonly")
    result = fixture.login(user, password)
    assert type(result) is AuthenticationFailed
    assert str(result) == "the user name or the password is wrong"
    assert log[-1]["event"] == "login failed"
    assert password not in str(log)


def test_password_entered_as_user_name_is_not_logged(
    fixture: AuthenticatorFixture, log: list[dict[str, Any]]
) -> None:
    fixture.add("anna", "right")
    fixture.login("my secret!", "x")
    fixture.login("bert", "x")
    assert [entry["user"] for entry in log] == ["(not a name)", "bert"]


def test_unknown_user_takes_the_same_check(fixture: AuthenticatorFixture) -> None:
    fixture.add("anna", "right")
    fixture.add("tokenonly")
    for user in ("unknown", "tokenonly"):
        fixture.login(user, "x")
    assert fixture.compared == [(UNMATCHABLE_HASH, "x")] * 2


def test_missing_credentials_are_not_a_failed_login(fixture: AuthenticatorFixture) -> None:
    fixture.add("anna", "right")
    for _ in range(20):
        assert isinstance(fixture.login("anna"), AuthenticationMissing)
    assert fixture.login("anna", "right").name == "anna"


def test_verified_password_is_not_checked_again(fixture: AuthenticatorFixture) -> None:
    fixture.add("anna", "right")
    fixture.add("bert", "other")
    for _ in range(3):
        assert fixture.login("anna", "right").name == "anna"
        assert fixture.login("bert", "other").name == "bert"
    assert len(fixture.compared) == 2
    now = 5
    fixture.store.change(
        lambda db: change_user(db, "anna", UserRequest(password="new"), fake_hash("new"), "", now),
        "",
    )
    assert isinstance(fixture.login("anna", "right"), AuthenticationFailed)
    assert fixture.login("anna", "new").name == "anna"
    fixture.store.change(lambda db: records.remove_user(db, "anna", force=True), "")
    assert isinstance(fixture.login("anna", "new"), AuthenticationFailed)


def test_password_changed_during_its_check_is_rejected(
    fixture: AuthenticatorFixture,
) -> None:
    fixture.add("anna", "right")
    access, transport = fixture.open()
    results = fixture.begin_login(access, transport.peer, Credentials("anna", "right"))
    fixture.store.change(
        lambda db: change_user(db, "anna", UserRequest(password="new"), fake_hash("new"), "", 5), ""
    )
    fixture.authenticator.refresh()
    fixture.loop.run_one()
    transport.calls.pop()()
    assert isinstance(results[0], AuthenticationFailed)


@pytest.mark.parametrize("field", ["token", "password"])
def test_token_logs_in_until_it_expires(
    fixture: AuthenticatorFixture, log: list[dict[str, Any]], field: str
) -> None:
    token, record = make_token("", 1, int(fixture.now) + 60)
    fixture.add("anna", permissions=(CONSUME,), tokens=(record,))

    def attempt(value: str) -> Any:
        return fixture.login("whoever", **{field: value})

    assert attempt(token).name == "anna"
    assert log[-1]["method"] == "token"
    assert isinstance(attempt(token[:-1]), AuthenticationFailed)
    assert isinstance(attempt(record.sha256), AuthenticationFailed)
    fixture.now += 59
    assert attempt(token).name == "anna"
    fixture.now += 1
    expired = attempt(token)
    assert isinstance(expired, AuthenticationFailed)
    assert str(expired) == "the token is unknown or has expired"
    assert token not in str(log)


def digest_credentials(user: str, form: str, nonce: str = "n") -> Credentials:
    return Credentials(user, digest=digest_answer(form, nonce), nonce=nonce)


def test_digest_logs_in(fixture: AuthenticatorFixture, log: list[dict[str, Any]]) -> None:
    digest = digest_form("anna", "right")
    fixture.add("anna", "right", digest=digest, permissions=(CONSUME,))
    identity = fixture.authenticate(digest_credentials("anna", digest, "-34b997a1a2d5"))
    assert identity.name == "anna"
    assert identity.may(Operation.CONSUME, "orders.new")
    assert {"event": "login", "user": "anna", "method": "digest"}.items() <= log[-1].items()
    assert fixture.compared == []
    assert digest not in str(log)


def test_digest_of_32_digits_logs_in(fixture: AuthenticatorFixture) -> None:
    digest = digest_form("anna", "right")
    fixture.add("anna", "right", digest=digest)
    result = page_digest_answer(digest, "n")
    assert fixture.authenticate(Credentials("anna", digest=result, nonce="n")).name == "anna"


@pytest.mark.parametrize(
    "credentials",
    [
        Credentials("anna", digest=page_digest_answer(digest_form("anna", "a"), "n"), nonce="n"),
        Credentials("anna", digest=page_digest_answer(digest_form("anna", "right"), "")),
        Credentials("bert", digest=page_digest_answer(NO_DIGEST, "n"), nonce="n"),
        Credentials("bert", digest=digest_answer(NO_DIGEST, "n"), nonce="n"),
        digest_credentials("anna", digest_form("anna", "wrong")),
        digest_credentials("anna", digest_form("anna", "right"))._replace(nonce="of another time"),
        digest_credentials("anna", digest_form("anna", "right"), ""),
        digest_credentials("anna", digest_form("anna", "right"))._replace(user="bert"),
        digest_credentials("bert", digest_form("bert", "other")),
        digest_credentials("bert", ""),
        digest_credentials("bert", UNMATCHABLE_HASH),
        digest_credentials("unknown", UNMATCHABLE_HASH),
        digest_credentials("", UNMATCHABLE_HASH),
        Credentials("anna", digest="\udc80", nonce="n"),
        Credentials("anna", digest=digest_form("anna", "right"), nonce="n"),
    ],
)
def test_other_digests_are_rejected(
    fixture: AuthenticatorFixture, credentials: Credentials
) -> None:
    fixture.add("anna", "right", digest=digest_form("anna", "right"))
    fixture.add("bert", "other")
    result = fixture.authenticate(credentials)
    assert type(result) is AuthenticationFailed
    assert str(result) == "the user name or the password is wrong"


def test_admin_token_logs_in_without_users(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(ADMIN_TOKEN + "\n")
    fixture = AuthenticatorFixture(tmp_path, admin_token_file=file)
    assert fixture.login(token=ADMIN_TOKEN) is ADMIN
    assert fixture.login("admin", ADMIN_TOKEN) is ADMIN
    assert ADMIN.superuser
    assert isinstance(fixture.login(token=ADMIN_TOKEN[:-1]), AuthenticationFailed)
    assert isinstance(fixture.login(), AuthenticationMissing)
    fixture.close()


def test_audit_log_names_admin_token_and_no_user_of_wrong_token(
    tmp_path: Path, log: list[dict[str, Any]]
) -> None:
    file = tmp_path / "token"
    file.write_text(ADMIN_TOKEN + "\n")
    fixture = AuthenticatorFixture(tmp_path, admin_token_file=file)
    fixture.login(token=ADMIN_TOKEN)
    fixture.login("anna", "slq_wrong")
    fixture.close()
    users = [(entry["event"], entry["user"]) for entry in log]
    assert users == [("login", "(admin token)"), ("login failed", "")]


# --- throttling ---------------------------------------------------------------------------------


def fail_logins(
    fixture: AuthenticatorFixture, times: int, user: str = "anna", peer: str = "10.0.0.1:5"
) -> None:
    for number in range(times):
        result = fixture.login(user, f"wrong{number}", peer=peer)
        assert str(result) == "the user name or the password is wrong"


def retry_after(result: Any) -> int:
    """Return the seconds that a throttled login has to wait."""
    assert isinstance(result, TooManyFailures), result
    scope = "for this user from this address"
    seconds = result.retry_after
    assert str(result) == f"too many failed logins {scope}; try again in {seconds} s"
    return seconds


@pytest.mark.parametrize("user", ["anna", "unknown", "tokenonly"])
def test_pair_is_throttled_after_ten_failures(
    fixture: AuthenticatorFixture, log: list[dict[str, Any]], user: str
) -> None:
    fixture.add("anna", "right")
    fixture.add("bert", "right")
    fixture.add("tokenonly")
    fail_logins(fixture, 9, user)
    assert log[-1]["retry_after"] == 0
    waits = []
    for _ in range(9):
        fail_logins(fixture, 1, user)
        compared = len(fixture.compared)
        assert retry_after(fixture.login(user, "right")) == log[-2]["retry_after"]
        assert len(fixture.compared) == compared, "a throttled login was checked"
        assert (log[-1]["event"], log[-1]["reason"]) == ("login refused", "too many failures")
        waits.append(log[-2]["retry_after"])
        # only the pair
        assert fixture.login("bert", "right").name == "bert"
        fixture.now += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    if user == "anna":
        assert fixture.login("anna", "right", peer="10.0.0.2:5").name == "anna"


def test_success_resets_the_failures(fixture: AuthenticatorFixture) -> None:
    fixture.add("anna", "right")
    for _ in range(3):
        fail_logins(fixture, 9)
        assert fixture.login("anna", "right").name == "anna"


def test_verified_passwords_and_tokens_are_never_throttled(fixture: AuthenticatorFixture) -> None:
    token, record = make_token("", 1)
    fixture.add("anna", "right", tokens=(record,))
    assert fixture.login("anna", "right").name == "anna"
    fail_logins(fixture, 10)
    retry_after(fixture.login("anna", "wrong"))
    compared = len(fixture.compared)
    assert fixture.login("anna", "right").name == "anna"
    fail_logins(fixture, 10)
    assert fixture.login(token=token).name == "anna"
    retry_after(fixture.login("anna", "wrong"))
    assert len(fixture.compared) == compared + 10


def test_correct_password_from_a_new_address_waits_like_a_wrong_one(
    fixture: AuthenticatorFixture,
) -> None:
    """Otherwise the response time would reveal whether a guessed password is correct."""
    fixture.add("anna", "right")
    assert fixture.login("anna", "right").name == "anna"
    peer = "10.0.0.2:5"
    access, transport = fixture.open(peer)
    fixture.begin_login(access, peer, Credentials("anna", "wrong"))
    waiting, guess = fixture.open(peer)
    fixture.begin_login(waiting, peer, Credentials("anna", "right"))
    assert transport.calls == guess.calls == []
    fixture.loop.run_one()
    assert len(transport.calls) == len(guess.calls) == 1
    assert len(fixture.compared) == 2, "a password verified for another address was checked again"
    fail_logins(fixture, 10, peer="10.0.0.3:5")
    retry_after(fixture.login("anna", "right", peer="10.0.0.3:5"))


def test_many_connections_with_one_password_take_one_check(fixture: AuthenticatorFixture) -> None:
    fixture.add("anna", "right")
    transports = []
    for number in range(200):
        access, transport = fixture.open(f"10.0.{number}.1:5")
        fixture.begin_login(access, transport.peer, Credentials("anna", "right"))
        transports.append(transport)
    while not all(transport.calls for transport in transports):
        fixture.loop.run_one()
    assert len(fixture.compared) <= 2


def test_unix_socket_is_one_address(fixture: AuthenticatorFixture) -> None:
    fixture.add("anna", "right")
    fixture.add("bert", "right")
    fail_logins(fixture, 10, peer="unix")
    retry_after(fixture.login("anna", "right", peer="unix"))
    assert fixture.login("bert", "right", peer="unix").name == "bert"
    assert fixture.login("anna", "right").name == "anna"


def test_wrong_tokens_take_a_check_and_are_throttled(fixture: AuthenticatorFixture) -> None:
    token, record = make_token("", 1)
    fixture.add("anna", "right", tokens=(record,))
    for number in range(10):
        assert isinstance(fixture.login(token=f"slq_{number}"), AuthenticationFailed)
    assert fixture.compared == [(UNMATCHABLE_HASH, "")] * 10
    result = fixture.login(token="slq_x")
    assert "with wrong tokens from this address; try again in 1 s" in str(result)
    assert fixture.login(token=token).name == "anna"
    assert fixture.login("anna", "right").name == "anna"


@pytest.mark.parametrize("user", ["anna", "bert", "unknown"])
def test_wrong_digests_take_a_check_and_are_throttled(
    fixture: AuthenticatorFixture, user: str
) -> None:
    """The cost is the same for users with and without a digest, and for unknown users."""
    digest = digest_form("anna", "right")
    fixture.add("anna", digest=digest)
    fixture.add("bert", "right")
    for _ in range(10):
        assert "wrong" in str(fixture.authenticate(digest_credentials(user, "0")))
    assert fixture.compared == [(UNMATCHABLE_HASH, "")] * 10
    assert retry_after(fixture.authenticate(digest_credentials(user, digest))) == 1
    # passwords and digests of a pair count together
    assert retry_after(fixture.login(user, "right")) == 1
    fixture.now += 1
    assert fixture.authenticate(digest_credentials("anna", digest)).name == "anna"


def test_right_digest_from_an_address_without_logins_waits(fixture: AuthenticatorFixture) -> None:
    digest = digest_form("anna", "right")
    fixture.add("anna", digest=digest)

    def begin_login(peer: str, credentials: Credentials) -> StubTransport:
        access, transport = fixture.open(peer)
        fixture.begin_login(access, peer, credentials)
        return transport

    peer = "10.0.0.9:5"
    wrong_transport = begin_login(peer, digest_credentials("anna", "0"))
    right_transport = begin_login(peer, digest_credentials("anna", digest))
    assert wrong_transport.calls == right_transport.calls == []
    fixture.loop.run_one()
    assert len(right_transport.calls) == 1
    assert len(fixture.compared) == 1, "a correct digest was checked like a wrong one"
    # verified for this address
    begin_login(peer, digest_credentials("anna", "1"))
    assert len(begin_login(peer, digest_credentials("anna", digest, "another")).calls) == 1


def test_too_long_password_takes_the_same_check(fixture: AuthenticatorFixture) -> None:
    fixture.add("anna", "right")
    assert isinstance(fixture.login("anna", "x" * 1025), AuthenticationFailed)
    assert fixture.compared == [(UNMATCHABLE_HASH, "")]


def test_login_flood_gets_a_server_busy_error(tmp_path: Path) -> None:
    fixture = AuthenticatorFixture(tmp_path, max_queued_logins=4)
    fixture.add("anna", "right")
    results = []
    for number in range(20):
        peer = "10.0.0.1:5"
        access, transport = fixture.open(peer)
        results.append(fixture.begin_login(access, peer, Credentials(f"user{number}", "wrong")))
        for call in transport.calls:
            call()
    busy_errors = [result for batch in results for result in batch]
    assert len(busy_errors) == 20 - 4 - fixture.settings.max_concurrent_password_checks
    assert all(isinstance(result, LoginBusy) for result in busy_errors)
    # a login of another address replaces one of the flood
    access, transport = fixture.open("10.0.0.2:5")
    fixture.begin_login(access, "10.0.0.2:5", Credentials("anna", "right"))
    while not transport.calls:
        fixture.loop.run_one()
    fixture.close()


def test_login_of_a_closed_connection_leaves_the_queue(tmp_path: Path) -> None:
    fixture = AuthenticatorFixture(tmp_path, max_concurrent_password_checks=1)
    fixture.add("anna", "right")
    logins = []
    for user in ("anna", "bert", "clara"):
        access, transport = fixture.open()
        logins.append(
            (
                access,
                transport,
                fixture.begin_login(access, transport.peer, Credentials(user, "wrong")),
            )
        )
    _, last, _ = logins[2]
    access, transport, results = logins[1]
    access.cancel_login()
    transport.calls.pop()()
    assert isinstance(results[0], AuthenticationFailed)
    access.cancel_login()
    while not last.calls:
        fixture.loop.run_one()
    assert [password for _, password in fixture.compared] == ["wrong"] * 2
    assert transport.calls == []
    fixture.close()


# --- changes of the database --------------------------------------------------------------------


def test_user_added_by_another_process_requires_logins(
    fixture: AuthenticatorFixture, log: list[dict[str, Any]]
) -> None:
    assert fixture.open()[0].guest is EVERYBODY
    fixture.add("anna", "right")
    access, _ = fixture.open()
    assert access.guest is None
    assert access.users is not None
    assert log[-1]["event"] == "user added"
    assert (log[-1]["user"], log[-1]["changed_by"]) == ("anna", "the test")


def test_first_user_disconnects_anonymous_clients(fixture: AuthenticatorFixture) -> None:
    def open_listener_connection(
        url: str, logs_in: bool, peer_user: str = ""
    ) -> tuple[ConnectionAccess, StubTransport]:
        transport = StubTransport("10.0.0.1:5", peer_user)
        access = fixture.authenticator.open(transport, Url.parse(url), "", logs_in=logs_in)  # type: ignore[arg-type]
        return access, transport

    unaffected = [
        open_listener_connection("phpmq://", False),
        open_listener_connection("msglite://", False),
    ]
    closed = [
        open_listener_connection("vibemq://", True),
        open_listener_connection("jmq://", True, "anna"),
    ]
    certified = open_listener_connection("phpmq://", False, "anna")
    local = StubTransport("unix")
    admin = fixture.authenticator.open_local(local)  # type: ignore[arg-type]
    access, _ = open_listener_connection("vibemq://", True)
    del access
    fixture.add("anna", "right")
    fixture.authenticator.refresh()
    assert not any(transport.disconnect_reason for _, transport in closed), (
        "disconnected within the call"
    )
    fixture.loop.run_one()
    assert all(
        "requires a login" in transport.disconnect_reason for _, transport in [*closed, certified]
    )
    assert not any(transport.disconnect_reason for _, transport in unaffected)
    assert not local.disconnect_reason
    assert admin.guest is not None
    fixture.add("bert", "right")
    fixture.authenticator.refresh()
    assert fixture.loop.idle


@pytest.mark.parametrize("required", ["always", "never"])
def test_users_change_nothing_where_required_does_not_depend_on_them(
    tmp_path: Path, required: str
) -> None:
    fixture = AuthenticatorFixture(tmp_path, required=required)
    access, transport = fixture.open()
    _certified_access, certified_transport = fixture.open(peer_user="anna")
    fixture.add("anna", "right")
    fixture.authenticator.refresh()
    while not fixture.loop.idle:
        fixture.loop.run_one()
    assert transport.disconnect_reason == ""
    assert (access.guest is None) == (required == "always")
    # the connection has all permissions only because its certificate named no user
    assert bool(certified_transport.disconnect_reason) == (required == "never")
    fixture.close()


def test_removal_of_all_users_does_not_disable_logins(fixture: AuthenticatorFixture) -> None:
    fixture.add("anna", "right")
    assert fixture.open()[0].guest is None
    fixture.store.change(lambda database: records.remove_user(database, "anna", force=True), "")
    assert fixture.open()[0].guest is None
    assert isinstance(fixture.login("anna", "right"), AuthenticationFailed)


@pytest.mark.parametrize("content", [None, "{", ""])
def test_lost_or_damaged_database_keeps_the_users(
    fixture: AuthenticatorFixture, log: list[dict[str, Any]], content: str | None
) -> None:
    fixture.add("anna", "right")
    assert fixture.login("anna", "right").name == "anna"
    path = fixture.store.path
    original = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_text(content)
    for _ in range(3):
        assert fixture.login("anna", "right").name == "anna"
    warnings = [entry for entry in log if entry["event"] == "the users stay as they were"]
    assert len(warnings) == 1
    assert str(path) in warnings[0]["error"]
    path.write_bytes(original.replace(b"anna", b"bert"))
    assert fixture.login("bert", "right").name == "bert"


def test_damaged_database_prevents_the_start(fixture: AuthenticatorFixture) -> None:
    fixture.store.path.write_text("{")
    with pytest.raises(ConfigurationError, match=r"users\.json"):
        fixture.make_authenticator()


def test_permissions_are_those_at_login(fixture: AuthenticatorFixture) -> None:
    fixture.add("anna", "right")
    before = fixture.login("anna", "right")
    fixture.store.change(lambda db: records.grant(db, "anna", CONSUME, 2), "")
    after = fixture.login("anna", "right")
    assert not before.may(Operation.CONSUME, "orders.new")
    assert after.may(Operation.CONSUME, "orders.new")


# --- changes over a protocol --------------------------------------------------------------------


def password_change(access: ConnectionAccess, name: str, password: str, *, new: bool) -> Change:
    assert access.users is not None
    requested = UserRequest(password=password)
    return functools.partial(
        save_user,
        name=name,
        requested=requested,
        hash_password=access.users.hash,
        now=access.users.now(),
        new=new,
    )


class Admin:
    """A connection of a superuser."""

    def __init__(self, fixture: AuthenticatorFixture) -> None:
        self.fixture = fixture
        fixture.add("root", "right", superuser=True)
        self.access, self.transport = fixture.open("10.0.0.9:7")
        fixture.begin_login(self.access, self.transport.peer, Credentials("root", "right"))
        self.wait()

    def wait(self) -> None:
        while not self.transport.calls:
            self.fixture.loop.run_one()
        self.transport.calls.pop()()

    def create(self, name: str, password: str) -> SluiceError | None:
        return self.change(password_change(self.access, name, password, new=True))

    def set_password(self, name: str, password: str) -> SluiceError | None:
        return self.change(password_change(self.access, name, password, new=False))

    def change(self, change: Change) -> SluiceError | None:
        outcomes: list[SluiceError | None] = []
        self.access.change(change, outcomes.append)
        assert outcomes == []
        self.wait()
        return outcomes[0]


def test_superuser_changes_users_over_a_protocol(
    fixture: AuthenticatorFixture, log: list[dict[str, Any]]
) -> None:
    admin = Admin(fixture)
    users = admin.access.users
    assert users is not None
    now = users.now()
    assert admin.create("anna", "secret") is None
    assert isinstance(admin.create("anna", "secret"), UserExists)
    assert isinstance(admin.create("a b", "x"), AccessError)
    assert admin.change(lambda database: records.grant(database, "anna", CONSUME, now)) is None
    assert users.database.rights("anna") == (CONSUME,)
    assert users.database.rights("unknown") == ()
    users_by_name = users.database.users
    assert [(name, a.superuser) for name, a in sorted(users_by_name.items())] == [
        ("anna", False),
        ("root", True),
    ]
    assert users_by_name["anna"].created == fixture.now
    assert admin.change(lambda database: records.revoke(database, "anna", "orders.*", now)) is None
    assert admin.change(lambda database: records.revoke(database, "anna", "orders.*", now)) is None
    assert users.database.rights("anna") == ()
    password_hash = fixture.store.read().users["anna"].password
    assert admin.set_password("anna", "other") is None
    assert fixture.store.read().users["anna"].password != password_hash
    assert isinstance(admin.set_password("unknown", "other"), UserNotFound)
    assert isinstance(
        admin.change(lambda database: records.remove_user(database, "root")), AccessDenied
    )
    assert admin.change(lambda database: records.remove_user(database, "anna")) is None
    assert isinstance(
        admin.change(lambda database: records.remove_user(database, "anna")), UserNotFound
    )
    events = [entry for entry in log if entry["event"].startswith("user ")]
    assert [entry["event"] for entry in events] == [
        "user added",
        "user changed",
        "user changed",
        "user changed",
        "user removed",
    ]
    assert {entry["changed_by"] for entry in events} == {"root at 10.0.0.9:7"}
    assert [entry.get("changed") for entry in events[1:4]] == [
        "permissions",
        "permissions",
        "password",
    ]
    assert "secret" not in str(log)
    assert "argon2" not in str(log)


def test_pending_changes_of_one_user_do_not_block_others(
    fixture: AuthenticatorFixture,
) -> None:
    admin = Admin(fixture)
    fixture.add("anna", "right")
    access, transport = fixture.open()
    fixture.begin_login(access, transport.peer, Credentials("anna", "right"))
    while not transport.calls:
        fixture.loop.run_one()
    transport.calls.pop()()
    outcomes: list[SluiceError | None] = []
    for number in range(MAX_CHANGES):
        change = password_change(access, "anna", f"new {number}", new=False)
        access.change(change, outcomes.append)
    assert admin.create("bert", "secret") is None
    while len(transport.calls) < MAX_CHANGES:
        fixture.loop.run_one()
    for call in transport.calls:
        call()
    assert outcomes.count(None) == MAX_OWN_CHANGES
    access.change(password_change(access, "anna", "last", new=False), outcomes.append)
    fixture.loop.run_one()
    transport.calls.pop()()
    assert outcomes[-1] is None


def test_new_password_renews_only_an_existing_digest(fixture: AuthenticatorFixture) -> None:
    admin = Admin(fixture)
    fixture.add("guest", "x", digest="1f")
    fixture.add("anna", "x")
    assert admin.set_password("guest", "guest") is None
    assert admin.set_password("anna", "guest") is None
    users = fixture.store.read().users
    assert users["guest"].digest == "-2c3c4a34aa2c392f39edd112333c230d"
    assert users["anna"].digest == ""


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (OSError(28, "No space left on device"), LowDiskSpace),
        (OSError(5, "No space, or so"), AccessError),
        (MemoryError("No space"), AccessError),
    ],
)
def test_change_that_cannot_be_written_is_reported_without_details(
    fixture: AuthenticatorFixture,
    log: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    reported: type[SluiceError],
) -> None:
    admin = Admin(fixture)

    def fail_to_write(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("sluicemq.security.records.write_atomically", fail_to_write)
    outcome = admin.create("anna", "secret")
    assert type(outcome) is reported
    assert "No space" not in str(outcome)
    assert any("No space" in str(entry.get("error")) for entry in log)
    monkeypatch.undo()
    assert admin.create("anna", "secret") is None


def test_denials_are_logged_unless_the_audit_log_is_disabled(
    fixture: AuthenticatorFixture, log: list[dict[str, Any]]
) -> None:
    access, _ = fixture.open()
    access.log_denied("10.0.0.1:5", Identity("anna"), "produce a\x1b[31m" + "x" * 1000)
    (entry,) = log
    assert entry["event"] == "denied"
    assert entry["user"] == "anna"
    assert entry["logger"] == "sluicemq.audit"
    assert entry["operation"].startswith("produce a\\x1b[31mxxx")
    assert len(entry["operation"]) < 400
    fixture.settings = replace(fixture.settings, audit_log=False)
    authenticator = fixture.make_authenticator()
    transport: Any = StubTransport("10.0.0.1:5")
    authenticator.open(transport, Url.parse("vibemq://"), "", logs_in=True).log_denied(
        "x", Identity("anna"), "y"
    )
    assert len(log) == 1


def test_an_address_cannot_fill_the_audit_log(
    fixture: AuthenticatorFixture, log: list[dict[str, Any]]
) -> None:
    access, _ = fixture.open()
    audit = fixture.authenticator.audit
    for number in range(MAX_PER_MINUTE + 7):
        access.log_denied(f"10.0.0.1:{number}", Identity(""), "produce a")
    access.log_denied("10.0.0.2:5", Identity(""), "produce b")
    assert len(log) == MAX_PER_MINUTE + 1
    assert log[-1]["peer"] == "10.0.0.2:5"
    fixture.now += 60
    access.log_denied("10.0.0.1:9", Identity(""), "produce c")
    assert [entry.get("operation") for entry in log[-2:]] == [None, "produce c"]
    assert (log[-2]["event"], log[-2]["peer"], log[-2]["omitted"]) == ("denied", "10.0.0.1", 7)
    assert [entry.omitted for entry in audit.recent()[:2]] == [0, 7]
    assert audit.counts["denied"] == MAX_PER_MINUTE + 9


def test_refused_changes_cannot_fill_the_audit_log(
    fixture: AuthenticatorFixture, log: list[dict[str, Any]]
) -> None:
    audit = fixture.authenticator.audit
    for result in ("403", "done"):
        for _ in range(MAX_PER_MINUTE + 1):
            audit.log_change("10.0.0.1:5", "anna", "purgeDestination", "POST /purge", result)
    assert [entry["result"] for entry in log].count("403") == MAX_PER_MINUTE
    assert [entry["result"] for entry in log].count("done") == MAX_PER_MINUTE + 1


def test_many_addresses_cannot_fill_the_audit_log(
    fixture: AuthenticatorFixture, log: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicemq.security.audit.MAX_SOURCES", 2)
    access, _ = fixture.open()
    for number in range(MAX_PER_MINUTE + 5):
        access.log_denied(f"10.0.0.{number}:1", Identity(""), "produce a")
    assert len(log) == MAX_PER_MINUTE + 2
    fixture.now += 60
    entry = fixture.authenticator.audit.recent()[0]
    assert (entry.peer, entry.omitted) == ("other addresses", 3)


def test_minimum_length_holds_for_users_that_a_protocol_adds(tmp_path: Path) -> None:
    fixture = AuthenticatorFixture(tmp_path, min_password_length=12)
    fixture.add("root", "right", superuser=True)
    access, transport = fixture.open()
    outcomes: list[SluiceError | None] = []
    for name, password in (
        ("anna", "12345678901"),
        ("root", "12345678901"),
        ("bert", "123456789012"),
    ):
        change = password_change(access, name, password, new=name != "root")
        access.change(change, outcomes.append)
    while len(transport.calls) < 3:
        fixture.loop.run_one()
    for call in transport.calls:
        call()
    assert [outcome is None for outcome in outcomes] == [False, False, True]
    assert "requires 12" in str(outcomes[0])
    assert fixture.store.read().users.keys() == {"root", "bert"}
    fixture.close()
