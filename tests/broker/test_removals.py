"""Who counts what destinations have done learns of their end."""

from __future__ import annotations

from sluicemq.broker import Destination
from tests.broker.support import Rig


def test_the_end_of_a_destination_is_told_once_and_with_its_last_figures() -> None:
    rig = Rig()
    gone: list[tuple[Destination, int]] = []
    rig.broker.removals.append(
        lambda destination: gone.append((destination, published(destination)))
    )
    queue = rig.broker.queue("q")
    rig.send(queue, "a", "b")
    rig.broker.remove(queue)
    rig.broker.remove(queue)
    assert gone == [(queue, 2)]
    assert queue.removed
    assert rig.broker.find(queue.address) is None


def test_a_successor_of_the_same_name_is_another_destination() -> None:
    rig = Rig()
    gone: list[Destination] = []
    rig.broker.removals.append(gone.append)
    first = rig.broker.queue("q")
    rig.broker.remove(first)
    second = rig.broker.queue("q")
    rig.broker.remove(first)
    assert gone == [first]
    rig.broker.remove(second)
    assert gone == [first, second]


def published(destination: Destination) -> int:
    return destination.statistics.published
