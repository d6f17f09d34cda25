"""Logins replace bcrypt hashes of migrated VibeMQ users without affecting the users."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicemq.management.users import UserRequest
from sluicemq.model.errors import AuthenticationFailed
from sluicemq.security import records
from sluicemq.security.access import Credentials
from sluicemq.security.logins import MAX_REPLACED
from sluicemq.security.passwords import hash_password, verify
from sluicemq.security.records import (
    Database,
    UserRecord,
    UserSnapshot,
    change_user,
    decode,
    encode,
)
from tests.security.test_authenticator import AuthenticatorFixture
from tests.security.test_authenticator import log as log
from tests.security.test_legacy_hashes import bcrypt_of


class MigratedUsers(AuthenticatorFixture):
    """An authenticator that verifies hashes. The first check waits until `pause` is set."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self.pause: threading.Event | None = None

    def _verify(self, stored: str, password: str, highest: int) -> bool:
        self.compared.append((stored, password))
        pause, self.pause = self.pause, None
        if pause is not None:
            assert pause.wait(60)
        return verify(stored, password, highest)

    def add_migrated(self, name: str, password: str) -> str:
        password_hash = bcrypt_of(password)
        record = UserRecord(password=password_hash, created=1, updated=1)
        self.store.change(lambda database: records.add_user(database, name, record), "the test")
        return password_hash

    def stored(self, name: str) -> str:
        return self.store.read().users[name].password

    def wait_until_replaced(self, name: str) -> None:
        """Run the loop until the authenticator has another hash of the user."""
        before = self.authenticator.user_snapshot.hash_of(name)
        while self.authenticator.user_snapshot.hash_of(name) == before:
            self.loop.run_one()

    def run_until_idle(self) -> None:
        """Run the loop and the thread of user changes until both are idle."""
        self.authenticator._changes.submit(int).result(60)
        while not self.loop.idle:
            self.loop.run_one()
            self.authenticator._changes.submit(int).result(60)


@pytest.fixture
def users(tmp_path: Path) -> Iterator[MigratedUsers]:
    users = MigratedUsers(tmp_path)
    yield users
    users.close()


def test_first_login_replaces_the_hash(users: MigratedUsers, log: list[dict[str, Any]]) -> None:
    users.add_migrated("anna", "right")
    assert isinstance(users.login("anna", "wrong"), AuthenticationFailed)
    users.run_until_idle()
    assert users.stored("anna").startswith("$2b$04$")
    assert users.login("anna", "right").name == "anna"
    users.wait_until_replaced("anna")
    assert verify(users.stored("anna"), "right")
    assert users.stored("anna").startswith("$argon2id$")
    assert users.store.read().users["anna"].updated == 1
    assert users.authenticator.user_snapshot.highest_cost == 0
    (change,) = [entry for entry in log if entry["event"] == "user changed"]
    assert change["changed"] == "password"
    assert change["changed_by"].startswith("the broker (bcrypt replaced")
    assert "right" not in str(log)
    assert "$2b$" not in str(log)
    assert "argon2id$" not in str(log)


def test_sessions_continue_after_the_replacement(users: MigratedUsers) -> None:
    users.add_migrated("anna", "right")
    login_handle = users.authenticator.login_handle(Credentials("anna", "right"))
    assert users.login("anna", "right").name == "anna"
    users.wait_until_replaced("anna")
    session = login_handle()
    assert session is not None
    assert session.name == "anna"
    compared = len(users.compared)
    assert users.login("anna", "right").name == "anna"
    assert len(users.compared) == compared, "a verified password was checked again"
    assert users.login("anna", "right", peer="10.9.9.9:1").name == "anna"
    assert isinstance(users.login("anna", "wrong"), AuthenticationFailed)
    # a new password ends sessions and logins, as for other users
    new = hash_password("new")
    users.store.change(
        lambda db: change_user(db, "anna", UserRequest(password="new"), new, "", 5), ""
    )
    assert login_handle() is None
    assert isinstance(users.login("anna", "right"), AuthenticationFailed)
    assert users.login("anna", "new").name == "anna"


