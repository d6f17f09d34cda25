"""Messages that a consumer cannot take."""

from __future__ import annotations

import pytest

from sluicemq.broker import EngineSettings, attachment
from sluicemq.broker.selectors import compile_selector
from sluicemq.model.errors import SelectorError
from tests.support.broker import BrokerFixture, Reader, TypeSelector, bodies


def decline(fixture: BrokerFixture, reader: Reader, *names: str, kind: str = "plain") -> None:
    """Decline the reader's deliveries with these bodies."""
    sequences = reader.unacked_by_body()
    fixture.broker.decline(reader.consumer, [sequences[name] for name in names], kind, "TooLarge")
    fixture.broker.flush()


def test_declined_message_keeps_its_position_for_another_consumer() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_attempts=1)
    able_reader = fixture.read(queue, 0, refill=False)
    reader = fixture.read(queue, 3)
    fixture.send(queue, "a", "large", "c", "d")
    decline(fixture, reader, "large")
    assert bodies(queue) == ["a", "large", "c", "d"]
    assert reader.got() == ["a", "large", "c", "d"]
    fixture.broker.grant(able_reader.consumer.window, 1)
    fixture.broker.flush()
    assert able_reader.got() == ["large"]
    assert able_reader.attempts == {"large": 1}


def test_declined_message_is_not_offered_to_its_kind_again() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.read(queue, 0)
    first, second = fixture.read(queue, 1), fixture.read(queue, 1)
    fixture.send(queue, "large")
    decline(fixture, first, "large")
    assert second.got() == ["large"]
    decline(fixture, second, "large")
    for _ in range(5):
        fixture.wait(1000)
    fixture.send(queue, "small")
    assert "large" not in (first.got() + second.got())[1:]
    assert queue.queue.ready == 1


def test_message_may_be_declined_after_it_was_paged_out() -> None:
    fixture = BrokerFixture(EngineSettings(memory_budget=0))
    queue = fixture.queue()
    fixture.read(queue, 0)
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "large")
    fixture.broker.page_out(reader.consumer.unacked.values())
    assert reader.consumer.unacked[sequence].message is None
    fixture.broker.decline(reader.consumer, [sequence], "plain", "TooLarge")
    assert queue.queue.ready == 1


def test_message_that_no_consumer_can_take_becomes_dead_letter_whatever_settings() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=False)
    first, second = fixture.read(queue), fixture.read(queue)
    fixture.send(queue, "large")
    decline(fixture, first, "large")
    decline(fixture, second, "large")
    [dead_letter] = fixture.dead_letters()
    assert (dead_letter.properties or {})["deadLetterReason"] == "TooLarge"
    assert bodies(queue) == []


def test_consumer_whose_selector_matches_can_take_it() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    matching = fixture.read(queue, 0, refill=False, selector=TypeSelector("a"))
    fixture.read(queue, 0, refill=False, selector=TypeSelector("b"))
    reader = fixture.read(queue)
    fixture.send(queue, "large", type="a")
    fixture.send(queue, "other", type="c")
    decline(fixture, reader, "large", "other")
    assert [dead_letter.body for dead_letter in fixture.dead_letters()] == [b"other"]
    fixture.broker.grant(matching.consumer.window, 1)
    fixture.broker.flush()
    assert matching.got() == ["large"]


def test_declined_dead_letter_stays_in_its_queue() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, "large", properties={"deadLetterReason": "expired"})
    reader = fixture.read(queue)
    decline(fixture, reader, "large")
    assert bodies(queue) == ["large"]
    reader.detach()
    second_reader = fixture.read(queue)
    decline(fixture, second_reader, "large")
    fixture.wait(1000)
    assert second_reader.got() == ["large"]
    assert bodies(queue) == ["large"]
    assert fixture.read(queue).got() == ["large"]


def test_declined_message_is_dead_lettered_when_last_able_consumer_leaves() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    able_reader = fixture.read(queue, 0, refill=False)
    reader = fixture.read(queue)
    fixture.send(queue, "large")
    decline(fixture, reader, "large")
    fixture.broker.grant(able_reader.consumer.window, 1)
    fixture.broker.flush()
    assert able_reader.got() == ["large"]
    able_reader.detach()
    decline(fixture, reader, "large")
    assert [dead_letter.body for dead_letter in fixture.dead_letters()] == [b"large"]


def test_number_of_recorded_declined_messages_is_limited() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.read(queue, 0)
    count = attachment.MAX_DECLINED + 10
    reader = fixture.read(queue, count)
    sequences = fixture.send(queue, *map(str, range(count)))
    while len(reader.consumer.unacked) < count:
        fixture.broker.flush()
    decline(fixture, reader, *map(str, range(count)))
    selector = reader.consumer.pending_queue.selector
    assert isinstance(selector, attachment.Acceptable)
    assert len(selector._declined) == attachment.MAX_DECLINED
    assert queue.queue.ready == attachment.MAX_DECLINED  # the others are offered once more
    assert len(reader.consumer.unacked) == len(sequences) - attachment.MAX_DECLINED


def test_no_jms_selector_has_name_of_kind() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.read(queue, 0)
    reader = fixture.read(queue)
    fixture.send(queue, "large")
    decline(fixture, reader, "large", kind="VibeMQ with gzip")
    selector = reader.consumer.pending_queue.selector
    assert selector is not None
    with pytest.raises(SelectorError):
        compile_selector(selector.text)
