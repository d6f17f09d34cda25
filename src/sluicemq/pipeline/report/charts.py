"""Charts of a report: scenes of a given size from a timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sluicemq.pipeline.report import words
from sluicemq.pipeline.report.figures import Anomaly, Counts, Timeline
from sluicemq.pipeline.report.palette import PROTOCOLS
from sluicemq.pipeline.report.plot import Key, Plot
from sluicemq.pipeline.report.scale import MINUTE, minute_of
from sluicemq.pipeline.report.scene import Area, Boxes, Polylines, Scene, Spot

Size = tuple[int, int]
Values = NDArray[Any]

MARK: Final = 6
"""Half the width of an anomaly's mark, in pixels."""
LEAST: Final = 0.75
"""Minimum height of a bar in pixels, so that one message in a busy hour is visible."""
SPARK: Final = (132, 26)


def traffic(timeline: Timeline, anomalies: Sequence[Anomaly], size: Size) -> Scene:
    """Draw published messages per protocol, stacked, and messages out as a line."""
    protocols = list(timeline.arrivals)
    total = np.sum([np.zeros(timeline.bins.count), *timeline.arrivals.values()], axis=0)
    out = timeline.acknowledged / timeline.seconds
    top = float(max((total / timeline.seconds).max(), out.max()))
    unit, factor = ("messages/s", 1) if top >= 1 else ("messages/min", MINUTE)
    plot = Plot(
        size,
        "Traffic over time",
        f"Messages in per protocol as stacked bars, messages out as a line, in {unit}.",
        timeline.bins,
        unit,
        [
            *(Key(f"in-{name}", f"in by {PROTOCOLS[name]}") for name in protocols),
            Key("out", "out (acknowledged)", line=True),
        ],
    )
    plot.value_axis(top * factor)
    _stack(
        plot,
        {f"in-{name}": timeline.arrivals[name] / timeline.seconds * factor for name in protocols},
    )
    steps = [_steps(plot, out * factor)]
    plot.scene.shapes += [Polylines(steps, "out-halo"), Polylines(steps, "out")]
    plot.base_line()
    plot.spots(
        [
            "\n".join(
                [
                    _when(timeline, index),
                    f"in {words.rate(total[index] / timeline.seconds[index])} · "
                    f"out {words.rate(out[index])}",
                    *(
                        f"{PROTOCOLS[name]}: {words.count(timeline.arrivals[name][index])} in"
                        for name in protocols
                        if timeline.arrivals[name][index]
                    ),
                ]
            )
            for index in range(timeline.bins.count)
        ]
    )
    _mark(plot, anomalies)
    return plot.scene


def backlog(timeline: Timeline, size: Size) -> Scene:
    """Draw ready and unacked messages."""
    ready, unacked = timeline.backlog, timeline.unacked
    assert ready is not None
    assert unacked is not None
    plot = Plot(
        size,
        "Backlog over time",
        "Ready messages of all destinations as an area, and unacknowledged messages as a line, at "
        "the end of each bin of time.",
        timeline.bins,
        "messages",
        [Key("ready", "ready"), Key("unacked", "unacknowledged", line=True)],
    )
    plot.value_axis(float(max(ready.max(), unacked.max())), whole=True)
    _stack(plot, {"ready": ready})
    plot.scene.shapes.append(Polylines([_steps(plot, unacked)], "unacked"))
    plot.base_line()
    plot.spots(
        [
            f"{_when(timeline, index)}\n{words.count(ready[index])} ready\n"
            f"{words.count(unacked[index])} unacknowledged"
            for index in range(timeline.bins.count)
        ]
    )
    return plot.scene


