"""Dead letters: their destination and their history."""

from __future__ import annotations

import pytest

from sluicemq.broker import Destination, EngineSettings
from sluicemq.journal.format import UNIT_END, Cause, RecordType
from sluicemq.model.dead_letters import dead_letter_of, origin_of
from sluicemq.model.destination import Address, Kind, Overflow
from sluicemq.model.errors import LimitExceeded
from sluicemq.model.message import Durability, Message, Origin
from tests.support.broker import BrokerFixture, bodies
from tests.support.journal import RecordingJournal, read_from


def reject_one(
    fixture: BrokerFixture, queue: Destination, body: str = "a", *, force: bool = False
) -> None:
    """Deliver one message, and reject it without requeueing it."""
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, body, properties={"colour": "red"}, priority=7)
    assert fixture.broker.dead_letter(queue.queue, sequence, "rejected", force=force)
    fixture.broker.flush()
    reader.detach()


def test_dead_letter_has_history_properties() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True, max_attempts=2)
    reader = fixture.read(queue)
    wall = fixture.clock.wall
    fixture.send(queue, "a", properties={"colour": "red"}, priority=7, expiration=wall + 60_000)
    reader.release()
    fixture.wait(1500)
    reader.release()
    [dead_letter] = fixture.dead_letters()
    assert dead_letter.properties == {
        "colour": "red",
        "deadLetterReason": "max-attempts",
        "originalQueue": "q",
        "deliveryAttempts": 2,
        "failedAt": "2023-11-14T22:13:21.500+00:00",
    }
    assert (dead_letter.body, dead_letter.priority, dead_letter.expiration) == (b"a", 7, 0)
    assert dead_letter.destination == Address(Kind.QUEUE, "q.dlq")
    assert queue.statistics.dead_lettered == 1
    assert queue.statistics.dropped == 0


def test_reason_of_rejected_message_is_given_by_client() -> None:
    fixture = BrokerFixture()
    reject_one(fixture, fixture.queue(dead_letter=True))
    [dead_letter] = fixture.dead_letters()
    assert (dead_letter.properties or {})["deadLetterReason"] == "rejected"


def test_expired_messages_become_dead_letters() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True)
    fixture.send(queue, "a", expiration=fixture.clock.wall + 100)
    fixture.wait(300)
    [dead_letter] = fixture.dead_letters()
    properties = dead_letter.properties or {}
    assert (properties["deadLetterReason"], properties["deliveryAttempts"]) == ("expired", 0)
    fixture.wait(60_000)
    assert len(fixture.dead_letters()) == 1  # its own expiration does not apply there


def test_dead_letter_queue_may_have_any_name() -> None:
    fixture = BrokerFixture()
    reject_one(fixture, fixture.queue(dead_letter=True, dead_letter_queue="graveyard"))
    assert [message.body for message in fixture.dead_letters("graveyard")] == [b"a"]
    assert Address(Kind.QUEUE, "q.dlq") not in fixture.broker.destinations


def test_dead_letter_does_not_become_dead_letter_again() -> None:
    fixture = BrokerFixture()
    dead_letter_queue = fixture.queue("q.dlq", dead_letter=True, max_attempts=1)
    reject_one(fixture, fixture.queue(dead_letter=True))
    fixture.read(dead_letter_queue).release()
    assert dead_letter_queue.waiting == 0
    assert dead_letter_queue.statistics.dropped == 1
    assert Address(Kind.QUEUE, "q.dlq.dlq") not in fixture.broker.destinations


@pytest.mark.parametrize("way", ["expiry", "number"])
def test_queue_may_be_its_own_dead_letter_queue_even_when_it_is_too_full(way: str) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True, dead_letter_queue="q")
    reader = fixture.read(queue, 1)
    expiration = fixture.clock.wall + 100 if way == "expiry" else 0
    [sequence] = fixture.send(queue, "a", expiration=expiration, durability=Durability.LAZY)
    fixture.send(queue, "b", "c")
    reader.detach()
    fixture.queue(
        dead_letter=True, dead_letter_queue="q", max_messages=1, overflow=Overflow.DROP_OLDEST
    )
    if way == "number":
        assert fixture.broker.dead_letter(queue.queue, sequence, "rejected")
    fixture.wait(300)
    [dead_letter] = fixture.dead_letters("q")
    assert queue.waiting == queue.bytes == 1
    assert fixture.broker.memory == 1 + dead_letter.header_bytes()


