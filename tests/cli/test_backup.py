"""`sluicemq backup` and `restore`, of brokers that run and that do not."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from tests.cli.conftest import Run

MESSAGES = [b"%d" % number for number in range(300)]


@pytest.fixture
def broker(tmp_path: Path) -> LocalBroker:
    """Return a broker that is not started."""
    backup_dir = tmp_path / "home"
    backup_dir.mkdir()
    urls = ["phpmq://127.0.0.1:0", "http://127.0.0.1:0"]
    environment = {"SLUICEMQ_BROKER__BACKUP_DIR": str(backup_dir), "SLUICEMQ_JMQ__INSTANCE": "mine"}
    return LocalBroker(tmp_path / "data", urls, environment=environment)


def send(broker: LocalBroker) -> None:
    with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client:
        for body in MESSAGES:
            client.send("orders", body)


def receive_all(directory: Path) -> list[bytes]:
    """Return the messages that a broker with the data directory delivers."""
    with (
        LocalBroker(directory, ["phpmq://127.0.0.1:0"]) as broker,
        BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client,
    ):
        client.send("orders", b"the end")
        client.subscribe("orders", 1000)
        bodies = []
        while (message := client.receive(20)).body != b"the end":
            bodies.append(message.body)
            message.ack()
        return bodies


def test_backup_on_a_full_disk_names_its_directory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk(*_: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sluicemq.cli.journal.create_backup", fill_disk)
    result = run("backup", "create", "backup", "--data-dir", str(tmp_path))
    assert (result.code, result.err) == (1, "error: backup: No space left on device\n")


def test_back_up_a_running_broker_and_restore_it(
    run: Run, broker: LocalBroker, tmp_path: Path
) -> None:
    backup, new = tmp_path / "backup", tmp_path / "new data"
    options = ("--data-dir", str(broker.directory))
    with broker:
        send(broker)
        result = run("backup", "create", str(backup), *options)
        assert (result.code, result.err) == (0, "")
        assert "were copied; all records up to sequence number" in result.out
    # the configuration comes from the running broker
    assert 'instance = "mine"' in (backup / "configuration.toml").read_text()
    verified = run("backup", "verify", str(backup))
    assert verified.code == 0
    assert "300 live. No damage." in verified.out
    restored = run("restore", str(backup), "--data-dir", str(new))
    assert restored.code == 0
    assert f"--config '{new}/configuration.toml' --data-dir '{new}'" in restored.err
    assert "new checkpoints" in restored.err
    assert receive_all(new) == MESSAGES


def test_back_up_a_stopped_broker_and_keep_its_identity(
    run: Run, broker: LocalBroker, tmp_path: Path
) -> None:
    with broker:
        send(broker)
    first, second = str(tmp_path / "one"), str(tmp_path / "two")
    options = ("--data-dir", str(broker.directory))
    assert run("backup", "create", first, *options, "--max-rate", "100MB").code == 0
    result = run("backup", "create", second, *options, "--incremental-from", first, "--json")
    manifest = json.loads(result.out)
    assert manifest["incremental_from"] == first
    new = tmp_path / "new"
    report = json.loads(
        run("restore", second, "--data-dir", str(new), "--keep-broker-id", "--json").out
    )
    assert report["broker_id"] == manifest["identity"]
    assert report["next_sequence"] > report["last_sequence"] == manifest["last_sequence"]
    assert receive_all(new) == MESSAGES


def test_broker_creates_the_backup_itself(run: Run, broker: LocalBroker, tmp_path: Path) -> None:
    with broker:
        send(broker)
        url = ("--url", f"http://127.0.0.1:{broker.port('http')}")
        assert run("backup", "list", *url).err.startswith("There are no backups")
        assert run("backup", "create", "one", *url).code == 0
        backup = json.loads(run("backup", "create", "two", *url, "--json").out)
        repetition = run("backup", "create", "two", *url)
        assert repetition.code == 1
        assert "there is a backup named two already" in repetition.err
        backups = json.loads(run("backup", "list", *url, "--json").out)
        assert [item["name"] for item in backups] == ["one", "two"]
        assert backups[1]["last_sequence"] == backup["last_sequence"]
        assert "--url" in run("backup", "list", str(tmp_path), *url).err
    backup_dir = str(tmp_path / "home")
    table = run("backup", "list", backup_dir).out.splitlines()
    assert [line.split()[0] for line in table] == ["Backup", "one", "two"]
    assert run("backup", "verify", f"{backup_dir}/two", "--json").code == 0


def test_users_are_backed_up_from_any_working_directory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of the user database is relative to the working directory of the broker."""
    users = tmp_path / "own.json"
    environment = {"SLUICEMQ_AUTH__USERS_FILE": "own.json"}
    with LocalBroker(tmp_path / "data", ["http://127.0.0.1:0"], environment=environment):
        options = ("--data-dir", str(tmp_path / "data"))
        assert run("users", "add", "root", "--superuser", "--no-password", *options).code == 0
        monkeypatch.chdir("/")
        assert run("backup", "create", str(tmp_path / "backup"), *options).code == 0
    assert (tmp_path / "backup" / "users.json").read_bytes() == users.read_bytes()


