"""Concurrent browsers with the largest accepted selector on a long queue: no iteration of the event
loop evaluates it after the scan time.

The deadline is a number of checks, so that the test does not depend on a clock.
"""

from __future__ import annotations

import pytest

from sluicemq.broker.selectors import CompiledSelector
from sluicemq.model.message import Message
from sluicemq.protocols.jmq.packets import PacketType
from sluicemq.protocols.jmq.wire import Packet
from tests.faults.plan import LONG
from tests.protocols.jmq.harness import Harness

MESSAGES = 32_768 if LONG else 1500
DEADLINE_CHECKS = 500 if LONG else 37
BROWSERS = 3
SELECTOR = " OR ".join(["a = -1"] * 126) + " OR a > 0"


class Evaluations:
    """Counts evaluations in each event-loop iteration."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._iteration = -1
        self._count = 0
        self.total = 0
        self.maximum = 0

    def count(self) -> None:
        """Count one evaluation."""
        iteration = len(self._harness.scan_time.checks)
        self._count = self._count + 1 if iteration == self._iteration else 1
        self._iteration = iteration
        self.total += 1
        self.maximum = max(self.maximum, self._count)


def test_browsers_evaluate_nothing_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    peers = [harness.connect() for _ in range(BROWSERS)]
    peers[0].create("q")
    queue = harness.queue("q")
    for number in range(MESSAGES):
        harness.broker.publish(queue, Message(queue.address, b"", properties={"a": number % 2}))
    harness.run_event_loop()
    evaluations = Evaluations(harness)
    evaluate = CompiledSelector.__call__

    def counting_call(selector: CompiledSelector, message: Message) -> bool:
        evaluations.count()
        return evaluate(selector, message)

    monkeypatch.setattr(CompiledSelector, "__call__", counting_call)
    harness.scan_time.limit = DEADLINE_CHECKS
    for peer in peers:
        properties = {**peer.destination_properties("q"), "JMQSelector": SELECTOR}
        peer.session.receive(peer.encode_request(PacketType.BROWSE, properties)[1])
    replies: list[Packet] = []
    while len(replies) < BROWSERS:
        harness.broker.flush()
        for peer in peers:
            replies += peer.receive()
    assert [len(answer.body) // 32 for answer in replies] == [MESSAGES // 2] * BROWSERS
    assert evaluations.total == BROWSERS * MESSAGES
    assert evaluations.maximum <= DEADLINE_CHECKS + 1
