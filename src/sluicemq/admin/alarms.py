"""Alarms of the overview: conditions that need an operator, for installations without alerts.

| code              | when                                                                  |
|-------------------|-----------------------------------------------------------------------|
| not-serving       | the broker starts, stops or has failed                                |
| memory            | messages that are not journaled are about to be refused               |
| disk-space        | persistent messages are refused: the journal's disk is nearly full    |
| disk-full         | nothing is delivered: not even the reserve has space for acks         |
| destinations-full | the limit of destinations is nearly reached                           |
| connections-full  | a listener is about to refuse connections                             |
| disk-slow         | the p99 of fdatasync durations is above SLOW_SYNC_SECONDS             |
| loop-slow         | the p99 of the event loop lag is above SLOW_LOOP_SECONDS              |
| prepared          | a prepared transaction has waited for longer than PATIENCE_MS         |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.server_interface import ListenerView
from sluicemq.journal.space import SpaceLevel
from sluicemq.model.histogram import Distribution

NEARLY: Final = 0.9
"""Fraction of a limit above which an alarm is raised."""
SLOW_SYNC_SECONDS: Final = 0.5
SLOW_LOOP_SECONDS: Final = 0.1
ENOUGH: Final = 20
"""Minimum number of measurements for a p99."""
PATIENCE_MS: Final = 3_600_000


class AlarmView(msgspec.Struct, frozen=True):
    """Something is wrong; `code` is for programs, `message` for people."""

    code: str
    message: str


def _space_alarms(context: ApiContext) -> Iterator[AlarmView]:
    """Yield the alarms for the free space of the journal's disk."""
    journal = context.broker.journal
    space = journal.space_state()
    if space.level == SpaceLevel.ENOUGH:
        return
    held = "".join(
        f" The slot {name} holds {size} bytes of the journal that nothing else needs."
        for name, size in journal.held_by_slots().items()
    )
    if space.level == SpaceLevel.EXHAUSTED:
        yield AlarmView(
            "disk-full",
            f"The disk of the journal has {space.free} bytes left and the reserve is used up: "
            f"nothing is delivered or accepted until space is freed.{held}",
        )
    else:
        yield AlarmView(
            "disk-space",
            f"The disk of the journal has {space.free} bytes left: persistent messages are "
            f"refused until there are {space.resume}. Of the reserve, {space.reserve} of "
            f"{space.reserve_size} bytes are left.{held}",
        )


def alarms(
    context: ApiContext, listeners: Sequence[ListenerView], lag: Distribution, syncs: Distribution
) -> list[AlarmView]:
    """Return the present alarms. `lag` and `syncs` are the durations of the last minute."""
    found: list[AlarmView] = []
    broker = context.broker
    settings = broker.settings
    state = context.vitals.state()
    if state != "serving":
        found.append(AlarmView("not-serving", f"The broker is {state}."))
    if broker.memory > NEARLY * settings.memory_limit:
        part = broker.memory / settings.memory_limit
        found.append(
            AlarmView(
                "memory",
                f"Messages take {part:.0%} of broker.memory_limit. At 100 % those that are not "
                "journaled are refused.",
            )
        )
    found.extend(_space_alarms(context))
    most = settings.max_destinations
    if most and len(broker.destinations) > NEARLY * most:
        found.append(
            AlarmView(
                "destinations-full",
                f"There are {len(broker.destinations)} destinations, and broker.max_destinations "
                f"is {most}.",
            )
        )
    for listener in listeners:
        if listener.connections > NEARLY * listener.max_connections:
            found.append(
                AlarmView(
                    "connections-full",
                    f"{listener.url} has {listener.connections} connections, and its "
                    f"max_connections is {listener.max_connections}.",
                )
            )
    tail = syncs.quantile(0.99)
    if syncs.count >= ENOUGH and tail > SLOW_SYNC_SECONDS:
        found.append(
            AlarmView("disk-slow", f"One fdatasync in a hundred takes {tail:.1f} s or longer.")
        )
    late = lag.quantile(0.99)
    if lag.count >= ENOUGH and late > SLOW_LOOP_SECONDS:
        found.append(
            AlarmView("loop-slow", f"The p99 of the event loop's lag is {late * 1000:.0f} ms.")
        )
    old = [
        each
        for each in broker.transactions.prepared.values()
        if broker.clock.wall - each.created > PATIENCE_MS
    ]
    if old:
        found.append(
            AlarmView(
                "prepared",
                f"{len(old)} prepared transactions have waited more than an hour for the decision "
                "of their transaction manager. Their messages stay unacked until then.",
            )
        )
    return found