@pytest.mark.parametrize("running", [False, True])
def test_restored_broker_has_its_users_in_the_data_directory(
    run: Run, tmp_path: Path, running: bool
) -> None:
    configuration = tmp_path / "sluicemq.toml"
    configuration.write_text(
        f"[broker]\ndata_dir = '{tmp_path}/data'\n[auth]\nusers_file = 'own.json'\n"
        "[[listeners]]\nurl = 'http://127.0.0.1:0'\n"
    )
    options = ("--config", str(configuration))
    broker = LocalBroker(tmp_path / "data", (), options)
    assert run("users", "add", "root", "--superuser", "--no-password", *options).code == 0
    with broker:
        if running:
            assert run("backup", "create", "backup", *options).code == 0
    if not running:
        assert run("backup", "create", "backup", *options).code == 0
    (tmp_path / "own.json").unlink()
    assert run("restore", "backup", "--data-dir", "new").code == 0
    restored = ("--config", "new/configuration.toml", "--data-dir", "new")
    users = json.loads(run("users", "list", "--json", *restored).out)
    assert [user["name"] for user in users] == ["root"]


def test_list_contains_unfinished_backups_but_no_data_directories(
    run: Run, broker: LocalBroker, tmp_path: Path
) -> None:
    with broker:
        pass
    (tmp_path / "broken" / "journal").mkdir(parents=True)
    lines = run("backup", "list", str(tmp_path)).out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["broken", "unfinished"]]


def test_damage_is_reported(run: Run, broker: LocalBroker, tmp_path: Path) -> None:
    with broker:
        send(broker)
    backup = tmp_path / "backup"
    run("backup", "create", str(backup), "--data-dir", str(broker.directory))
    (segment, *_) = (backup / "journal").glob("*.segment")
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    for options in ((), ("--quick",), ("--json",)):
        result = run("backup", "verify", str(backup), *options)
        assert result.code == 1
        assert segment.name in result.out + result.err
    result = run("restore", str(backup), "--data-dir", str(tmp_path / "new"))
    assert result.code == 1
    assert "checksum differs" in result.err


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["backup", "verify", "none"], 1, "none is no backup"),
        (["backup", "create", "b", "--data-dir", "none"], 1, "there is no journal in"),
        (["backup", "create", "b", "--max-rate", "much"], 2, "--max-rate"),
        (["backup", "list"], 2, "sluicemq backup list DIR"),
        (["restore", "none", "--data-dir", "new"], 1, "none is no backup"),
        (["restore", "none"], 2, "--data-dir"),
    ],
)
def test_invalid_arguments_are_errors(
    run: Run, arguments: list[str], code: int, error: str
) -> None:
    result = run(*arguments)
    assert result.code == code
    assert error in result.err
    assert "Traceback" not in result.err
    assert not Path("b").exists()
    assert not Path("new").exists()
