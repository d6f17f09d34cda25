from __future__ import annotations

import pytest
from msgspec import UNSET

from sluicemq.management.users import UserRequest
from sluicemq.model.access import Operation, Permission
from sluicemq.model.errors import AccessDenied, AccessError, UserExists, UserNotFound
from sluicemq.security import records
from sluicemq.security.records import Database, TokenRecord, UserRecord

READ = Permission("a.*", frozenset({Operation.CONSUME}))
WRITE = Permission("a.*", frozenset({Operation.PRODUCE}))
OTHER = Permission("b", frozenset({Operation.BROWSE}))


def user(superuser: bool = False, **fields: object) -> UserRecord:
    return UserRecord(superuser=superuser, created=1, updated=1, **fields)


@pytest.fixture
def database() -> Database:
    return Database(users={"root": user(True), "anna": user()}, roles={"readers": (READ,)})


def test_users_are_added_and_removed(database: Database) -> None:
    changed = records.add_user(database, "bert", user(roles=("readers",)))
    assert [*changed.users] == ["root", "anna", "bert"]
    assert [*database.users] == ["root", "anna"]
    assert [*records.remove_user(changed, "anna").users] == ["root", "bert"]
    with pytest.raises(UserExists):
        records.add_user(database, "anna", user())
    with pytest.raises(AccessError, match="letters"):
        records.add_user(database, "a b", user())
    with pytest.raises(AccessError, match="the role 'x' does not exist"):
        records.add_user(database, "carl", user(roles=("x",)))
    with pytest.raises(UserNotFound):
        records.remove_user(database, "unknown")


def test_last_superuser_is_removed_only_if_forced(database: Database) -> None:
    with pytest.raises(AccessDenied):
        records.remove_user(database, "root")
    assert [*records.remove_user(database, "root", force=True).users] == ["anna"]
    changed = records.add_user(database, "boss", user(True))
    assert "root" not in records.remove_user(changed, "root").users


def test_permission_replaces_that_of_the_same_pattern(database: Database) -> None:
    for permission in (READ, OTHER, WRITE):
        database = records.grant(database, "anna", permission, 7)
    assert database.users["anna"].permissions == (OTHER, WRITE)
    assert database.users["anna"].updated == 7
    database = records.revoke(database, "anna", "a.*", 8)
    database = records.revoke(database, "anna", "none such", 8)
    assert database.users["anna"].permissions == (OTHER,)
    with pytest.raises(UserNotFound):
        records.grant(database, "unknown", READ, 1)
    with pytest.raises(UserNotFound):
        records.revoke(database, "unknown", "x", 1)
    for pattern in ("", "x" * 257):
        with pytest.raises(AccessError, match="pattern"):
            records.grant(database, "anna", Permission(pattern, frozenset()), 1)


def test_roles_are_granted_assigned_and_removed(database: Database) -> None:
    database = records.assign(database, "readers", "anna", 2)
    assert records.assign(database, "readers", "anna", 3) is database
    assert database.rights("anna") == (READ,)
    database = records.grant_role(database, "readers", OTHER)
    assert database.rights("anna") == (READ, OTHER)
    database = records.revoke_role(database, "readers", "a.*")
    assert database.rights("anna") == (OTHER,)
    with pytest.raises(AccessError, match="assigned to anna"):
        records.remove_role(database, "readers")
    database = records.withdraw(database, "readers", "anna", 4)
    assert database.rights("anna") == ()
    assert records.remove_role(database, "readers").roles == {}
    assert records.add_role(database, "writers").roles["writers"] == ()
    for change in (
        lambda: records.add_role(database, "readers"),
        lambda: records.add_role(database, "a b"),
        lambda: records.remove_role(database, "x"),
        lambda: records.grant_role(database, "x", READ),
        lambda: records.assign(database, "x", "anna", 1),
        lambda: records.assign(database, "readers", "unknown", 1),
        lambda: records.withdraw(database, "x", "anna", 1),
    ):
        with pytest.raises(AccessError):
            change()


def test_tokens_are_added_and_removed(database: Database) -> None:
    for name in ("t1", "t2"):
        token = TokenRecord(id=name, sha256="0" * 64, created=1)
        database = records.add_token(database, "anna", token, 5)
    database = records.remove_token(database, "anna", "t1", 6)
    assert [token.id for token in database.users["anna"].tokens] == ["t2"]
    with pytest.raises(AccessError, match="no token 't1'"):
        records.remove_token(database, "anna", "t1", 6)


@pytest.mark.parametrize(
    ("digest", "allow", "expected"),
    [
        ("", None, ""),
        ("1f", None, "2f"),
        ("", True, "2f"),
        ("1f", True, "2f"),
        ("", False, ""),
        ("1f", False, ""),
    ],
)
def test_digest_is_stored_only_if_allowed(
    database: Database, digest: str, allow: bool | None, expected: str
) -> None:
    database = records.add_user(database, "bert", user(password="$argon2id$x", digest=digest))
    requested = UserRequest(password="new", allow_digest=UNSET if allow is None else allow)
    database = records.change_user(database, "bert", requested, "$argon2id$y", "2f", 9)
    assert database.users["bert"].digest == expected
    assert database.users["bert"].password == "$argon2id$y"
    assert database.users["bert"].updated == 9
