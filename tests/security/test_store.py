from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.access import Operation, Permission, is_role_name
from sluicemq.model.errors import AccessError, ConfigurationError
from sluicemq.security import records
from sluicemq.security.files import read_bounded
from sluicemq.security.records import Database, TokenRecord, UserRecord, UserStore, decode, encode

_numbers = st.integers(0, 2**40)
_names = st.text("abcÄ-_.@", min_size=1, max_size=8).filter(is_role_name)
_permissions = st.lists(
    st.builds(
        Permission,
        st.text(min_size=1, max_size=8).filter(lambda text: text.isprintable()),
        st.frozensets(st.sampled_from(Operation)),
    ),
    max_size=3,
).map(tuple)
_tokens = st.builds(
    TokenRecord,
    id=_names,
    sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    label=st.text("xyz", max_size=4),
    created=_numbers,
    expires=_numbers,
)


@st.composite
def databases(draw: st.DrawFn) -> Database:
    roles = draw(st.dictionaries(_names, _permissions, max_size=3))
    users = st.builds(
        UserRecord,
        password=st.sampled_from(["", "$argon2id$v=19$m=8,t=1,p=1$c2FsdA$aGFzaA"]),
        digest=st.sampled_from(["", "-2c3c4a34aa2c392f39edd112333c230d", "7"]),
        superuser=st.booleans(),
        permissions=_permissions,
        roles=(st.lists(st.sampled_from(sorted(roles))).map(tuple) if roles else st.just(())),
        tokens=st.lists(_tokens, max_size=2).map(tuple),
        created=_numbers,
        updated=_numbers,
    )
    return Database(
        changed_by=draw(st.text(max_size=5).filter(str.isprintable)),
        users=draw(st.dictionaries(_names, users, max_size=3)),
        roles=roles,
    )


@given(databases())
def test_database_is_equal_after_a_round_trip(database: Database) -> None:
    content = encode(database)
    assert decode(content, "x") == database
    assert encode(decode(content, "x")) == content


def add(name: str) -> records.Change:
    return lambda database: records.add_user(database, name, UserRecord(created=1, updated=1))


def test_no_file_means_no_users(tmp_path: Path) -> None:
    users = UserStore(tmp_path / "users.json")
    assert users.read() == Database()


def test_readers_see_every_change(tmp_path: Path) -> None:
    writer, reader = UserStore(tmp_path / "users.json"), UserStore(tmp_path / "users.json")
    reader.read()
    for number in range(50):
        writer.change(add(f"u{number}"), "a test")
        assert len(reader.read().users) == number + 1
    assert reader.read() is reader.read()
    assert reader.read().changed_by == "a test"


def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    users = UserStore(tmp_path / "users.json")
    before = os.umask(0)
    try:
        users.change(add("anna"), "")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


def test_root_leaves_the_file_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        os.chmod(tmp_path, 0o700)  # the process is the owner already
    else:
        os.chown(tmp_path, 12345, 54321)
    UserStore(tmp_path / "users.json").change(add("anna"), "")
    directory = tmp_path.stat()
    owners = {(file.stat().st_uid, file.stat().st_gid) for file in tmp_path.iterdir()}
    assert owners == {(directory.st_uid, directory.st_gid)}


@pytest.mark.parametrize("call", ["write_at", "fsync", "rename"])
def test_crash_in_the_middle_leaves_the_old_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    users = UserStore(tmp_path / "users.json")
    users.change(add("anna"), "")

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        module = "sluicemq.journal.files."
        patch.setattr(module + ("write_at" if call == "write_at" else f"os.{call}"), kill)
        with pytest.raises(Killed):
            users.change(add("bert"), "")
    assert [*UserStore(users.path).read().users] == ["anna"]
    users.change(add("carl"), "")  # the lock is free and the remains are no hindrance
    assert [*UserStore(users.path).read().users] == ["anna", "carl"]


def test_rejected_change_changes_nothing(tmp_path: Path) -> None:
    users = UserStore(tmp_path / "users.json")
    users.change(add("anna"), "")
    content = users.path.read_bytes()
    with pytest.raises(AccessError):
        users.change(add("anna"), "another")
    assert users.path.read_bytes() == content


def _add_many(path: Path, prefix: str) -> None:
    # a process that changes the file repeatedly may block the other until it has finished
    pytest.MonkeyPatch().setattr(records, "LOCK_SECONDS", 300.0)
    for number in range(25):
        UserStore(path).change(add(f"{prefix}{number}"), prefix)


def test_two_processes_do_not_overwrite_each_other(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_add_many, args=(path, prefix)) for prefix in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(300)
        assert writer.exitcode == 0
    assert len(UserStore(path).read().users) == 50


def test_wait_for_a_lock_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LOCK_SECONDS", 0.05)
    users, other = UserStore(tmp_path / "users.json"), UserStore(tmp_path / "users.json")

    def change_concurrently(database: Database) -> Database:
        with pytest.raises(AccessError, match="another process"):
            other.change(add("bert"), "")
        return add("anna")(database)

    users.change(change_concurrently, "")
    other.change(add("bert"), "")
    assert [*users.read().users] == ["anna", "bert"]