@pytest.mark.parametrize(("password", "admitted"), [("right", True), ("wrong", False)])
def test_login_during_the_replacement_is_decided_correctly(
    users: MigratedUsers, password: str, admitted: bool
) -> None:
    """The hash is replaced between the beginning and the end of the check."""
    users.add_migrated("anna", "right")
    users.pause = threading.Event()
    pause = users.pause
    access, transport = users.open("10.0.0.2:7")
    results = users.begin_login(access, transport.peer, Credentials("anna", password))
    assert users.login("anna", "right").name == "anna"
    users.wait_until_replaced("anna")
    pause.set()
    while not transport.calls:
        users.loop.run_one()
    transport.calls.pop()()
    assert isinstance(results[0], AuthenticationFailed) is not admitted


def test_password_changed_meanwhile_is_not_replaced(users: MigratedUsers) -> None:
    password_hash = users.add_migrated("anna", "right")
    new = hash_password("new")
    users.store.change(
        lambda db: change_user(db, "anna", UserRequest(password="new"), new, "", 5), ""
    )
    database = users.store.read()
    replaced = records.replace_hashes(
        database, {"anna": (password_hash, "x"), "gone": (password_hash, "x")}
    )
    assert replaced is database


def test_hash_is_kept_if_the_file_cannot_be_written(
    users: MigratedUsers, log: list[dict[str, Any]]
) -> None:
    password_hash = users.add_migrated("anna", "right")
    users.add_migrated("bert", "other")
    lock = users.store.path.with_name("users.json.lock")
    lock.unlink()
    lock.mkdir()  # not even root can change the file then
    for peer in ("10.0.0.1:5", "10.0.0.1:6", "10.0.0.2:5"):
        assert users.login("anna", "right", peer=peer).name == "anna"
        assert users.login("bert", "other", peer=peer).name == "bert"
        users.run_until_idle()
    assert users.stored("anna") == password_hash
    warnings = [entry for entry in log if entry["log_level"] in ("warning", "error")]
    assert [entry["event"] for entry in warnings] == [
        "bcrypt hashes stay, because the user database cannot be changed"
    ]
    # after a change by another process, the replacement is tried again
    lock.rmdir()
    users.add("carl", "x")
    assert users.login("anna", "right").name == "anna"
    users.wait_until_replaced("anna")
    assert verify(users.stored("anna"), "right")


def test_many_users_are_replaced_in_few_changes(users: MigratedUsers, log: list[Any]) -> None:
    names = [f"user{number}" for number in range(2 * MAX_REPLACED + 1)]
    for name in names:
        users.add_migrated(name, name)
    hashes = {name: users.stored(name) for name in names}
    users.authenticator.refresh()
    change_count = 0
    for name, password_hash in hashes.items():
        users.authenticator._upgrades.offer(name, password_hash, name)
    while users.authenticator.user_snapshot.highest_cost:
        before = users.authenticator.user_snapshot
        users.loop.run_one()
        change_count += users.authenticator.user_snapshot is not before
    # the first change is pending when the others are offered
    assert change_count == 3
    assert all(verify(users.stored(name), name) for name in names)


def test_password_too_long_for_argon2_keeps_its_hash(users: MigratedUsers) -> None:
    """VibeMQ accepts passwords of any length; only the first 72 bytes count."""
    password_hash = users.add_migrated("anna", "é" * 36)
    for peer in ("10.0.0.1:5", "10.0.0.2:5"):
        assert users.login("anna", "é" * 1000, peer=peer).name == "anna"
    users.run_until_idle()
    assert users.stored("anna") == password_hash


def test_user_database_stores_bcrypt_hashes() -> None:
    password_hash = bcrypt_of("right")
    user = UserRecord(password=password_hash, created=1, updated=1)
    database = decode(encode(Database(users={"anna": user})), "here")
    assert database.users["anna"].password == password_hash
    assert UserSnapshot(database).highest_cost == 4
