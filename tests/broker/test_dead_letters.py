"""Where a message goes that nobody will get, and what it tells there."""

from __future__ import annotations

import pytest

from sluicemq.broker import BrokerSettings, Destination
from sluicemq.broker.deadletter import dead_letter_of
from sluicemq.journal.format import UNIT_END, Cause, RecordType
from sluicemq.journal.memory import MemoryJournal
from sluicemq.model.destination import Address, Kind, Overflow
from sluicemq.model.errors import LimitExceeded
from sluicemq.model.message import Durability, Message, Origin
from tests.broker.support import Rig


def give_up(rig: Rig, queue: Destination, body: str = "a", *, force: bool = False) -> None:
    """Deliver one message, and let the client give it up."""
    reader = rig.read(queue)
    [sequence] = rig.send(queue, body, properties={"colour": "red"}, priority=7)
    assert rig.broker.dead_letter(queue.queue, sequence, "rejected", force=force)
    rig.broker.flush()
    reader.detach()


def test_a_dead_letter_tells_its_story() -> None:
    rig = Rig()
    queue = rig.queue(dead_letter=True, max_attempts=2)
    reader = rig.read(queue)
    wall = rig.clock.wall
    rig.send(queue, "a", properties={"colour": "red"}, priority=7, expiration=wall + 60_000)
    reader.release()
    rig.wait(1500)
    reader.release()
    [dead] = rig.dead()
    assert dead.properties == {
        "colour": "red",
        "deadLetterReason": "max-attempts",
        "originalQueue": "q",
        "deliveryAttempts": 2,
        "failedAt": "2023-11-14T22:13:21.500+00:00",
    }
    assert (dead.body, dead.priority, dead.expiration) == (b"a", 7, 0)
    assert dead.destination == Address(Kind.QUEUE, "q.dlq")
    assert queue.statistics.dead_lettered == 1
    assert queue.statistics.dropped == 0


def test_the_reason_is_the_clients_word() -> None:
    rig = Rig()
    give_up(rig, rig.queue(dead_letter=True))
    [dead] = rig.dead()
    assert (dead.properties or {})["deadLetterReason"] == "rejected"


def test_expired_messages_are_dead_letters_too() -> None:
    rig = Rig()
    queue = rig.queue(dead_letter=True)
    rig.send(queue, "a", expiration=rig.clock.wall + 100)
    rig.wait(300)
    [dead] = rig.dead()
    properties = dead.properties or {}
    assert (properties["deadLetterReason"], properties["deliveryAttempts"]) == ("expired", 0)
    rig.wait(60_000)
    assert len(rig.dead()) == 1  # its own expiration does not apply there


def test_the_dead_letter_queue_may_have_any_name() -> None:
    rig = Rig()
    give_up(rig, rig.queue(dead_letter=True, dead_letter_queue="graveyard"))
    assert [message.body for message in rig.dead("graveyard")] == [b"a"]
    assert Address(Kind.QUEUE, "q.dlq") not in rig.broker.destinations


def test_there_is_no_dead_letter_of_a_dead_letter() -> None:
    rig = Rig()
    graves = rig.queue("q.dlq", dead_letter=True, max_attempts=1)
    give_up(rig, rig.queue(dead_letter=True))
    rig.read(graves).release()
    assert graves.waiting == 0
    assert graves.statistics.dropped == 1
    assert Address(Kind.QUEUE, "q.dlq.dlq") not in rig.broker.destinations


@pytest.mark.parametrize("way", ["expiry", "number"])
def test_a_queue_may_be_its_own_dead_letter_queue_even_when_it_is_too_full(way: str) -> None:
    rig = Rig()
    queue = rig.queue(dead_letter=True, dead_letter_queue="q")
    reader = rig.read(queue, 1)
    expiration = rig.clock.wall + 100 if way == "expiry" else 0
    [sequence] = rig.send(queue, "a", expiration=expiration, durability=Durability.LAZY)
    rig.send(queue, "b", "c")
    reader.detach()
    rig.queue(
        dead_letter=True, dead_letter_queue="q", max_messages=1, overflow=Overflow.DROP_OLDEST
    )
    if way == "number":
        assert rig.broker.dead_letter(queue.queue, sequence, "rejected")
    rig.wait(300)
    assert len(rig.dead("q")) == queue.waiting == 1
    assert queue.bytes == rig.broker.core.memory == 1


def test_without_the_setting_the_message_is_dropped() -> None:
    rig = Rig()
    queue = rig.queue()
    give_up(rig, queue)
    assert Address(Kind.QUEUE, "q.dlq") not in rig.broker.destinations
    assert (queue.waiting, queue.statistics.dropped) == (0, 1)


def test_force_keeps_it_even_so() -> None:
    rig = Rig()
    give_up(rig, rig.queue(), force=True)
    assert [message.body for message in rig.dead()] == [b"a"]


def test_a_temporary_queue_leaves_no_dead_letters() -> None:
    rig = Rig()
    queue = rig.broker.declare(Address(Kind.QUEUE, "q"), owner="connection")
    give_up(rig, queue, force=True)
    assert Address(Kind.QUEUE, "q.dlq") not in rig.broker.destinations


