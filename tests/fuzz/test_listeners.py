"""Hostile input for every kind of listener, in a broker process that other clients use as well.

The other clients must not be affected. FUZZ=1 runs the long form; FUZZ_SEED repeats a run.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Final, NamedTuple

import pytest

from sluicemq.cli.api import Api
from sluicemq.cli.local import LocalBroker
from sluicemq.clients.http import HttpTarget
from sluicemq.journal.inspect import check
from sluicemq.management.broker import GET_OVERVIEW, GET_STATUS, OverviewQuery
from sluicemq.management.operation import NoParameters
from tests.fuzz import corpus
from tests.fuzz import jmq as jmq_corpus
from tests.fuzz.campaign import Campaign, flood_case, mutated_case, noise_case
from tests.fuzz.steady_clients import (
    TIMEOUT_SECONDS,
    GatewayWorker,
    JmqPair,
    MsglitePair,
    PhpmqPair,
    SteadyClient,
)

STEADY_LISTENERS: Final = ("phpmq://127.0.0.1:0", "msglite://127.0.0.1:0", "jmq://127.0.0.1:0")


class Effort(NamedTuple):
    """The input of one listener: bytes of noise, mutated frames, connections that repeat a frame;
    seconds are an upper bound."""

    noise: int
    frames: int
    floods: int
    seconds: float


LONG: Final = bool(os.environ.get("FUZZ"))
EFFORT: Final = (
    Effort(100_000_000, 100_000, 30, 120.0) if LONG else Effort(2_000_000, 4000, 3, 20.0)
)
SEED: Final = int(os.environ.get("FUZZ_SEED", SystemRandom().randrange(1 << 32) if LONG else 1))

MEMORY_GROWTH: Final = 128 << 20
"""Bytes by which the process may grow: it keeps what valid frames among the mutated ones sent."""
FILES_GROWTH: Final = 4
"""Files that are no sockets: segments of the journal come and go."""

LISTENERS: Final[dict[str, corpus.Conversation]] = {
    "phpmq": corpus.phpmq,
    "phpmq-maintenance": corpus.maintenance,
    "msglite": corpus.msglite,
    "msglite+unix": corpus.msglite,
    "msglite-http": corpus.http,
    "http": corpus.api,
    "vibemq": corpus.vibemq,
    "jmq": jmq_corpus.listener,
    "auto": corpus.any_first_byte,
}


@contextmanager
def run_listener(
    kind: str, directory: Path
) -> Iterator[tuple[LocalBroker, Callable[[], socket.socket]]]:
    """Run a broker, and return it with a function that connects to the listener of a kind."""
    path = directory / "hostile.sock"
    url = f"{kind}://{path}" if "unix" in kind else f"{kind}://127.0.0.1:0"
    broker = LocalBroker(
        directory / "broker",
        list(dict.fromkeys([*STEADY_LISTENERS, url])),
        environment={"SLUICEMQ_LOGGING__FORMAT": "json", "SLUICEMQ_LOGGING__LEVEL": "info"},
    )
    with broker:
        if "unix" in kind:
            yield broker, partial(_connect_unix, path)
        else:
            address = ("127.0.0.1", broker.port(kind))
            yield broker, partial(socket.create_connection, address, TIMEOUT_SECONDS)
        # so that the log of the shutdown is checked, too
        assert broker.stop() == 0
    assert "Traceback" not in broker.log.read_text(errors="replace")
    assert check(broker.directory / "journal").problems == []


def _connect_unix(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(TIMEOUT_SECONDS)
    connection.connect(str(path))
    return connection


@pytest.mark.parametrize("kind", LISTENERS)
def test_malformed_input_of_one_client_does_not_affect_others(kind: str, tmp_path: Path) -> None:
    print(f"\nto repeat: FUZZ_SEED={SEED}")
    with ExitStack() as stack:
        broker, connect_socket = stack.enter_context(run_listener(kind, tmp_path))
        steady_clients: list[SteadyClient] = [
            PhpmqPair(broker),
            MsglitePair(broker),
            JmqPair(broker),
        ]
        if kind == "msglite-http":
            steady_clients.append(GatewayWorker(broker))
        for steady_client in steady_clients:
            steady_client.start()
        for (
            steady_client
        ) in steady_clients:  # so that memory and files are those of a broker in use
            steady_client.wait_for_first()
        before = _measure(broker)
        campaign = Campaign(broker, connect_socket, steady_clients, tmp_path)
        stack.callback(campaign.close)
        _attack(campaign, kind)
        campaign.finish()
        after = _measure_when_idle(broker, before)
        for steady_client in steady_clients:
            steady_client.finish()
            assert steady_client.exchanged > 0 or isinstance(steady_client, GatewayWorker)
        growth = after.memory - before.memory
        print(
            f"{kind}: {campaign.connections:,} connections, {campaign.sent_bytes:,} bytes, "
            f"{campaign.sent_frames:,} mutated frames; memory +{growth >> 20} MiB;",
            ", ".join(
                f"{type(w).__name__} {w.exchanged:,}, slowest {w.slowest:.3f} s"
                for w in steady_clients
            ),
        )
        assert after.sockets == before.sockets
        assert after.files <= before.files + FILES_GROWTH
        assert growth < MEMORY_GROWTH


def _attack(campaign: Campaign, kind: str) -> None:
    """Send noise for a third of the time at most, then floods and mutated conversations."""
    start = time.monotonic()
    conversation = LISTENERS[kind]
    number = 0
    while campaign.sent_bytes < EFFORT.noise and time.monotonic() < start + EFFORT.seconds / 3:
        campaign.send(noise_case(SEED, kind, number))
        number += 1
    for flood in range(EFFORT.floods):
        campaign.send(flood_case(SEED, kind, flood, conversation))
    frames = campaign.sent_frames + EFFORT.frames
    number = 0
    while campaign.sent_frames < frames and time.monotonic() < start + EFFORT.seconds:
        campaign.send(mutated_case(SEED, kind, number, conversation))
        number += 1
    if campaign.sent_frames < frames:
        print(f"{kind}: stopped after {EFFORT.seconds:g} s")


class ProcessResources(NamedTuple):
    """Resources of a process: open sockets, other files, resident bytes."""

    sockets: int
    files: int
    memory: int


def _measure(broker: LocalBroker) -> ProcessResources:
    """Measure the resources of the broker process.

    The sockets include that of the requesting connection. The second request ensures that the
    broker has closed the sockets of earlier ones."""
    target = HttpTarget(path=str(broker.directory / "admin.sock"))
    with Api(target, timeout=TIMEOUT_SECONDS) as api:
        api.call(GET_STATUS, NoParameters())
        memory = api.call(GET_OVERVIEW, OverviewQuery(fresh=True)).resident_memory_bytes
        sockets = files = 0
        for entry in Path(f"/proc/{broker.pid}/fd").iterdir():
            try:
                link_target = os.readlink(entry)
            except FileNotFoundError:  # closed meanwhile
                continue
            if link_target.startswith("socket:"):
                sockets += 1
            else:
                files += 1
    return ProcessResources(sockets, files, memory)


def _measure_when_idle(broker: LocalBroker, before: ProcessResources) -> ProcessResources:
    """Measure after the ended connections have been closed, which a linger may delay."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    resources = _measure(broker)
    while resources.sockets != before.sockets and time.monotonic() < deadline:
        time.sleep(0.05)
        resources = _measure(broker)
    return resources