def test_without_setting_message_is_dropped() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reject_one(fixture, queue)
    assert Address(Kind.QUEUE, "q.dlq") not in fixture.broker.destinations
    assert (queue.waiting, queue.statistics.dropped) == (0, 1)


def test_force_keeps_message_without_setting() -> None:
    fixture = BrokerFixture()
    reject_one(fixture, fixture.queue(), force=True)
    assert [message.body for message in fixture.dead_letters()] == [b"a"]


def test_temporary_queue_leaves_no_dead_letters() -> None:
    fixture = BrokerFixture()
    queue = fixture.broker.destinations.declare(Address(Kind.QUEUE, "q"), owner="connection")
    reject_one(fixture, queue, force=True)
    assert Address(Kind.QUEUE, "q.dlq") not in fixture.broker.destinations


def test_each_subscription_of_topic_has_its_own_dead_letter() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic(dead_letter=True, max_attempts=1)
    failing = fixture.read(fixture.broker.subscribe(topic, "failing"))
    working = fixture.read(fixture.broker.subscribe(topic, "working"))
    fixture.send(topic, "a")
    failing.release()
    working.acknowledge()
    assert [message.body for message in fixture.dead_letters("t.dlq")] == [b"a"]


def test_origin_of_dead_letter_does_not_depend_on_its_publisher() -> None:
    """A client may publish a dead letter of a topic again, with all of its headers."""
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True)
    reader = fixture.read(queue)
    properties = {"originalKind": "topic", "originalSubscription": "s"}
    [sequence] = fixture.send(queue, "a", properties=properties)
    assert fixture.broker.dead_letter(queue.queue, sequence, "rejected")
    fixture.broker.flush()
    reader.detach()
    [dead_letter] = fixture.dead_letters()
    assert origin_of(dead_letter) == (Address(Kind.QUEUE, "q"), "")


def test_crash_neither_loses_nor_duplicates_dead_letter() -> None:
    journal = RecordingJournal()
    fixture = BrokerFixture(journal=journal)
    fixture.queue("q.dlq")
    reject_one(fixture, fixture.queue(dead_letter=True), "first")  # numbers the dead-letter queue
    start = journal.durable + 1
    reject_one(fixture, fixture.queue(dead_letter=True), "second")
    sent, dead_letter, completion = read_from(journal, start)
    assert sent.type == dead_letter.type == RecordType.MESSAGE
    assert completion.type == RecordType.COMPLETED
    assert (completion.kind, completion.sequences) == (Cause.DEAD_LETTERED, [sent.sequence])
    assert not dead_letter.flags & UNIT_END
    assert completion.flags & UNIT_END


def test_limit_on_destinations_does_not_lose_dead_letters() -> None:
    fixture = BrokerFixture(EngineSettings(max_destinations=1))
    queue = fixture.queue(dead_letter=True)
    fixture.send(queue, "a", "b", expiration=fixture.clock.wall + 100)
    fixture.wait(300)
    assert [message.body for message in fixture.dead_letters()] == [b"a", b"b"]


class RecordingPolicy:
    """Dead-letter policy that returns `kept`, records its calls and marks its dead letters."""

    def __init__(self, kept: bool | None) -> None:
        self.kept = kept
        self.asked: list[bytes] = []

    def keep(self, message: Message) -> bool | None:
        self.asked.append(message.body)
        return self.kept

    def dead_letter(
        self, message: Message, origin: str, reason: str, attempts: int, wall: int
    ) -> Message:
        dead_letter = dead_letter_of(message, origin, reason, attempts, wall)
        assert dead_letter.properties is not None
        dead_letter.properties["noted"] = f"{origin} {reason} {attempts} {wall}"
        return dead_letter

    def adapt_copy(self, copy: Message) -> None:
        pass


