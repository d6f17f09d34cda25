"""The users of VibeMQ: found wherever they are, never left out silently, and none needs a new
password."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.vibemq import VibeMQClient
from sluicemq.migrate.source_files import SourceError
from sluicemq.migrate.vibemq import inspect_source
from sluicemq.model.access import Operation
from sluicemq.model.errors import ClientError
from sluicemq.security.passwords import verify
from sluicemq.security.records import Database, UserRecord, UserStore, decode, encode
from tests.cli.conftest import Run
from tests.migrate.conftest import Migrate, not_migrated
from tests.migrate.test_hostile import FEW_EXAMPLES
from tests.migrate.test_vibemq import Store

AUTH = """
CREATE TABLE users (username TEXT PRIMARY KEY, password_hash TEXT NOT NULL,
    is_superuser INTEGER NOT NULL DEFAULT 0, created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL);
CREATE TABLE permissions (id INTEGER PRIMARY KEY AUTOINCREMENT,
    username TEXT NOT NULL REFERENCES users(username) ON DELETE CASCADE,
    queue_pattern TEXT NOT NULL, operations TEXT NOT NULL, created_at INTEGER NOT NULL,
    UNIQUE(username, queue_pattern));
"""
"""Schema of VibeMQ 1.8."""
CREATED = 1_795_373_964
CHIEF = "$2b$12$j8a3swuct5DkpugvSoWLb.mjnS.T/XmzrFJM4kIYZvevPkri6fOlK"
"""Hash that VibeMQ 1.8 stores for its superuser with the password `one-secret`."""
GUARDED = {"SuperuserPassword": "one-secret"}


class AuthDatabase:
    """An auth.db as the original writes it; `chief` is in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(AUTH)
        self.user("chief", CHIEF, superuser=1)

    def execute(self, sql: str, *values: object) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(sql, values)

    def user(self, name: str, stored: str, superuser: int = 0) -> None:
        values = (name, stored, superuser, CREATED, CREATED)
        self.execute("INSERT INTO users VALUES (?, ?, ?, ?, ?)", *values)

    def grant(self, user: str, pattern: str, operations: str) -> None:
        self.execute(
            "INSERT INTO permissions (username, queue_pattern, operations, created_at)"
            " VALUES (?, ?, ?, 1)",
            *(user, pattern, operations),
        )


