"""A disk that returns a flipped bit. The broker reports the location and does not start, or stops
when it reads the damage, or serves all messages that clients have received. It never delivers a
changed body."""

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
from tests.faults.disk import durable_end, flip_bit, newest_segment
from tests.faults.load import MAX_LEAD, QUEUE, Load, drain, make_body, number_of
from tests.faults.plan import SMALL_SEGMENTS, seeded_random, size
from tests.faults.recorder import Recorder

PHPMQ = ["phpmq://127.0.0.1:0"]
PAGED = {**SMALL_SEGMENTS, "SLUICEMQ_BROKER__MEMORY_BUDGET": "1 MiB"}
JOURNAL_FAILED = 74
MAX_ROUNDS = 20
"""Maximum rounds of the short form, which ends when the broker has detected a flip."""
MESSAGES = 4000
BATCH = 500
"""Messages per connection, whose close waits for the disk, so that segments end between writes."""
MIN_SEGMENT_BYTES = 100_000
"""Minimum size of the newest segment, as a new segment contains no message."""
DAMAGE_LOCATION = re.compile(r"(\d{20}\.segment|\d{20}\.snapshot|identity), offset \d+: ")


def test_bit_flipped_while_the_broker_is_stopped(tmp_path: Path) -> None:
    rng = seeded_random()
    recorder = Recorder()
    origin = tmp_path / "origin"
    broker = LocalBroker(origin, PHPMQ, environment=SMALL_SEGMENTS)
    with ExitStack() as stack:
        stack.callback(broker.stop)
        next_number = 0
        for iteration in range(2):
            broker.start()
            load = Load(
                broker.port("phpmq"), next_number, recorder, rng, 1000, MAX_LEAD[1 - iteration]
            )
            time.sleep(size(0.6, 1.0))
            broker.kill()
            next_number = load.end()
    refusals = 0
    for iteration in range(size(MAX_ROUNDS, 80)):
        if iteration >= size(4, 80) and refusals:
            break
        directory = tmp_path / str(iteration)
        shutil.copytree(origin / "journal", directory / "journal")
        refusals += _flip_and_start(directory, deepcopy(recorder), rng, active=iteration % 2 == 0)
        shutil.rmtree(directory)
    assert refusals


def _flip_and_start(
    directory: Path, recorder: Recorder, rng: random.Random, *, active: bool
) -> bool:
    """Flip a bit and start the broker; return whether the start was rejected."""
    newest_path = newest_segment(directory)
    other_segments = [
        p for p in (directory / "journal").iterdir() if p != newest_path and p.stat().st_size
    ]
    damaged_path = newest_path if active else rng.choice(sorted(other_segments))
    durable_bytes = durable_end(directory) if active else damaged_path.stat().st_size
    offset, bit = rng.randrange(durable_bytes), rng.randrange(8)
    print(f"{damaged_path.name}: bit {bit} of byte {offset} of {durable_bytes}")
    broker = LocalBroker(directory, PHPMQ, environment=SMALL_SEGMENTS)
    flip_bit(damaged_path, offset, bit)
    is_refused = False
    with ExitStack() as stack:
        stack.callback(broker.stop)
        try:
            broker.start()
        except ConnectionLost:
            is_refused = True
            flip_bit(damaged_path, offset, bit)
            log = broker.log.read_text()
            assert DAMAGE_LOCATION.search(log), log
            assert "sluicemq journal check" in log, log
            broker.start()  # the rejected start has changed nothing
        drain(broker.port("phpmq"), recorder)
        recorder.drained()
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()
    return is_refused


@pytest.mark.parametrize("segment", ["sealed", "active"])
def test_bit_flipped_while_the_broker_runs(tmp_path: Path, segment: str) -> None:
    rng = seeded_random()
    stops = 0
    for iteration in range(size(MAX_ROUNDS, 24)):
        if iteration >= size(2, 24) and stops:
            break
        broker = LocalBroker(tmp_path / str(iteration), PHPMQ, environment=PAGED)
        with ExitStack() as stack:
            stack.callback(broker.stop)
            broker.start()
            stops += _flip_and_read(broker, segment, rng)
        shutil.rmtree(broker.directory)
    assert stops


def _flip_and_read(broker: LocalBroker, segment: str, rng: random.Random) -> bool:
    """Flip a bit under the running broker; return whether it stopped because of the damage."""
    port = broker.port("phpmq")
    sent = 0
    while sent < MESSAGES or durable_end(broker.directory) < MIN_SEGMENT_BYTES:
        with BlockingClient(PhpmqClient.connect, port=port) as client:
            for number in range(sent, sent + BATCH):
                client.send(QUEUE, make_body(number, 1000))
        sent += BATCH
    newest_path = newest_segment(broker.directory)
    # the first messages are still in memory, and the last segment may not be sealed yet
    other_segments = sorted((broker.directory / "journal").glob("*.segment"))[1:-2]
    damaged_path = newest_path if segment == "active" else rng.choice(other_segments)
    content = damaged_path.read_bytes()
    if segment == "active":
        content = content[: durable_end(broker.directory)]
    offset = rng.randrange(len(content))
    if rng.random() < 0.5:  # more often in a body
        offset = max(offset, content.find(b" ", offset))
    print(f"{damaged_path.name}: byte {offset} of {len(content)}")
    flip_bit(damaged_path, offset, rng.randrange(8))
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
    assert broker.wait() == JOURNAL_FAILED
    log = broker.log.read_text()
    assert DAMAGE_LOCATION.search(log), log
    assert "Traceback" not in log
    return True
