from __future__ import annotations

import json
import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from sluicemq.broker import Broker, EngineSettings, recover
from sluicemq.broker.codec import BatchPart, encode
from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.journal import Cause, FileJournal, JournalOptions, RecordType
from sluicemq.journal.format import DEPTH, encode_completed, encode_redelivered
from sluicemq.journal.slots import Slots
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from sluicemq.server.clock import SystemClock
from tests.cli.conftest import Run, RunningBroker

ORDERS = Address(Kind.QUEUE, "orders")
NEWS = Address(Kind.TOPIC, "news")
TIME = 1_700_000_000_000


def message(address: Address, body: bytes, **fields: object) -> Message:
    result = Message(address, body, BodyKind.TEXT, Origin.PHPMQ, Durability.SYNC, TIME, **fields)
    result.arrival = TIME
    return result


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Create a journal of three messages, of which the first is acknowledged."""
    directory = tmp_path / "data"
    directory.mkdir()
    journal = FileJournal.open(directory / "journal", JournalOptions())
    orders, news_number = journal.destination_number(ORDERS), journal.destination_number(NEWS)
    first = journal.append_message(message(ORDERS, b"one\n\x1b[2J", correlation_id="c-1"), orders)
    journal.append_message(message(ORDERS, b"\xff"), orders)
    retained = message(NEWS, b"x" * 500, properties={"a": b"\xff", "b": 3})
    retained.routes = (news_number,)  # as the engine does for a topic that retains messages
    journal.append_message(retained, news_number)
    journal.append_completed(0, orders, Cause.ACKNOWLEDGED, [first], TIME)
    journal.sync()
    journal.close()
    return directory


def dump(run: Run, *arguments: str) -> list[dict[str, object]]:
    result = run("journal", "dump", *arguments, "--json")
    assert result.code == 0
    return [json.loads(line) for line in result.out.splitlines()]


def test_check_of_an_intact_journal(run: Run, data_dir: Path) -> None:
    result = run("journal", "check", str(data_dir))
    assert (result.code, result.err) == (0, "")
    assert "2 live" in result.out
    assert "No damage." in result.out
    report = json.loads(run("journal", "check", str(data_dir / "journal"), "--json").out)
    assert (report["live"], report["problems"]) == (2, [])
    assert report["types"]["MESSAGE"] == 3


def test_check_tells_preallocated_space_from_records(run: Run, tmp_path: Path) -> None:
    journal = FileJournal.open(tmp_path / "journal", JournalOptions(preallocate_bytes=1 << 20))
    journal.append_message(message(ORDERS, b"x"), journal.destination_number(ORDERS))
    journal.sync()
    journal.close()
    result = run("journal", "check", str(tmp_path))
    assert "MiB preallocated for further records" in result.out
    assert "after the durable end" not in result.out
    (segment,) = (tmp_path / "journal").glob("*.segment")
    report = json.loads(run("journal", "check", str(tmp_path), "--json").out)
    content = bytearray(segment.read_bytes())
    end = len(content) - report["preallocated"]
    content[end + 9] = 1
    segment.write_bytes(content)
    result = run("journal", "check", str(tmp_path))
    assert (result.code, result.err) == (0, "")
    assert "10 B after the durable end: being written, or left by a crash" in result.out


def test_check_finds_damage(run: Run, data_dir: Path) -> None:
    (segment,) = (data_dir / "journal").glob("*.segment")
    content = bytearray(segment.read_bytes())
    position = content.index(b"xxxx")
    content[position] ^= 1
    segment.write_bytes(content)
    result = run("journal", "check", str(data_dir))
    assert result.code == 1
    assert f"error: {segment}, offset" in result.err
    assert run("journal", "check", str(data_dir), "--json").code == 1


def test_configured_directory_is_the_default(
    run: Run, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEMQ_BROKER__DATA_DIR", str(data_dir))
    assert str(data_dir / "journal") in run("journal", "check").out


def test_dump_shows_each_record_on_a_line(run: Run, data_dir: Path) -> None:
    lines = run("journal", "dump", str(data_dir), "--type", "message").out.splitlines()
    assert [line.split("  ")[-1] for line in lines] == [
        "8 bytes: one\\n\\x1b[2J",
        "1 bytes: \\xff",
        "500 bytes: " + "x" * 60 + "…",
    ]
    assert "2023-11-14 22:13:20.000Z  message               topic:news" in lines[2]


def test_dump_as_json_has_the_whole_message(run: Run, data_dir: Path) -> None:
    first, second, third = dump(run, str(data_dir), "--type", "message")
    assert first["body"] == "one\n\x1b[2J"
    assert first["correlation_id"] == "c-1"
    assert first["destination"] == "orders"
    assert second["body_base64"] == "/w=="
    assert third["properties"] == {"a": {"base64": "/w=="}, "b": 3}


def test_dump_by_destination_number_and_limit(run: Run, data_dir: Path) -> None:
    assert run("journal", "dump", str(data_dir), "--limit", str(1 << 63)).code == 2
    first, second = dump(run, str(data_dir), "--queue", "orders", "--type", "message")
    assert len(dump(run, str(data_dir), "--topic", "news", "--type", "message")) == 1
    number = first["sequence"]
    records = dump(run, str(data_dir), "--message", str(number))
    assert [record["type"] for record in records] == ["message", "completed"]
    assert (records[1]["outcome"], records[1]["sequences"]) == ("acknowledged", [number])
    limited_records = dump(run, str(data_dir), "--from", str(second["sequence"]), "--limit", "1")
    assert [record["sequence"] for record in limited_records] == [second["sequence"]]


def test_dump_names_causes_as_spark_names_events(run: Run, tmp_path: Path) -> None:
    journal = FileJournal.open(tmp_path / "journal", JournalOptions())
    number = journal.destination_number(Address(Kind.QUEUE, "q"))
    journal.append_completed(7, number, Cause.DEAD_LETTERED, [1], 1000)
    journal.close()
    (record,) = dump(run, str(tmp_path), "--type", "completed")
    assert record["outcome"] == "dead-lettered"
    line = "outcome dead-lettered  subscription 7  sequences 1"
    assert line in run("journal", "dump", str(tmp_path)).out


def test_dump_of_deliveries_gauges_and_batches(run: Run, tmp_path: Path) -> None:
    journal = FileJournal.open(tmp_path / "journal", JournalOptions())
    orders = journal.destination_number(ORDERS)
    for type, body in (
        (RecordType.DELIVERED, encode_completed(7, [1, 2])),
        (RecordType.REDELIVERED, encode_redelivered(7, [2], [3])),
        (RecordType.DEPTH, DEPTH.pack(4, 5, 6, 0)),
        (RecordType.BATCH_PART, encode(BatchPart("query", 1, 2, 3, True, 4, 5))),
    ):
        journal.append_entry(type, body, TIME, destination=orders)
    journal.close()
    types = ["delivered", "redelivered", "depth", "batch_part"]
    type_options = [flag for name in types for flag in ("--type", name)]
    records = dump(run, str(tmp_path), *type_options)
    assert [record["type"] for record in records] == types
    assert (records[0]["subscription"], records[0]["sequences"]) == (7, [1, 2])
    assert (records[1]["sequences"], records[1]["attempts"]) == ([2], [3])
    assert (records[2]["ready"], records[2]["unacked"], records[2]["consumers"]) == (4, 5, 6)
    assert (records[3]["writer"], records[3]["partition"], records[3]["rows"]) == ("query", 2, 5)
    lines = run("journal", "dump", str(tmp_path), *type_options).out.splitlines()
    assert [line.split("orders  ")[1] for line in lines] == [
        "subscription 7  sequences 1, 2",
        "subscription 7  sequences 2  attempts 3",
        "ready 4  unacked 5  consumers 6",
        "writer query  batch 1  partition 2  part 3  final True  rows 5",
    ]
    records_of_message = dump(run, str(tmp_path), "--message", "2")
    assert [record["type"] for record in records_of_message if record["type"] in types] == types[:2]


def test_slots_of_a_stopped_broker(run: Run, data_dir: Path) -> None:
    directory = str(data_dir)
    assert run("journal", "slots", directory).err == "There are no slots.\n"
    run("journal", "slots", directory, "--create", "spark", "--position", "7", "--limit", "5GiB")
    slots = json.loads(run("journal", "slots", directory, "--json").out)
    assert (slots["spark"]["position"], slots["spark"]["limit_bytes"]) == (7, 5 * 1024**3)
    assert run("journal", "slots", directory).out.splitlines()[1].split()[:4] == [
        "spark",
        "7",
        "5.0",
        "GiB",
    ]
    repetition = run("journal", "slots", directory, "--create", "spark")
    assert repetition.code == 1
    assert "already" in repetition.err
    assert run("journal", "slots", directory, "--delete", "spark").code == 0
    assert run("journal", "slots", directory, "--delete", "spark").code == 1


def test_slot_without_a_limit_has_the_limit_of_the_broker(run: Run, data_dir: Path) -> None:
    assert run("journal", "slots", str(data_dir), "--create", "spark").code == 0
    row = run("journal", "slots", str(data_dir)).out.splitlines()[1]
    assert row.split()[:3] == ["spark", "0", "default"]
    journal = FileJournal.open(data_dir / "journal", JournalOptions(slot_limit_bytes=1 << 20))
    assert journal.slots.get("spark").limit_bytes == 1 << 20
    journal.close()


def test_existing_slot_is_not_moved_by_creating_it_again(run: Run, broker: RunningBroker) -> None:
    assert run("slots", "create", "mine", *broker.location).code == 0
    repetition = run("slots", "create", "mine", "--position", "1", *broker.location)
    assert repetition.code == 1
    assert "slots advance" in repetition.err
    slot = run("slots", "show", "mine", "--json", *broker.location)
    assert json.loads(slot.out)["position"] == 0
    assert run("slots", "delete", "mine", "--yes", *broker.location).code == 0


def test_slot_of_a_killed_backup_is_listed_as_expired(run: Run, broker: RunningBroker) -> None:
    """It retains no segments; the broker removes it with its next snapshot."""
    slots = Slots(broker.data_dir / "journal")
    slots.create("killed", lease=1)
    time.sleep(0.002)
    for command in (["slots", *broker.location], ["journal", "slots", str(broker.data_dir)]):
        (line,) = [line for line in run(*command).out.splitlines() if line.startswith("killed")]
        assert line.split()[-1] == "expired"
    slots.delete("killed")


def test_compact_keeps_live_records(run: Run, data_dir: Path) -> None:
    result = run("journal", "compact", str(data_dir))
    assert result.code == 0
    report = json.loads(run("journal", "check", str(data_dir), "--json").out)
    assert (report["live"], report["problems"]) == (2, [])


def test_compact_frees_acked_records_and_the_broker_continues(run: Run, tmp_path: Path) -> None:
    data_dir = tmp_path / "used"
    broker = LocalBroker(data_dir, ["phpmq://127.0.0.1:0"])
    with broker, BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client:
        for number in range(2000):
            client.send("a", b"%d" % number + bytes(1000))
        client.subscribe("a", 100)
        for _ in range(1990):
            client.receive(10).ack()
    result = run("journal", "compact", str(data_dir), "--json")
    sizes = json.loads(result.out)
    assert sizes["after"]["bytes"] < sizes["before"]["bytes"] / 20
    with broker, BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client:
        client.subscribe("a", 100)
        bodies = [client.receive(10).body.rstrip(bytes(1)) for _ in range(10)]
    assert bodies == [b"%d" % number for number in range(1990, 2000)]


def test_compact_keeps_unused_destinations_and_all_batch_writers(run: Run, tmp_path: Path) -> None:
    """`compact` does not apply the defaults of the broker."""
    settings = EngineSettings(
        default_destination=DestinationSettings(idle_timeout=0), max_batch_writers=10_010
    )

    def start() -> Broker:
        journal = FileJournal.open(tmp_path / "journal", JournalOptions())
        broker = Broker(journal, SystemClock(), settings)
        recover(broker, journal.recovery)
        return broker

    broker = start()
    broker.destinations.assign_number(broker.destinations.resolve(ORDERS))
    for number in range(10_005):
        part = BatchPart(f"writer {number}", 1, 0, 0, True, 0, 1)
        broker.journal.append_entry(RecordType.BATCH_PART, encode(part), TIME)
    broker.journal.close()
    assert run("journal", "compact", ".").code == 0
    broker = start()
    assert broker.destinations.find(ORDERS) is not None
    assert len(broker.batches.writers) == 10_005
    broker.journal.close()


def test_compact_keeps_the_segments_of_an_idle_slot(run: Run, data_dir: Path) -> None:
    """The reader may have been idle because the broker was stopped, and its timeout may be 0."""
    journal_dir = data_dir / "journal"
    Slots(journal_dir, limit_bytes=0).create("spark")
    slot_file = journal_dir / "slots" / "spark.json"
    slot_file.write_text('{"position": 0, "limit_bytes": 0, "created": 1}')
    with closing(FileJournal.open(journal_dir, JournalOptions())) as journal:
        live = [row.sequence for row in journal.recovery.live_rows()]
        journal.append_completed(0, 1, Cause.ACKNOWLEDGED, live, TIME)
        journal.seal()
        journal.sync()
    segments = set(journal_dir.glob("*.segment"))
    for segment in segments:
        os.utime(segment, (1, 1))
    assert run("journal", "compact", str(data_dir)).code == 0
    slots = json.loads(run("journal", "slots", str(data_dir), "--json").out)
    assert not slots["spark"]["lost"]
    assert segments <= set(journal_dir.glob("*.segment"))


def test_compact_of_a_running_broker_is_rejected(run: Run, data_dir: Path) -> None:
    journal = FileJournal.open(data_dir / "journal", JournalOptions())
    try:
        result = run("journal", "compact", str(data_dir))
    finally:
        journal.close()
    assert result.code == 1
    assert result.err.endswith(". Stop it, or choose another directory.\n")


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["check", "none"], 1, "there is no directory none"),
        (["check", "."], 1, "there is no journal in"),
        (["compact", "."], 1, "there is no journal in"),
        (["dump", "data", "--type", "mesage"], 2, "no type 'mesage'; did you mean message?"),
        (["dump", "data", "--queue", "a", "--topic", "b"], 2, "either --queue or --topic"),
        (["slots", "data", "--position", "3"], 2, "require --create"),
        (["slots", "data", "--create", "a", "--delete", "b"], 2, "either --create or --delete"),
        (["slots", "data", "--create", "a", "--limit", "much"], 2, "not a number of bytes"),
        (["slots", "data", "--create", "../a"], 1, "not a valid slot name"),
    ],
)
@pytest.mark.usefixtures("data_dir")
def test_invalid_arguments_are_errors(
    run: Run, arguments: list[str], code: int, error: str
) -> None:
    result = run("journal", *arguments)
    assert result.code == code
    assert error in result.err
    assert "Traceback" not in result.err
