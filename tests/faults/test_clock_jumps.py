"""The wall clock is set while the broker runs: times to live follow the steady clock. Across a
restart only the wall clock is known: a step forward counts as elapsed time; a step back is detected
from the journal and ignored."""

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
"""Time to live of messages that expire during the test, in seconds."""
JUMPS = [5 * HOUR, -5 * HOUR, 400 * 24 * HOUR, -400 * 24 * HOUR]


class BrokerClock:
    """The wall clock of a broker process, which the test sets."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_bytes(bytes(8))

    def set(self, offset: int) -> None:
        """Set the wall clock `offset` seconds ahead of the true time."""
        with self.file.open("r+b") as file:
            file.write(struct.pack("<q", offset * 1000))


def read_messages(port: int, queue: str) -> list[tuple[bytes, int]]:
    """Return the messages of a queue with their remaining seconds to live; do not consume them."""
    messages = []
    with BlockingClient(PhpmqClient.connect, port=port) as client:
        client.send(queue, b"last")
        client.subscribe(queue, 100)
        while (message := client.receive(30.0)).body != b"last":
            messages.append((message.body, message.ttl))
        message.ack()
    return messages


@pytest.mark.parametrize("jump", JUMPS[: size(2, 4)])
def test_clock_jump_does_not_change_the_time_to_live(tmp_path: Path, jump: int) -> None:
    broker_clock = BrokerClock(tmp_path / "clock")
    path = tmp_path / "socket"
    with LocalBroker(
        tmp_path,
        [url.format(path) for url in LISTEN],
        program=machine(f"clock:{broker_clock.file}"),
    ) as broker:
        port = broker.port("phpmq")
        with ExitStack() as stack:
            phpmq = stack.enter_context(BlockingClient(PhpmqClient.connect, port=port))
            msglite = stack.enter_context(BlockingClient(MsgliteClient.connect, path=str(path)))
            sent = time.monotonic()
            phpmq.send("short", b"a", SHORT)
            phpmq.send("long", b"b", HOUR)
            phpmq.send("unlimited", b"c")
            msglite.send("msglite", b"d", HOUR)
            assert read_messages(port, "unlimited") == [(b"c", 0)]
            broker_clock.set(jump)
            # the jump does not age messages
            short_messages = read_messages(port, "short")
            if time.monotonic() - sent < SHORT:
                assert short_messages in ([(b"a", 1)], [(b"a", SHORT)])
            [(_, remaining)] = read_messages(port, "long")
            assert HOUR - 60 < remaining <= HOUR
            # the time to live of new messages and timeouts of clients are not affected
            phpmq.send("new", b"f", SHORT)
            phpmq.confirm()  # its time to live has begun
            before = time.monotonic()
            assert msglite.ready("nothing", timeout=1) is None
            assert 0.9 < time.monotonic() - before < 10
            time.sleep(max(0.0, SHORT + 0.5 - (time.monotonic() - before)))
            assert read_messages(port, "short") == read_messages(port, "new") == []
            assert [body for body, _ in read_messages(port, "long")] == [b"b"]
            message = msglite.ready("msglite", timeout=0)
            assert message is not None
            assert message.body == b"d"
        assert "Traceback" not in broker.log.read_text()


def test_clock_jump_before_the_sync_does_not_change_the_time_to_live(tmp_path: Path) -> None:
    """Between publish and delivery there is a sync, which may be slow."""
    rng = seeded_random()
    broker_clock = BrokerClock(tmp_path / "clock")
    program = machine(f"clock:{broker_clock.file}", f"slow:{rng.randrange(1 << 32)}")
    with (
        LocalBroker(tmp_path, LISTEN[:1], program=program) as broker,
        BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client,
    ):
        client.subscribe("q", 10)
        for iteration in range(size(15, 600)):
            sent = time.monotonic()
            client.send("q", b"%d" % iteration, 60)
            time.sleep(0.002)  # the jump must follow the read by the broker
            broker_clock.set(JUMPS[iteration % 2])
            message = client.receive(30.0)
            assert message.body == b"%d" % iteration
            assert int(60 - (time.monotonic() - sent)) <= message.ttl <= 60
            message.ack()


@pytest.mark.parametrize(
    ("offset", "remaining"), [(HOUR // 2, HOUR // 2), (2 * HOUR, 0), (-2 * HOUR, HOUR)]
)
def test_clock_jump_across_a_restart_counts_forward_only(
    tmp_path: Path, offset: int, remaining: int
) -> None:
    broker_clock = BrokerClock(tmp_path / "clock")
    broker = LocalBroker(tmp_path, LISTEN[:1], program=machine(f"clock:{broker_clock.file}"))
    with broker, BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client:
        client.send("q", b"expiring", HOUR)
        client.send("q", b"unlimited")
    broker_clock.set(offset)
    with broker:
        ttls = dict(read_messages(broker.port("phpmq"), "q"))
        assert ttls.pop(b"unlimited") == 0
        assert list(ttls) == ([b"expiring"] if remaining else [])
        for ttl in ttls.values():
            assert remaining - 60 < ttl <= remaining
        with pytest.raises(RequestTimeout):
            _receive_all(broker.port("phpmq"), 1 + len(ttls))


def _receive_all(port: int, count: int) -> None:
    """Acknowledge `count` messages, and wait for one more."""
    with BlockingClient(PhpmqClient.connect, port=port) as client:
        client.subscribe("q", 100)
        for _ in range(count):
            client.receive(10.0).ack()
        client.receive(0.3)