def test_each_subscription_of_a_topic_has_its_own_dead_letter() -> None:
    rig = Rig()
    topic = rig.topic(dead_letter=True, max_attempts=1)
    failing = rig.read(rig.broker.subscribe(topic, "failing"))
    working = rig.read(rig.broker.subscribe(topic, "working"))
    rig.send(topic, "a")
    failing.release()
    working.settle()
    assert [message.body for message in rig.dead("t.dlq")] == [b"a"]


def test_a_crash_can_neither_lose_nor_double_a_dead_letter() -> None:
    journal = MemoryJournal(history=True)
    rig = Rig(journal=journal)
    rig.queue("q.dlq")
    give_up(rig, rig.queue(dead_letter=True), "first")  # numbers the dead-letter queue
    start = journal.durable + 1
    give_up(rig, rig.queue(dead_letter=True), "second")
    sent, dead, settled = journal.read_from(start)
    assert sent.type == dead.type == RecordType.MESSAGE
    assert settled.type == RecordType.SETTLED
    assert (settled.kind, settled.sequences) == (Cause.DEAD_LETTERED, [sent.sequence])
    assert not dead.flags & UNIT_END
    assert settled.flags & UNIT_END


def test_the_limit_on_destinations_does_not_lose_dead_letters() -> None:
    rig = Rig(BrokerSettings(max_destinations=1))
    queue = rig.queue(dead_letter=True)
    rig.send(queue, "a", "b", expiration=rig.clock.wall + 100)
    rig.wait(300)
    assert [message.body for message in rig.dead()] == [b"a", b"b"]


class Note:
    """What a protocol may have to say: `kept` is its answer, its letters are marked."""

    def __init__(self, kept: bool | None) -> None:
        self.kept = kept
        self.asked: list[tuple[bytes, str]] = []

    def keep(self, message: Message, destination: Destination) -> bool | None:
        self.asked.append((message.body, destination.name))
        return self.kept

    def dead_letter(
        self, message: Message, origin: str, reason: str, attempts: int, wall: int
    ) -> Message:
        dead = dead_letter_of(message, origin, reason, attempts, wall)
        assert dead.properties is not None
        dead.properties["noted"] = f"{origin} {reason} {attempts} {wall}"
        return dead


@pytest.mark.parametrize("kept", [None, True, False])
@pytest.mark.parametrize("setting", [True, False])
@pytest.mark.parametrize("force", [True, False])
def test_a_protocol_decides_for_its_own_messages(
    kept: bool | None, setting: bool, force: bool
) -> None:
    rig = Rig()
    note = rig.broker.dead_letter_policies[Origin.JMQ] = Note(kept)
    queue = rig.queue(dead_letter=setting)
    reader = rig.read(queue)
    for body, origin in (("a", Origin.JMQ), ("b", Origin.PHPMQ)):
        [sequence] = rig.send(queue, body, origin=origin)
        rig.broker.dead_letter(queue.queue, sequence, "rejected", force=force)
        rig.broker.flush()
    assert note.asked == [(b"a", "q")]
    usual = setting or force
    expected = [b"a"] if (usual if kept is None else kept) else []
    dead = rig.dead() if expected or usual else []
    assert [message.body for message in dead] == expected + ([b"b"] if usual else [])
    assert [(m.properties or {}).get("noted") for m in dead if m.body == b"a"] == [
        f"q rejected 1 {rig.clock.wall}"
    ] * len(expected)
    assert reader.consumer.unacked == {}


def test_a_protocol_may_keep_what_a_temporary_queue_loses() -> None:
    rig = Rig()
    rig.broker.dead_letter_policies[Origin.JMQ] = Note(True)
    queue = rig.broker.declare(Address(Kind.QUEUE, "q"), owner="connection")
    rig.send(queue, "a", origin=Origin.JMQ, expiration=rig.clock.wall + 100)
    rig.wait(300)
    assert [message.body for message in rig.dead()] == [b"a"]


def test_a_dead_letter_of_a_protocol_does_not_die_again() -> None:
    rig = Rig()
    rig.broker.dead_letter_policies[Origin.JMQ] = Note(True)
    queue = rig.queue()
    rig.send(queue, "a", origin=Origin.JMQ, expiration=rig.clock.wall + 100)
    rig.wait(300)
    dead = rig.broker.queue("q.dlq")
    reader = rig.read(dead)
    [sequence] = reader.held().values()
    rig.broker.dead_letter(dead.queue, sequence, "rejected", force=True)
    assert (dead.statistics.dropped, set(rig.broker.destinations)) == (
        1,
        {queue.address, dead.address},
    )


def test_a_protocol_decides_for_what_a_full_queue_redirects() -> None:
    rig = Rig()
    rig.broker.dead_letter_policies[Origin.JMQ] = Note(None)
    rig.broker.dead_letter_policies[Origin.PHPMQ] = Note(False)
    queue = rig.queue(max_messages=1, overflow=Overflow.DEAD_LETTER, dead_letter=True)
    rig.send(queue, "there", "kept", origin=Origin.JMQ)
    with pytest.raises(LimitExceeded):
        rig.send(queue, "refused", origin=Origin.PHPMQ)
    [dead] = rig.dead()
    assert dead.body == b"kept"
    assert (dead.properties or {})["noted"] == f"q overflow 0 {rig.clock.wall}"
