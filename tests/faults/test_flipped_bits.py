"""A disk that returns a flipped bit. The broker refuses to start and reports the place,
or stops when it meets the damage, or serves all messages that clients saw; it never delivers a
body that differs from the sent one."""

from __future__ import annotations

import random
import re
import shutil
import time
from contextlib import ExitStack, suppress
from copy import deepcopy
from pathlib import Path

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.errors import ClientError, ConnectionLost
from tests.faults.disk import durable_end, flip, newest_segment
from tests.faults.load import MAX_LEAD, QUEUE, Load, drain, make_body, number_of
from tests.faults.plan import SMALL_SEGMENTS, seeded_random, size
from tests.faults.recorder import Recorder

PHPMQ = ["phpmq://127.0.0.1:0"]
PAGED = {**SMALL_SEGMENTS, "SLUICEMQ_BROKER__MEMORY_BUDGET": "1 MiB"}
STOPPED = 74
MAX_ROUNDS = 20
"""Maximum rounds of the short form, which ends when the broker has met one of the flips."""
MESSAGES = 4000
BATCH = 500
"""Messages on one connection, whose end waits for the disk: segments end between two writes."""
FILLED = 100_000
"""Minimum bytes of the newest segment: one that was just begun holds no message."""
WHERE = re.compile(r"(\d{20}\.segment|\d{20}\.snapshot|identity), offset \d+: ")


def test_a_bit_that_flips_while_the_broker_is_stopped(tmp_path: Path) -> None:
    chance = seeded_random()
    recorder = Recorder()
    origin = tmp_path / "origin"
    broker = LocalBroker(origin, PHPMQ, environment=SMALL_SEGMENTS)
    with ExitStack() as stack:
        stack.callback(broker.stop)
        following = 0
        for turn in range(2):
            broker.start()
            load = Load(broker.port("phpmq"), following, recorder, chance, 1000, MAX_LEAD[1 - turn])
            time.sleep(size(0.6, 1.0))
            broker.kill()
            following = load.end()
    refusals = 0
    for turn in range(size(MAX_ROUNDS, 80)):
        if turn >= size(4, 80) and refusals:
            break
        directory = tmp_path / str(turn)
        shutil.copytree(origin / "journal", directory / "journal")
        refusals += _flip_and_start(directory, deepcopy(recorder), chance, active=turn % 2 == 0)
        shutil.rmtree(directory)
    assert refusals


def _flip_and_start(
    directory: Path, recorder: Recorder, chance: random.Random, *, active: bool
) -> bool:
    """Flip a bit and start the broker; return whether it refused to start."""
    newest_path = newest_segment(directory)
    other_segments = [
        p for p in (directory / "journal").iterdir() if p != newest_path and p.stat().st_size
    ]
    damaged_path = newest_path if active else chance.choice(sorted(other_segments))
    durable_bytes = durable_end(directory) if active else damaged_path.stat().st_size
    offset, bit = chance.randrange(durable_bytes), chance.randrange(8)
    print(f"{damaged_path.name}: bit {bit} of byte {offset} of {durable_bytes}")
    broker = LocalBroker(directory, PHPMQ, environment=SMALL_SEGMENTS)
    flip(damaged_path, offset, bit)
    is_refused = False
    with ExitStack() as stack:
        stack.callback(broker.stop)
        try:
            broker.start()
        except ConnectionLost:
            is_refused = True
            flip(damaged_path, offset, bit)
            log = broker.log.read_text()
            assert WHERE.search(log), log
            assert "sluicemq journal check" in log, log
            broker.start()  # nothing has been changed
        drain(broker.port("phpmq"), recorder)
        recorder.drained()
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()
    return is_refused


@pytest.mark.parametrize("where", ["sealed", "active"])
def test_a_bit_that_flips_under_a_running_broker(tmp_path: Path, where: str) -> None:
    chance = seeded_random()
    stops = 0
    for turn in range(size(MAX_ROUNDS, 24)):
        if turn >= size(2, 24) and stops:
            break
        broker = LocalBroker(tmp_path / str(turn), PHPMQ, environment=PAGED)
        with ExitStack() as stack:
            stack.callback(broker.stop)
            broker.start()
            stops += _flip_and_read(broker, where, chance)
        shutil.rmtree(broker.directory)
    assert stops


def _flip_and_read(broker: LocalBroker, where: str, chance: random.Random) -> bool:
    """Flip a bit under the running broker; return whether it stopped when it met the damage."""
    port = broker.port("phpmq")
    sent = 0
    while sent < MESSAGES or durable_end(broker.directory) < FILLED:
        with BlockingClient(PhpmqClient.connect, port=port) as client:
            for number in range(sent, sent + BATCH):
                client.send(QUEUE, make_body(number, 1000))
        sent += BATCH
    newest_path = newest_segment(broker.directory)
    # the first messages are still in memory, and the last segment may still be being sealed
    other_segments = sorted((broker.directory / "journal").glob("*.segment"))[1:-2]
    damaged_path = newest_path if where == "active" else chance.choice(other_segments)
    content = damaged_path.read_bytes()
    if where == "active":
        content = content[: durable_end(broker.directory)]
    offset = chance.randrange(len(content))
    if chance.random() < 0.5:  # more often in a body
        offset = max(offset, content.find(b" ", offset))
    print(f"{damaged_path.name}: byte {offset} of {len(content)}")
    flip(damaged_path, offset, chance.randrange(8))
    numbers = []
    with suppress(ClientError), BlockingClient(PhpmqClient.connect, port=port) as client:
        client.subscribe(QUEUE, 100)
        while len(numbers) < sent:
            message = client.receive(30.0)
            numbers.append(number_of(message.body))
            message.ack()
    assert numbers == list(range(len(numbers)))
    if len(numbers) == sent:
        return False
    assert broker.wait() == STOPPED
    log = broker.log.read_text()
    assert WHERE.search(log), log
    assert "Traceback" not in log
    return True
