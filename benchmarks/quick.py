"""The scenario `quick`: measure the speed of a broker on this machine, briefly.

Each measurement starts a broker process in a temporary directory ($TMPDIR chooses the disk), unless
--url names a running broker. This process generates the load.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer
from benchmarks.load.cell import Spec, measure, measure_queries
from benchmarks.load.report import report
from benchmarks.load.server import BenchmarkBroker, broker_at, start_broker

from sluicemq.cli.console import JsonFlag
from sluicemq.model.url import Url

QUICK_SECONDS: Final = 2.0
QUICK: Final = (
    Spec("phpmq", "tcp", "sync", 1024),
    Spec("phpmq", "tcp", "sync", 100),
    Spec("vibemq", "tcp", "sync", 1024, 1, 1, 256),
    Spec("jmq", "tcp", "sync", 1024, 1, 1, 1000),
    Spec("msglite", "tcp", "none", 100, 1, 16, 1),
    Spec("msglite", "unix", "none", 100, 1, 16, 1),
)
QUERIES: Final = (
    Spec("msglite", "tcp", "none", 100),
    Spec("msglite", "unix", "none", 100),
)


def bench(
    context: typer.Context,
    seconds: Annotated[
        float, typer.Option(min=0.05, max=3600, help="Duration of each timed run.")
    ] = QUICK_SECONDS,
    url: Annotated[
        str | None,
        typer.Option(
            help="A running broker (phpmq://, msglite://, vibemq://, jmq://) instead of new ones."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure throughput, latency, memory and processor time of each protocol, in half a minute."""
    running_broker = None if url is None else broker_at(Url.parse(url))
    protocol = "" if url is None else Url.parse(url).protocol
    with report(context, as_json) as (results, note):
        for spec in _chosen(QUICK, running_broker, protocol):
            note(str(spec))
            with broker(running_broker, spec) as server:
                results.append(measure(server, spec, seconds=seconds, rate=0, repetition=1))
        for spec in _chosen(QUERIES, running_broker, protocol):
            note(f"queries: {spec}")
            with broker(running_broker, spec) as server:
                results.append(measure_queries(server, spec, seconds=seconds, repetition=1))


def _chosen(
    specs: tuple[Spec, ...], given: BenchmarkBroker | None, protocol: str
) -> Iterator[Spec]:
    """Yield the specs to measure; for a running broker those of its protocol."""
    for spec in specs:
        if given is None:
            yield spec
        elif spec.protocol == protocol and spec.transport == "tcp":
            yield spec._replace(transport=given.target.transport, durability="")


@contextmanager
def broker(given: BenchmarkBroker | None, spec: Spec) -> Iterator[BenchmarkBroker]:
    """Yield the running broker, if one is given, or else a new one."""
    if given is not None:
        yield given
        return
    with start_broker(spec.protocol, spec.transport, spec.durability) as server:
        yield server