def troubles(timeline: Timeline, size: Size) -> Scene:
    """Draw redeliveries, expired messages and dead letters, stacked."""
    kinds = {
        "dead": ("dead letters", timeline.dead_lettered),
        "expired": ("expired", timeline.expired),
        "redelivered": ("redelivered", timeline.redelivered),
    }
    plot = Plot(
        size,
        "Redelivered, expired and dead-lettered messages over time",
        "Stacked bars: how many messages were redelivered, expired or became dead letters in each "
        "bin of time.",
        timeline.bins,
        "messages",
        [Key(role, label) for role, (label, _) in kinds.items()],
    )
    total = np.sum([values for _, values in kinds.values()], axis=0)
    plot.value_axis(float(total.max()), whole=True)
    _stack(plot, {role: values for role, (_, values) in kinds.items()})
    plot.base_line()
    plot.spots(
        [
            "\n".join(
                [
                    _when(timeline, index),
                    *(f"{words.count(values[index])} {label}" for label, values in kinds.values()),
                ]
            )
            for index in range(timeline.bins.count)
        ]
    )
    return plot.scene


def spark(arrivals: Counts) -> Scene:
    """Draw a small chart of one destination's traffic, without axes."""
    width, height = SPARK
    scene = Scene(width, height, "", "")
    top = int(arrivals.max(initial=0))
    if top:
        step = width / len(arrivals)
        points = [(0.0, float(height))]
        for index, value in enumerate(arrivals):
            y = height - (max(LEAST, (height - 1) * value / top) if value else 0.0)
            points += [(index * step, y), ((index + 1) * step, y)]
        scene.shapes.append(Area([*points, (float(width), float(height))], "spark"))
    return scene


def _stack(plot: Plot, layers: Mapping[str, Values]) -> None:
    """Draw stacked bars, the first layer at the bottom.

    Each bar extends to the base line and the next lower one covers it, so that no gap appears."""
    heights = np.cumsum(list(layers.values()), axis=0)
    stacked = list(zip(layers, layers.values(), heights, strict=True)) if layers else []
    for role, layer, height in reversed(stacked):
        # An empty layer would appear as a line where edges are antialiased.
        drawn = np.where(np.asarray(layer) > 0, height, 0)
        if plot.apart:
            boxes = []
            for index in np.flatnonzero(drawn).tolist():
                x, width = plot.bar(index)
                y = min(plot.y(drawn[index]), plot.bottom - LEAST)
                boxes.append((x, y, width, plot.bottom - y))
            plot.scene.shapes.append(Boxes(boxes, role))
        else:
            left, right = plot.x(0), plot.x(plot.bins.count)
            steps = [
                (x, min(y, plot.bottom - LEAST) if y < plot.bottom else y)
                for x, y in _steps(plot, drawn)
            ]
            points = [(left, plot.bottom), *steps, (right, plot.bottom)]
            plot.scene.shapes.append(Area(points, role))


def _steps(plot: Plot, values: Values) -> list[tuple[float, float]]:
    """Return a step line that is level within each bin."""
    points = []
    for index, value in enumerate(values.tolist()):
        y = plot.y(value)
        points += [(plot.x(index), y), (plot.x(index + 1), y)]
    return points


def _when(timeline: Timeline, index: int) -> str:
    return words.span(*timeline.bins.seconds(index))


def _mark(plot: Plot, anomalies: Sequence[Anomaly]) -> None:
    """Draw a triangle at the top for anomalies; a critical one hides a warning."""
    found: dict[int, list[Anomaly]] = {}
    for anomaly in anomalies:
        minute = minute_of(anomaly.time)
        index = (minute - plot.bins.start) // plot.bins.width
        if 0 <= index < plot.bins.count:
            found.setdefault(index, []).append(anomaly)
    for index, these in found.items():
        x = (plot.x(index) + plot.x(index + 1)) / 2
        y = plot.top_of_area
        role = "critical" if any(each.severity == "critical" for each in these) else "warning"
        plot.scene.shapes.append(Area([(x - MARK, y - 4), (x + MARK, y - 4), (x, y + 6)], role))
        plot.scene.spots.append(
            Spot(
                (x - MARK - 2, y - 6, 2 * MARK + 4, 14),
                "\n".join(
                    f"{each.kind}: {words.printable(each.destination, 60)}" for each in these[:5]
                ),
            )
        )
