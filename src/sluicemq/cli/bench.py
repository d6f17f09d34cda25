"""`sluicemq bench`: measure the speed of each protocol on this machine, briefly.

Each measurement starts a broker process in a temporary directory ($TMPDIR chooses the disk), unless
--url names a running broker. The Python clients send and receive in this process and need more
processor time per message than the broker does, so that they limit the rate. The load generators in
`benchmarks/` of the source tree measure what the broker alone can do.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from sluicemq.cli.console import Column, JsonFlag, err, number, print_json, show, table
from sluicemq.cli.local import LocalBroker
from sluicemq.cli.send_receive import open_client
from sluicemq.model.errors import ConfigurationError, ConnectionLost
from sluicemq.server.address import Url

CASES: Final = (
    ("phpmq", "sync", 1024),
    ("phpmq", "sync", 100),
    ("vibemq", "sync", 1024),
    ("jmq", "sync", 1024),
    ("msglite", "none", 100),
)
"""Protocol, durability, and bytes of a body."""
OUTSTANDING: Final = 1000
"""Maximum number of messages sent and not yet received."""
_BATCH: Final = 64
_PAUSE: Final = 0.001
_PATIENCE: Final = 30.0
"""Seconds without a message after which a measurement fails."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Transfer(msgspec.Struct, frozen=True):
    """Messages that were sent, received and acknowledged within `seconds`; `latencies` in seconds,
    in ascending order, from the time at which a message was due to its receipt."""

    messages: int
    seconds: float
    latencies: list[float]

    def quantile_ms(self, share: float) -> float:
        """Return a quantile of the latencies in ms."""
        return round(1000 * self.latencies[int(share * (len(self.latencies) - 1))], 3)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one protocol.

    rate            messages/s at full speed, acknowledged one by one
    broker_us       processor time of the broker per message in µs; 0 = unknown
    p50_ms, p99_ms  latency at half of that rate
    """

    protocol: str
    durability: str
    size: int
    rate: int
    broker_us: float
    p50_ms: float
    p99_ms: float


_COLUMNS: Final[tuple[Column[Measurement], ...]] = (
    Column("Protocol", lambda item: item.protocol),
    Column("Durability", lambda item: item.durability),
    Column("Bytes", lambda item: number(item.size), right=True),
    Column("Rate", lambda item: f"{item.rate:,}/s", right=True),
    Column("Broker", lambda item: f"{item.broker_us:.1f} µs" if item.broker_us else "", right=True),
    Column("p50", lambda item: f"{item.p50_ms:.2f} ms", right=True),
    Column("p99", lambda item: f"{item.p99_ms:.2f} ms", right=True),
)


def bench(
    seconds: Annotated[
        float, typer.Option(min=0.05, max=3600, help="Duration of each timed run.")
    ] = 2.0,
    url: Annotated[
        str | None,
        typer.Option(
            help="A running broker (phpmq://, msglite://, vibemq://, jmq://) instead of new ones."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure throughput, latency and processor time of each protocol, in half a minute."""
    results = []
    with err().status("") as status:
        if url is not None:
            target = Url.parse(url)
            if target.queue:
                raise ConfigurationError(f"{target}: bench uses a queue of its own")
            status.update(str(target))
            queue = f"bench-{os.urandom(4).hex()}"
            results.append(_measure(target._replace(queue=queue), "", 1024, seconds, None))
        for protocol, durability, size in CASES if url is None else ():
            status.update(f"{protocol}, {durability}, {size:,} bytes")
            listen = f"{protocol}://127.0.0.1:0?durability={durability}"
            with (
                tempfile.TemporaryDirectory(prefix="sluicemq-bench-") as directory,
                LocalBroker(Path(directory), [listen]) as broker,
            ):
                target = Url(protocol, port=broker.port(protocol), queue="bench")
                results.append(_measure(target, durability, size, seconds, broker.pid))
    if as_json:
        print_json(results)
    else:
        show(table(_COLUMNS, results))


def _measure(url: Url, durability: str, size: int, seconds: float, pid: int | None) -> Measurement:
    before = _cpu_seconds(pid)
    flood = asyncio.run(transfer(url, size, seconds=seconds))
    used = _cpu_seconds(pid) - before
    rate = round(flood.messages / flood.seconds)
    steady = asyncio.run(transfer(url, size, seconds=seconds, rate=max(1, rate // 2)))
    return Measurement(
        protocol=url.protocol,
        durability=durability,
        size=size,
        rate=rate,
        broker_us=round(1e6 * used / flood.messages, 1),
        p50_ms=steady.quantile_ms(0.5),
        p99_ms=steady.quantile_ms(0.99),
    )


async def transfer(
    url: Url, size: int, *, seconds: float = 3600.0, messages: int = 1 << 40, rate: int = 0
) -> Transfer:
    """Send messages through the URL's queue, and acknowledge each: for `seconds`, at most
    `messages`, `rate` per second by the clock or, if that is 0, as fast as they are received.

    Raises ConfigurationError, ClientError.
    """
    sender = await open_client(url, _PATIENCE)
    receiver = await open_client(url, _PATIENCE)
    body = b"x" * size
    due: deque[float] = deque()
    latencies: list[float] = []
    await receiver.receive(0, 1)  # subscribes
    started = time.perf_counter()

    async def send() -> None:
        sent = 0
        while sent < messages and (now := time.perf_counter() - started) < seconds:
            count = int(now * rate) + 1 - sent if rate else _BATCH
            count = min(count, messages - sent, OUTSTANDING - len(due))
            if count > 0:
                due.extend((sent + i) / rate if rate else now for i in range(count))
                await sender.send([body] * count, 0)
                sent += count
            await asyncio.sleep(_PAUSE if rate or count <= 0 else 0)

    sending = asyncio.create_task(send())
    last = 0.0
    while due or not sending.done():
        batch = await receiver.receive(0.5, _BATCH)
        await receiver.settle(batch)
        now = time.perf_counter() - started
        latencies += [now - due.popleft() for _ in batch]
        last = now if batch else last
        if now - last > _PATIENCE:
            raise ConnectionLost(f"nothing came from {url} within {_PATIENCE:g} s")
    await sending
    await sender.confirm()
    await sender.close()
    await receiver.close()
    return Transfer(len(latencies), last, sorted(latencies))


def _cpu_seconds(pid: int | None) -> float:
    """Return user and system time of a process; 0 if `pid` is None. Raises OSError."""
    if pid is None:
        return 0.0
    # the program's name is in parentheses and may contain spaces
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