@pytest.mark.parametrize("kept", [None, True, False])
@pytest.mark.parametrize("setting", [True, False])
@pytest.mark.parametrize("force", [True, False])
def test_policy_of_protocol_applies_to_its_messages(
    kept: bool | None, setting: bool, force: bool
) -> None:
    fixture = BrokerFixture()
    policy = fixture.broker.dead_letters.policies[Origin.JMQ] = RecordingPolicy(kept)
    queue = fixture.queue(dead_letter=setting)
    reader = fixture.read(queue)
    for body, origin in (("a", Origin.JMQ), ("b", Origin.PHPMQ)):
        [sequence] = fixture.send(queue, body, origin=origin)
        fixture.broker.dead_letter(queue.queue, sequence, "rejected", force=force)
        fixture.broker.flush()
    assert policy.asked == [b"a"]
    by_default = setting or force
    expected = [b"a"] if (by_default if kept is None else kept) else []
    dead_letters = fixture.dead_letters() if expected or by_default else []
    assert [message.body for message in dead_letters] == expected + ([b"b"] if by_default else [])
    assert [(m.properties or {}).get("noted") for m in dead_letters if m.body == b"a"] == [
        f"q rejected 1 {fixture.clock.wall}"
    ] * len(expected)
    assert reader.consumer.unacked == {}


def test_policy_may_keep_messages_of_temporary_queue() -> None:
    fixture = BrokerFixture()
    fixture.broker.dead_letters.policies[Origin.JMQ] = RecordingPolicy(True)
    queue = fixture.broker.destinations.declare(Address(Kind.QUEUE, "q"), owner="connection")
    fixture.send(queue, "a", origin=Origin.JMQ, expiration=fixture.clock.wall + 100)
    fixture.wait(300)
    assert [message.body for message in fixture.dead_letters()] == [b"a"]


def test_dead_letter_of_policy_does_not_become_dead_letter_again() -> None:
    fixture = BrokerFixture()
    fixture.broker.dead_letters.policies[Origin.JMQ] = RecordingPolicy(True)
    queue = fixture.queue()
    fixture.send(queue, "a", origin=Origin.JMQ, expiration=fixture.clock.wall + 100)
    fixture.wait(300)
    dead_letter_queue = fixture.broker.destinations.queue("q.dlq")
    reader = fixture.read(dead_letter_queue)
    [sequence] = reader.unacked_by_body().values()
    fixture.broker.dead_letter(dead_letter_queue.queue, sequence, "rejected", force=True)
    assert (dead_letter_queue.statistics.dropped, set(fixture.broker.destinations)) == (
        1,
        {queue.address, dead_letter_queue.address},
    )


def test_policy_applies_to_messages_redirected_by_full_queue() -> None:
    fixture = BrokerFixture()
    fixture.broker.dead_letters.policies[Origin.JMQ] = RecordingPolicy(None)
    fixture.broker.dead_letters.policies[Origin.PHPMQ] = RecordingPolicy(False)
    queue = fixture.queue(max_messages=1, overflow=Overflow.DEAD_LETTER, dead_letter=True)
    fixture.send(queue, "there", "kept", origin=Origin.JMQ)
    with pytest.raises(LimitExceeded):
        fixture.send(queue, "refused", origin=Origin.PHPMQ)
    [dead_letter] = fixture.dead_letters()
    assert dead_letter.body == b"kept"
    assert (dead_letter.properties or {})["noted"] == f"q overflow 0 {fixture.clock.wall}"


@pytest.mark.parametrize("overflow", [Overflow.DROP_OLDEST, Overflow.DROP_LOWEST])
def test_full_queue_that_is_its_own_dead_letter_queue_drops_one_message(
    overflow: Overflow,
) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(
        max_messages=500, overflow=overflow, dead_letter=True, dead_letter_queue="q"
    )
    numbers = [str(number) for number in range(501)]
    fixture.send(queue, *numbers, durability=Durability.LAZY)
    assert bodies(queue) == numbers[1:]
    assert (queue.statistics.dropped, queue.statistics.dead_lettered) == (1, 0)
