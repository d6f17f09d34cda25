"""The wall clock is set while the broker runs: what has a time to live lives as long as it was
given, by the steady clock. Across a restart there is only the wall clock: a step forward counts as
time that has passed, a step back is found in the journal and costs nothing."""

from __future__ import annotations

import struct
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.errors import RequestTimeout
from tests.faults.plan import machine, seeded_random, size

LISTEN = (
    "phpmq://127.0.0.1:0?idle_timeout=600",
    "msglite://127.0.0.1:0",
    "msglite+unix://{}?durability=sync",
)
HOUR = 3600
SHORT = 2
"""Seconds to live of what is to expire during the test."""
JUMPS = [5 * HOUR, -5 * HOUR, 400 * 24 * HOUR, -400 * 24 * HOUR]


class BrokerClock:
    """Wall clock of a broker process, which a test sets."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_bytes(bytes(8))

    def set(self, offset: int) -> None:
        """Set the wall clock `offset` seconds ahead of the true time."""
        with self.file.open("r+b") as file:
            file.write(struct.pack("<q", offset * 1000))


def bodies(port: int, queue: str) -> list[tuple[bytes, int]]:
    """Return the messages of a queue with their reported seconds to live; consume none."""
    messages = []
    with BlockingClient(PhpmqClient.connect, port=port) as client:
        client.send(queue, b"last")
        client.subscribe(queue, 100)
        while (message := client.receive(30.0)).body != b"last":
            messages.append((message.body, message.ttl))
        message.ack()
    return messages


@pytest.mark.parametrize("jump", JUMPS[: size(2, 4)])
def test_a_clock_that_is_set_while_the_broker_runs(tmp_path: Path, jump: int) -> None:
    wall = BrokerClock(tmp_path / "clock")
    path = tmp_path / "socket"
    with LocalBroker(
        tmp_path, [url.format(path) for url in LISTEN], program=machine(f"clock:{wall.file}")
    ) as broker:
        port = broker.port("phpmq")
        with ExitStack() as stack:
            phpmq = stack.enter_context(BlockingClient(PhpmqClient.connect, port=port))
            msglite = stack.enter_context(BlockingClient(MsgliteClient.connect, path=str(path)))
            sent = time.monotonic()
            phpmq.send("short", b"a", SHORT)
            phpmq.send("long", b"b", HOUR)
            phpmq.send("ever", b"c")
            msglite.send("msglite", b"d", HOUR)
            assert bodies(port, "ever") == [(b"c", 0)]
            wall.set(jump)
            # at once: no message has aged, whatever the clock shows
            short_messages = bodies(port, "short")
            if time.monotonic() - sent < SHORT:
                assert short_messages in ([(b"a", 1)], [(b"a", SHORT)])
            [(_, remaining)] = bodies(port, "long")
            assert HOUR - 60 < remaining <= HOUR
            # new messages live as long, and a waiting client waits for the requested time
            phpmq.send("new", b"f", SHORT)
            phpmq.confirm()  # its life has begun
            before = time.monotonic()
            assert msglite.ready("nothing", timeout=1) is None
            assert 0.9 < time.monotonic() - before < 10
            time.sleep(max(0.0, SHORT + 0.5 - (time.monotonic() - before)))
            assert bodies(port, "short") == bodies(port, "new") == []
            assert [body for body, _ in bodies(port, "long")] == [b"b"]
            message = msglite.ready("msglite", timeout=0)
            assert message is not None
            assert message.body == b"d"
        assert "Traceback" not in broker.log.read_text()


def test_a_clock_that_is_set_before_a_message_is_on_disk(tmp_path: Path) -> None:
    """Between the sending and the showing of a message there is a sync, which may take long."""
    chance = seeded_random()
    wall = BrokerClock(tmp_path / "clock")
    program = machine(f"clock:{wall.file}", f"slow:{chance.randrange(1 << 32)}")
    with (
        LocalBroker(tmp_path, LISTEN[:1], program=program) as broker,
        BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client,
    ):
        client.subscribe("q", 10)
        for turn in range(size(15, 600)):
            sent = time.monotonic()
            client.send("q", b"%d" % turn, 60)
            time.sleep(0.002)  # until it has been read, because the jump must follow that
            wall.set(JUMPS[turn % 2])
            message = client.receive(30.0)
            assert message.body == b"%d" % turn
            assert int(60 - (time.monotonic() - sent)) <= message.ttl <= 60
            message.ack()


@pytest.mark.parametrize(
    ("set_to", "left"), [(HOUR // 2, HOUR // 2), (2 * HOUR, 0), (-2 * HOUR, HOUR)]
)
def test_a_clock_that_is_set_across_a_restart(tmp_path: Path, set_to: int, left: int) -> None:
    wall = BrokerClock(tmp_path / "clock")
    broker = LocalBroker(tmp_path, LISTEN[:1], program=machine(f"clock:{wall.file}"))
    with broker, BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client:
        client.send("q", b"mortal", HOUR)
        client.send("q", b"immortal")
    wall.set(set_to)
    with broker:
        ttls = dict(bodies(broker.port("phpmq"), "q"))
        assert ttls.pop(b"immortal") == 0
        assert list(ttls) == ([b"mortal"] if left else [])
        for ttl in ttls.values():
            assert left - 60 < ttl <= left
        with pytest.raises(RequestTimeout):
            _receive_all(broker.port("phpmq"), 1 + len(ttls))


def _receive_all(port: int, count: int) -> None:
    """Acknowledge so many, and wait for one more."""
    with BlockingClient(PhpmqClient.connect, port=port) as client:
        client.subscribe("q", 100)
        for _ in range(count):
            client.receive(10.0).ack()
        client.receive(0.3)