VALID_FILE = encode(
    Database(
        users={"anna": UserRecord(created=1, updated=1, roles=("r",))},
        roles={"r": (Permission("*", frozenset({Operation.BROWSE})),)},
    )
).decode()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "is not a user database"),
        ("{", "is not a user database"),
        (VALID_FILE[: len(VALID_FILE) // 2], "is not a user database"),
        ("[]", "is not a user database"),
        ("{}", "version"),
        (VALID_FILE.replace('"version": 1', '"version": 2'), "newer"),
        (VALID_FILE.replace('"version": 1', '"version": "1"'), "is not a user database"),
        (VALID_FILE.replace('"superuser"', '"superUser"'), "superUser"),
        (VALID_FILE.replace('"anna"', '"an na"'), "an na"),
        (VALID_FILE.replace('"browse"', '"brows"'), "brows"),
        (VALID_FILE.replace('"*"', '""'), "pattern"),
        (VALID_FILE.replace('"r"\n', '"s"\n'), "no role 's'"),
        (VALID_FILE.replace('"password": ""', '"password": "secret"'), "argon2id"),
        (VALID_FILE.replace('"digest": ""', '"digest": "secret"'), "digest"),
        ("[" * 100_000, "is not a user database"),
        ("\udcff", "is not a user database"),
    ],
)
def test_malformed_user_databases_are_explained(tmp_path: Path, content: str, error: str) -> None:
    path = tmp_path / "users.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    users = UserStore(path)
    for call in (users.read, lambda: users.change(add("bert"), "")):
        with pytest.raises(ConfigurationError) as caught:
            call()
        assert str(caught.value).startswith(str(path))
        assert error in str(caught.value)
    assert path.read_bytes() == content.encode("utf-8", "surrogateescape")
    path.write_text(VALID_FILE)
    assert [*users.read().users] == ["anna"]


def test_damaged_file_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users.json"
    path.write_text(VALID_FILE[:-2])
    decoded: list[bytes] = []

    def count(content: bytes, source: str) -> Database:
        decoded.append(content)
        return decode(content, source)

    monkeypatch.setattr(records, "decode", count)
    users = UserStore(path)
    for _ in range(3):
        with pytest.raises(ConfigurationError, match="is not a user database"):
            users.read()
    assert len(decoded) == 1
    path.unlink()
    assert users.read() == Database()


def test_own_changes_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding 10,000 users takes 70 ms, on the event loop if `read` does it."""
    decoded: list[str] = []

    def count(content: bytes, source: str) -> Database:
        decoded.append(source)
        return decode(content, source)

    monkeypatch.setattr(records, "decode", count)
    users = UserStore(tmp_path / "users.json")
    users.change(add("anna"), "")
    after = users.change(add("bert"), "a test")
    assert users.read() is after
    assert decoded == []
    other = UserStore(users.path)
    assert other.read() == after
    other.change(add("carl"), "")
    assert [*users.read().users] == ["anna", "bert", "carl"]
    assert len(decoded) == 2


def test_file_that_replaces_a_change_at_once_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = UserStore(tmp_path / "users.json")

    def write(path: Path, content: bytes, *, mode: int) -> None:
        path.write_text(VALID_FILE)

    monkeypatch.setattr(records, "write_atomically", write)
    users.change(add("bert"), "")
    assert [*users.read().users] == ["anna"]


def test_written_change_succeeds_if_the_file_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Path, limit: int) -> bytes:
        raise ConfigurationError(f"{file}: the file cannot be read: Too many open files")

    users = UserStore(tmp_path / "users.json")
    with monkeypatch.context() as patch:
        patch.setattr(records, "read_bounded", refuse)
        users.change(add("anna"), "")
    assert [*users.read().users] == ["anna"]


def test_too_large_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users.json"
    path.write_text(VALID_FILE)
    users = UserStore(path)
    before = users.read()
    monkeypatch.setattr(records, "MAX_FILE", len(VALID_FILE))
    path.write_text(VALID_FILE + " ")
    read: list[Path] = []

    def count(path: Path, limit: int) -> bytes:
        read.append(path)
        return read_bounded(path, limit)

    monkeypatch.setattr(records, "read_bounded", count)
    for _ in range(3):  # as often as requests refresh the users
        with pytest.raises(ConfigurationError, match=f"larger than {len(VALID_FILE)} bytes"):
            users.read()
    assert not read
    path.write_text(VALID_FILE)
    assert users.read() == before
    assert read == [path]


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "users.json").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        UserStore(tmp_path / "users.json").read()


def test_change_does_not_replace_a_file_that_it_cannot_read(tmp_path: Path) -> None:
    users = UserStore(tmp_path / "users.json")
    users.path.symlink_to(users.path)  # stat fails for another reason than a missing file
    for call in (users.read, lambda: users.change(add("anna"), "")):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            call()
    assert users.path.is_symlink()


def test_tokens_are_stored_as_hashes_only() -> None:
    fields = {field.name for field in msgspec.structs.fields(TokenRecord)}
    assert fields == {"id", "sha256", "label", "created", "expires"}


def test_change_beyond_the_readable_size_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_FILE", 500)
    store = UserStore(tmp_path / "users.json")
    store.change(lambda db: records.add_role(db, "writers"), "a test")
    with pytest.raises(AccessError, match="more than 500 bytes"):
        store.change(lambda db: records.add_role(db, "readers"), "x" * 500)
    assert list(store.read().roles) == ["writers"]