def bcrypt_of(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with a vibemq.db."""
    directory = tmp_path / "vibemq"
    directory.mkdir()
    Store(directory / "vibemq.db").queue("orders")
    return directory


@pytest.fixture
def auth(source: Path) -> AuthDatabase:
    return AuthDatabase(source / "auth.db")


def write(directory: Path, name: str = "appsettings.json", **values: Any) -> Path:
    file = directory / name
    file.write_text(json.dumps({"VibeMQ": values}))
    return file


def users(tmp_path: Path) -> dict[str, UserRecord]:
    return UserStore(tmp_path / "data" / "users.json").read().users


# --- passwords -----------------------------------------------------------------------------------


def test_users_log_in_with_their_old_passwords(
    source: Path, auth: AuthDatabase, migrate: Migrate, run: Run, tmp_path: Path
) -> None:
    auth.user("shop", bcrypt_of("pässword €"))
    auth.grant("shop", "orders", "[0, 1]")
    report = migrate("vibemq", source)
    assert report["users"] == [
        {"name": name, "login": "the same password as before", "added": True}
        for name in ("chief", "shop")
    ]
    assert "$2b$" not in json.dumps(report)
    with LocalBroker(tmp_path / "data", ["vibemq://127.0.0.1:0"]) as broker:
        port = broker.port("vibemq")
        options = ("--data-dir", str(tmp_path / "data"))

        def connect(user: str, password: str) -> BlockingClient:
            return BlockingClient(VibeMQClient.connect, port=port, username=user, password=password)

        listing = run("users", "list", *options, "--json").out
        assert [user["password_scheme"] for user in json.loads(listing)] == ["bcrypt", "bcrypt"]
        assert "$2b$" not in listing
        assert "password (bcrypt)" in run("users", "list", *options).out
        with pytest.raises(ClientError):
            connect("shop", "password €")
        with (
            connect("shop", "pässword €") as first,
            connect("shop", "pässword €") as second,
            connect("chief", "one-secret") as chief,
        ):
            # all go on after their hashes have been replaced
            deadline = time.monotonic() + 20
            while "bcrypt" in run("users", "list", *options).out:
                assert time.monotonic() < deadline
            for client in (first, second, chief):
                client.publish("orders", b"1")
            with pytest.raises(ClientError):
                first.publish("others", b"1")
        with connect("shop", "pässword €"), connect("chief", "one-secret"):
            pass
    record = users(tmp_path)["shop"]
    assert record.password.startswith("$argon2id$")
    assert verify(record.password, "pässword €")


def test_users_keep_their_roles_and_permissions(
    source: Path, auth: AuthDatabase, migrate: Migrate, tmp_path: Path
) -> None:
    auth.user("shop", bcrypt_of("x"))
    auth.user("no good name", bcrypt_of("x"))
    auth.grant("shop", "orders.*", "[0, 1, 5]")
    auth.grant("shop", "x", '["Publish", "Fly", [1], true]')
    settings = write(source, Authorization={**GUARDED, "SuperuserUsername": "chief"})
    report = migrate("vibemq", settings)
    assert ("user", "no good name") in not_migrated(report)
    for operation in ("'Fly'", "[1]", "True"):
        assert ("permission", f"{operation} of shop on x") in not_migrated(report)
    assert "one-secret" not in json.dumps(report)
    accounts = users(tmp_path)
    assert (accounts["chief"].superuser, accounts["chief"].password) == (True, CHIEF)
    assert (accounts["shop"].superuser, accounts["shop"].created) == (False, CREATED)
    assert {p.pattern: p.operations for p in accounts["shop"].permissions} == {
        "orders.*": {Operation.PRODUCE, Operation.CONSUME, Operation.BROWSE},
        "x": {Operation.PRODUCE},
    }
    # clients have to log in from now on, so the port may be open
    assert 'url = "vibemq://0.0.0.0:2925"' in report["config"]["text"]
    assert report["config"]["problems"] == []


@pytest.mark.parametrize(
    "stored",
    [CHIEF.replace("$12$", "$16$"), CHIEF.replace("$12$", "$03$"), CHIEF[:-1], "", "PBKDF2$x"],
)
def test_unsupported_hash_is_reported(
    source: Path, auth: AuthDatabase, migrate: Migrate, tmp_path: Path, stored: str
) -> None:
    auth.user("shop", stored)
    report = migrate("vibemq", source)
    assert not_migrated(report) == [("password", "shop")]
    assert "users passwd shop" in report["left"][0]["reason"]
    assert stored not in json.dumps(report) or not stored
    assert users(tmp_path)["shop"].password == ""
    assert users(tmp_path)["chief"].password == CHIEF


def test_existing_users_keep_their_password(
    source: Path, auth: AuthDatabase, migrate: Migrate, tmp_path: Path
) -> None:
    migrate("vibemq", source)
    auth.execute("UPDATE users SET password_hash = ?", bcrypt_of("another"))
    report = migrate("vibemq", source)
    assert report["users"][0]["added"] is False
    assert users(tmp_path)["chief"].password == CHIEF


# --- where they are ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "settings"),
    [
        ("vibemq.db", None),
        ("", None),
        *(
            (path, settings)
            for path in ("vibemq.db", "", "appsettings.json")
            for settings in ({}, {"Authorization": GUARDED})
        ),
    ],
)
def test_auth_db_is_found_by_its_name(
    source: Path,
    auth: AuthDatabase,
    migrate: Migrate,
    named: str,
    settings: dict[str, Any] | None,
) -> None:
    if settings is not None:
        write(source, **settings)
    report = migrate("vibemq", source / named)
    assert [user["name"] for user in report["users"]] == ["chief"]
    assert f"the users are those of {auth.path}" in report["notes"]


@pytest.mark.parametrize(
    "named", ["/app/data/people.sqlite", "people.sqlite", "data/people.sqlite"]
)
def test_path_within_container_is_found_by_its_name(
    source: Path, auth: AuthDatabase, migrate: Migrate, named: str
) -> None:
    auth.path.rename(source / "people.sqlite")
    write(source, Authorization={"DatabasePath": named})
    assert [user["name"] for user in migrate("vibemq", source)["users"]] == ["chief"]


def test_path_in_settings_comes_first(source: Path, auth: AuthDatabase, migrate: Migrate) -> None:
    (source / "data").mkdir()
    other = AuthDatabase(source / "data" / "auth.db")
    other.execute("UPDATE users SET username = 'other'")
    write(source, Authorization={"DatabasePath": "data/auth.db"})
    assert [user["name"] for user in migrate("vibemq", source)["users"]] == ["other"]


def test_store_elsewhere_has_its_users_beside_it(
    source: Path, auth: AuthDatabase, migrate: Migrate, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.mkdir()
    write(config, SqliteStorage={"DatabasePath": str(source / "vibemq.db")})
    assert [user["name"] for user in migrate("vibemq", config)["users"]] == ["chief"]


def test_options_name_files_in_other_places(
    source: Path, auth: AuthDatabase, migrate: Migrate, tmp_path: Path
) -> None:
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    auth.path.rename(directory / "who.db")
    settings = write(directory, "vibe.json", Port=3000, Authorization=GUARDED)
    report = migrate(
        *("vibemq", source / "vibemq.db", "--auth-db", str(directory / "who.db")),
        *("--settings", str(settings)),
    )
    assert [user["name"] for user in report["users"]] == ["chief"]
    assert 'url = "vibemq://0.0.0.0:3000"' in report["config"]["text"]


def refused(run: Run, tmp_path: Path, *arguments: object) -> str:
    """Return the message of a migration that must not be carried out."""
    result = run("migrate", "vibemq", *map(str, arguments), "--to", str(tmp_path / "data"))
    assert result.code == 1
    assert not (tmp_path / "data").exists()
    return result.err


@pytest.mark.parametrize("configured", ["settings", "environment"])
def test_missing_user_database_is_error(
    source: Path, run: Run, migrate: Migrate, tmp_path: Path, configured: str
) -> None:
    options: list[object] = [source]
    if configured == "settings":
        write(source, Authorization={"DatabasePath": "who.db"})
    else:
        file = tmp_path / "vibe.env"
        file.write_text("VibeMQ__Authorization__DatabasePath=who.db\n")
        options += ["--env", file]
    message = refused(run, tmp_path, *options)
    assert "who.db" in message
    assert "--auth-db" in message
    assert "--auth-db" in refused(run, tmp_path, *options, "--dry-run")
    report = migrate("vibemq", *map(Path, options[:1]), *map(str, options[1:]), "--without-users")
    assert ("users", "all") in not_migrated(report)
    assert "vibemq://127.0.0.1:2925" in report["config"]["text"]


def test_database_without_importable_users_is_error(
    source: Path, auth: AuthDatabase, run: Run, tmp_path: Path
) -> None:
    auth.execute("UPDATE users SET username = 'no good name'")
    message = refused(run, tmp_path, source)
    assert "none of its 1 users" in message
    assert "no good name" in message


def test_empty_database_is_error_only_if_users_are_required(
    source: Path, auth: AuthDatabase, run: Run, migrate: Migrate, tmp_path: Path
) -> None:
    auth.execute("DELETE FROM users")
    settings = write(source, Authorization=GUARDED)
    assert "none of its 0 users" in refused(run, tmp_path, source)
    settings.unlink()
    assert migrate("vibemq", source)["users"] == []


def test_missing_signs_of_users_are_reported(source: Path, migrate: Migrate) -> None:
    """In a container Authorization is configured by variables, and auth.db is in no volume."""
    assert not_migrated(migrate("vibemq", source)) == [("users", "all, if there were any")]


def test_database_without_its_log_is_reported(source: Path, run: Run, tmp_path: Path) -> None:
    """All data of a running broker may be in auth.db-wal."""
    database = tmp_path / "made.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.executescript(AUTH)
        (source / "auth.db").write_bytes(database.read_bytes())
    assert "auth.db-wal" in refused(run, tmp_path, source)


# --- the environment -----------------------------------------------------------------------------


def test_environment_is_read_as_docker_does(
    source: Path, auth: AuthDatabase, migrate: Migrate, tmp_path: Path
) -> None:
    auth.path.rename(source / "people.db")
    file = tmp_path / "vibe.env"
    file.write_bytes(
        "\ufeffPATH=/usr/bin\r\n# a comment\r\n\r\nHOSTNAME\n"
        "VibeMQ__Port=3000\r\nvibemq__maxconnections = 77\n"
        'VibeMQ__Authorization__SuperuserPassword="one=secret"\n'
        "VibeMQ__Authorization__DatabasePath=/app/data/people.db\n"
        "VibeMQ__RateLimit__Enabled=False\n"
        "VibeMQ__SupportedCompressions__0=Brotli\n"
        "Logging__LogLevel__Default=Warning\n".encode()
    )
    report = migrate("vibemq", source, "--env", str(file))
    text = report["config"]["text"]
    assert [user["name"] for user in report["users"]] == ["chief"]
    assert 'url = "vibemq://0.0.0.0:3000"\nmax_connections = 77\n' in text
    assert 'level = "warning"' in text
    assert "\ncompression = false" not in text
    assert "one=secret" not in json.dumps(report)
    assert not_migrated(report) == [
        ("setting", "VibeMQ.SupportedCompressions=Brotli"),
        ("setting", "VibeMQ.Authorization.SuperuserPassword"),
    ]


def test_settings_file_counts_more_than_environment(
    source: Path, migrate: Migrate, tmp_path: Path
) -> None:
    """The order is the server's own: appsettings.json, VIBEMQ_CONFIG_PATH, the environment, and
    appsettings.Production.json."""
    write(source, Port=3001)
    write(source, "more.json", Port=3002, MaxConnections=12)
    write(source, "appsettings.Production.json", Port=3003, MaxConnections=13, MaxMessageSize=5000)
    file = tmp_path / "vibe.env"
    lines = (
        *("VIBEMQ_CONFIG_PATH=/app/config/more.json", "VibeMQ__Port=3004"),
        *("VibeMQ__MaxConnections=14", "VibeMQ__MaxMessageSize=6000"),
        "VibeMQ__CompressionThreshold=7",
    )
    file.write_text("\n".join(lines))
    report = migrate("vibemq", source, "--env", str(file))
    text = report["config"]["text"]
    assert "vibemq://127.0.0.1:3001" in text
    assert "max_connections = 12\nmax_frame_bytes = 6000\ncompression_threshold = 7\n" in text
    (note,) = [note for note in report["notes"] if "environment" in note]
    assert "VibeMQ.MaxConnections, VibeMQ.Port;" in note


def test_environment_names_settings_file(
    source: Path, run: Run, migrate: Migrate, tmp_path: Path
) -> None:
    file = tmp_path / "vibe.env"
    file.write_text("VIBEMQ_CONFIG_PATH=/app/my.json\n")
    message = refused(run, tmp_path, source, "--env", file)
    assert "/app/my.json" in message
    assert "--settings" in message
    settings = write(tmp_path, "theirs.json", Port=3005)
    report = migrate("vibemq", source, "--env", str(file), "--settings", str(settings))
    assert "vibemq://127.0.0.1:3005" in report["config"]["text"]
    assert ("users", "all, if there were any") not in not_migrated(report)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"VibeMQ__Port=1\nVibeMQ__TLS__Enabled\n", "line 2"),
        (b"VibeMQ__Port=many\n", "VibeMQ.Port"),
        (b"A=1\nB=\xff\n", "byte 6"),
    ],
)
def test_damage_in_environment_is_reported_with_its_place(
    source: Path, run: Run, tmp_path: Path, content: bytes, place: str
) -> None:
    file = tmp_path / "vibe.env"
    file.write_bytes(content)
    message = refused(run, tmp_path, source, "--env", file)
    assert "vibe.env" in message
    assert place in message


def test_options_that_contradict_each_other_are_refused(
    source: Path, auth: AuthDatabase, run: Run, tmp_path: Path
) -> None:
    settings = write(source)
    refused(run, tmp_path, settings, "--settings", settings)
    options = ("--auth-db", str(auth.path), "--without-users")
    assert run("migrate", "vibemq", str(source), "--to", "data", *options).code == 2


CELL = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.text() | st.binary()


@FEW_EXAMPLES
@given(
    st.lists(st.tuples(CELL, CELL, CELL, CELL, CELL), max_size=3),
    st.lists(st.tuples(CELL, CELL, CELL), max_size=3),
)
def test_cells_of_any_type_give_users_or_an_error(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[object, ...]],
    grants: list[tuple[object, ...]],
) -> None:
    directory = tmp_path_factory.mktemp("vibemq")
    with closing(sqlite3.connect(directory / "auth.db")) as connection, connection:
        connection.execute(
            "CREATE TABLE users (username, password_hash, is_superuser, created_at, updated_at)"
        )
        connection.execute(
            "CREATE TABLE permissions (id INTEGER PRIMARY KEY, username, queue_pattern, operations)"
        )
        connection.executemany("INSERT INTO users VALUES (?, ?, ?, ?, ?)", rows)
        connection.executemany("INSERT INTO permissions VALUES (NULL, ?, ?, ?)", grants)
    write(directory)
    with suppress(SourceError):
        decode(
            encode(Database(users=dict(inspect_source(directory, None).users))), "the plan's users"
        )


NAMES = (
    *("VibeMQ__Port", "VibeMQ__Authorization__DatabasePath", "VIBEMQ_CONFIG_PATH"),
    *("VibeMQ__A__0", "VibeMQ__A", "VibeMQ", "DOTNET_ENVIRONMENT"),
)


@FEW_EXAMPLES
@given(
    st.lists(
        st.text(max_size=20)
        | st.tuples(
            st.sampled_from(NAMES),
            st.sampled_from(["=", "", "__0=", "__=", ":"]),
            st.text(max_size=10),
        ).map("".join)
    )
)
def test_lines_of_any_kind_give_settings_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    directory = tmp_path_factory.mktemp("vibemq")
    file = directory / "vibe.env"
    file.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
    with suppress(SourceError):
        inspect_source(directory, None, environment=file)
