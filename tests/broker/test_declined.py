"""Messages that a consumer cannot take."""

from __future__ import annotations

import pytest

from sluicemq.broker import declined
from sluicemq.broker.selectors import compile_selector
from sluicemq.model.errors import SelectorError
from tests.broker.support import OfType, Reader, Rig, bodies


def decline(rig: Rig, reader: Reader, *names: str, kind: str = "plain") -> None:
    """Decline what the reader holds of these bodies."""
    held = reader.held()
    rig.broker.decline(reader.consumer, [held[name] for name in names], kind, "TooLarge")
    rig.broker.flush()


def test_declined_message_waits_for_another_consumer_in_its_place() -> None:
    rig = Rig()
    queue = rig.queue(max_attempts=1)
    able = rig.read(queue, 0, refill=False)
    reader = rig.read(queue, 3)
    rig.send(queue, "a", "large", "c", "d")
    decline(rig, reader, "large")
    assert bodies(queue) == ["a", "large", "c", "d"]
    assert reader.got() == ["a", "large", "c", "d"]
    rig.broker.grant(able.consumer.window, 1)
    rig.broker.flush()
    assert able.got() == ["large"]
    assert able.attempts == {"large": 1}


def test_declined_message_is_not_offered_to_its_kind_again() -> None:
    rig = Rig()
    queue = rig.queue()
    rig.read(queue, 0)
    first, second = rig.read(queue, 1), rig.read(queue, 1)
    rig.send(queue, "large")
    decline(rig, first, "large")
    assert second.got() == ["large"]
    decline(rig, second, "large")
    for _ in range(5):
        rig.wait(1000)
    rig.send(queue, "small")
    assert "large" not in (first.got() + second.got())[1:]
    assert queue.queue.ready == 1


def test_message_that_no_consumer_can_take_becomes_a_dead_letter_whatever_the_settings() -> None:
    rig = Rig()
    queue = rig.queue(dead_letter=False)
    first, second = rig.read(queue), rig.read(queue)
    rig.send(queue, "large")
    decline(rig, first, "large")
    decline(rig, second, "large")
    [dead_letter] = rig.dead()
    assert (dead_letter.properties or {})["deadLetterReason"] == "TooLarge"
    assert bodies(queue) == []


def test_consumer_whose_selector_matches_can_take_it() -> None:
    rig = Rig()
    queue = rig.queue()
    matching = rig.read(queue, 0, refill=False, selector=OfType("a"))
    rig.read(queue, 0, refill=False, selector=OfType("b"))
    reader = rig.read(queue)
    rig.send(queue, "large", type="a")
    rig.send(queue, "other", type="c")
    decline(rig, reader, "large", "other")
    assert [dead_letter.body for dead_letter in rig.dead()] == [b"other"]
    rig.broker.grant(matching.consumer.window, 1)
    rig.broker.flush()
    assert matching.got() == ["large"]


def test_dead_letter_stays_where_it_is() -> None:
    rig = Rig()
    queue = rig.queue()
    rig.send(queue, "large", properties={"deadLetterReason": "expired"})
    reader = rig.read(queue)
    decline(rig, reader, "large")
    assert bodies(queue) == ["large"]
    reader.detach()
    again = rig.read(queue)
    decline(rig, again, "large")
    rig.wait(1000)
    assert again.got() == ["large"]
    assert bodies(queue) == ["large"]
    assert rig.read(queue).got() == ["large"]


def test_last_consumer_that_could_take_it_leaves() -> None:
    rig = Rig()
    queue = rig.queue()
    able = rig.read(queue, 0, refill=False)
    reader = rig.read(queue)
    rig.send(queue, "large")
    decline(rig, reader, "large")
    rig.broker.grant(able.consumer.window, 1)
    rig.broker.flush()
    assert able.got() == ["large"]
    able.detach()
    decline(rig, reader, "large")
    assert [dead_letter.body for dead_letter in rig.dead()] == [b"large"]


def test_what_is_remembered_is_bounded() -> None:
    rig = Rig()
    queue = rig.queue()
    rig.read(queue, 0)
    count = declined.MOST_DECLINED + 10
    reader = rig.read(queue, count)
    sequences = rig.send(queue, *map(str, range(count)))
    while len(reader.consumer.unacked) < count:
        rig.broker.flush()
    decline(rig, reader, *map(str, range(count)))
    selector = reader.consumer.pending_queue.selector
    assert isinstance(selector, declined.Acceptable)
    assert selector.declined == declined.MOST_DECLINED
    assert queue.queue.ready == declined.MOST_DECLINED  # the others are offered once more
    assert len(reader.consumer.unacked) == len(sequences) - declined.MOST_DECLINED


def test_no_jms_selector_has_the_name_of_a_kind() -> None:
    rig = Rig()
    queue = rig.queue()
    rig.read(queue, 0)
    reader = rig.read(queue)
    rig.send(queue, "large")
    decline(rig, reader, "large", kind="VibeMQ with gzip")
    selector = reader.consumer.pending_queue.selector
    assert selector is not None
    with pytest.raises(SelectorError):
        compile_selector(selector.text)
