"""The end of the newest segment differs from the written data: garbage after the durable end is
removed; a file shorter than its durable size is reported, and its remaining records are served."""

from __future__ import annotations

import json
import random
import time
from contextlib import ExitStack
from pathlib import Path

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.journal.segment import SEGMENT_HEADER_BYTES
from tests.faults.disk import durable_end, garbage, newest_segment, truncate
from tests.faults.load import MAX_LEAD, QUEUE, TIMEOUT_SECONDS, Load, drain, make_body, number_of
from tests.faults.plan import SMALL_SEGMENTS, seeded_random, size
from tests.faults.recorder import Recorder
from tests.support.polling import wait_until

ROUNDS = size(5, 60)
JSON_LOG = {"SLUICEMQ_LOGGING__FORMAT": "json"}


def test_torn_tail_loses_no_delivered_message(tmp_path: Path) -> None:
    rng = seeded_random()
    recorder = Recorder()
    broker = LocalBroker(tmp_path, ["phpmq://127.0.0.1:0"], environment=SMALL_SEGMENTS)
    with ExitStack() as stack:
        stack.callback(broker.stop)
        next_number = 0
        for iteration in range(ROUNDS):
            broker.start()
            port = broker.port("phpmq")
            load = Load(port, next_number, recorder, rng, 200, MAX_LEAD[iteration % 2])
            time.sleep(rng.uniform(0.05, 0.4))
            if (
                iteration == ROUNDS - 1
            ):  # on a slow machine, earlier iterations may have ended too early
                wait_until(lambda: recorder.highest > 0, seconds=TIMEOUT_SECONDS)
            broker.kill()
            next_number = load.end()
            _tear(tmp_path, rng)
        broker.start()
        drain(broker.port("phpmq"), recorder)
        assert recorder.highest > 0
        recorder.drained()
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()


def _tear(directory: Path, rng: random.Random) -> None:
    """Keep the durable data and a part of the data written after it."""
    newest_path = newest_segment(directory)
    durable = durable_end(directory)
    truncate(newest_path, rng.randint(durable, newest_path.stat().st_size))
    if rng.random() < 0.8:
        rest = garbage(newest_path, rng)
        with newest_path.open("ab") as file:
            file.write(rest)


def test_lost_records_are_reported_and_the_rest_is_served(tmp_path: Path) -> None:
    rng = seeded_random()
    for iteration in range(size(2, 20)):
        directory = tmp_path / str(iteration)
        broker = LocalBroker(directory, ["phpmq://127.0.0.1:0"], environment=JSON_LOG)
        with ExitStack() as stack:
            stack.callback(broker.stop)
            broker.start()
            bodies = [make_body(number, rng.randrange(3000)) for number in range(300)]
            with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client:
                for body in bodies:
                    client.send(QUEUE, body)
            broker.kill()
            newest_path = newest_segment(directory)
            durable = durable_end(directory)
            # after the first record
            end = rng.randrange(SEGMENT_HEADER_BYTES + 200, durable)
            truncate(newest_path, end)
            remaining = newest_path.read_bytes()
            expected = [
                number for number, body in enumerate(bodies) if _is_complete(body, remaining)
            ]
            broker.start()
            assert _drain_numbers(broker.port("phpmq")) == expected
            log_lines = [json.loads(line) for line in broker.log.read_text().splitlines()]
            [report] = [line for line in log_lines if line["level"] == "error"]
            assert durable - end <= report["lost_bytes"] < durable - end + 4000
            assert broker.stop() == 0


def _is_complete(body: bytes, content: bytes) -> bool:
    """Return whether the file has a record that ends with the body and its padding."""
    position = content.find(body)
    return position >= 0 and (position + len(body) + 7 & -8) <= len(content)


def _drain_numbers(port: int) -> list[int]:
    """Return the numbers of all ready messages, in order."""
    with BlockingClient(PhpmqClient.connect, port=port) as client:
        client.send(QUEUE, b"last")
        client.subscribe(QUEUE, 100)
        numbers = []
        while (message := client.receive(30.0)).body != b"last":
            numbers.append(number_of(message.body))
            message.ack()
        message.ack()
    return numbers
