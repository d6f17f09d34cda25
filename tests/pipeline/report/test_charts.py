"""Charts of the report show its figures."""

from __future__ import annotations

import itertools
import re
import struct
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.dates import num2date
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from sluicemq.pipeline import histogram
from sluicemq.pipeline.report import build
from sluicemq.pipeline.report.charts import (
    FEWEST_BANDS,
    HEAT,
    LIGHT,
    Drawings,
    bands,
    charts,
    draw,
    extent,
    sparkline,
    write_pngs,
)
from sluicemq.pipeline.report.figures import ReportFigures
from tests.pipeline.latencies import ERROR
from tests.pipeline.report.sample import START, anomalies, anomaly, busy, gold, row

SIZE = (960, 300)


def axes_of(report: ReportFigures, name: str, size: tuple[int, int] = SIZE) -> Axes:
    return draw(report, name, size).axes[0]


def steps(axes: Axes) -> dict[str, StepPatch]:
    """Return the bars and lines by label."""
    return {str(patch.get_label()): patch for patch in axes.patches if isinstance(patch, StepPatch)}


def values(patch: StepPatch) -> list[float]:
    """Return the heights of bars, or the values of a line."""
    data = patch.get_data()
    base = 0 if data.baseline is None else data.baseline
    return np.nan_to_num(data.values - base).tolist()


def test_bars_have_height_of_their_rates_and_are_stacked() -> None:
    report = build(
        gold(
            row(0, published=60, acknowledged=30),
            row(0, protocol="jmq", published=60),
            row(1, published=120),
        )
    )
    axes = axes_of(report, "traffic")
    patches = steps(axes)
    assert {label: values(patch) for label, patch in patches.items()} == {
        "in by PHPMQ": [1.0, 2.0],
        "in by JMS": [1.0, 0.0],
        "out": [0.5, 0.0],
    }
    assert patches["in by JMS"].get_data().values[0] == 2.0
    assert axes.get_ylabel() == "messages/s"
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylim()[1] >= 2
    assert patches["in by JMS"].get_facecolor() != patches["in by PHPMQ"].get_facecolor()
    begin, _, end = num2date(patches["out"].get_data().edges)
    assert (begin, end) == (START, START + timedelta(minutes=2))
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == list(patches)


def test_empty_bar_has_no_outline() -> None:
    report = build(gold(row(0, published=6000), row(1, protocol="jmq", published=1)))
    patches = steps(axes_of(report, "traffic"))
    assert np.isnan(patches["in by PHPMQ"].get_data().values).tolist() == [False, True]
    assert np.isnan(patches["in by JMS"].get_data().values).tolist() == [True, False]


def test_little_traffic_is_shown_per_minute() -> None:
    axes = axes_of(build(gold(row(0, published=3, acknowledged=1))), "traffic")
    assert axes.get_ylabel() == "messages/min"
    assert values(steps(axes)["in by PHPMQ"]) == pytest.approx([3.0])
    assert values(steps(axes)["out"]) == pytest.approx([1.0])


def test_backlog_and_failures_are_counts() -> None:
    report = build(
        gold(
            row(0, redelivered=3, expired=2, backlog=9, unacked=4),
            row(1, dead_lettered=5, backlog=7, unacked=0),
        )
    )
    assert list(charts(report)) == ["traffic", "backlog", "failures"]
    axes_by_name = {name: axes_of(report, name) for name in ("backlog", "failures")}
    assert {label: values(patch) for label, patch in steps(axes_by_name["backlog"]).items()} == {
        "ready": [9, 7],
        "unacknowledged": [4, 0],
    }
    assert {label: values(patch) for label, patch in steps(axes_by_name["failures"]).items()} == {
        "dead letters": [0, 5],
        "expired": [2, 0],
        "redelivered": [3, 0],
    }
    for axes in axes_by_name.values():
        assert axes.get_ylabel() == "messages"
        # there is no half message
        assert all(tick == int(tick) for tick in axes.get_yticks())


def test_anomalies_are_marked_where_they_began() -> None:
    report = build(
        gold(*(row(minute, published=1) for minute in range(10))),
        anomalies(
            anomaly(id="1", minute=START + timedelta(minutes=2), severity="warning"),
            anomaly(id="2", minute=START + timedelta(minutes=2), severity="critical"),
            anomaly(id="3", minute=START + timedelta(minutes=7), severity="warning"),
            anomaly(id="4", minute=START + timedelta(days=7)),
        ),
    )
    marks = {str(line.get_label()): line for line in axes_of(report, "traffic").lines}
    half = timedelta(seconds=30)
    assert {
        label: [round((time - half - START).total_seconds()) for time in num2date(line.get_xdata())]
        for label, line in marks.items()
    } == {"warning anomaly": [120, 420], "critical anomaly": [120]}
    # a critical one hides a warning
    assert list(marks)[-1] == "critical anomaly"


def test_latency_bands_contain_every_message() -> None:
    latencies = [0.0, 1.0, 2.0, 3.0, 30.0, 31.0, 4000.0]
    line = build(gold(row(0, end_to_end=latencies, acknowledged=7))).timeline
    assert line is not None
    edges, cells = bands(line.latency)
    assert edges[0] == 0
    assert cells.shape == (1, len(edges) - 1)
    expected = np.histogram([value or 0.001 for value in latencies], edges)[0]
    assert cells[0].tolist() == expected.tolist()
    assert cells.sum() == 7


@pytest.mark.parametrize(
    "latencies",
    [[0.0], [5.0], [0.02, 0.03], [1e12], [0.0, 1e12], [0.5 * 1.3**step for step in range(60)]],
)
def test_any_latencies_make_heat_map(latencies: list[float]) -> None:
    report = build(gold(row(0, end_to_end=latencies)))
    assert report.timeline is not None
    edges, cells = bands(report.timeline.latency)
    assert FEWEST_BANDS < len(edges) <= histogram.LAST
    assert edges.tolist() == sorted(set(edges.tolist()))
    assert cells.sum() == len(latencies)
    axes = axes_of(report, "latency")
    ticks = axes.get_yticks()
    assert len(ticks) >= 2
    assert all(edges[0] <= tick <= edges[-1] for tick in ticks)


def test_more_messages_have_stronger_colour() -> None:
    report = build(
        gold(
            row(0, end_to_end=[10.0] * 1000),
            row(1, end_to_end=[10.0] * 30),
            row(2, end_to_end=[10.0]),
        )
    )
    figure = draw(report, "latency", SIZE)
    (mesh,) = [item for item in figure.axes[0].collections if isinstance(item, QuadMesh)]
    counts = mesh.get_array()
    assert counts is not None
    assert counts.max(axis=0).tolist() == [1000, 30, 1]
    assert counts.count() == 3
    shades = [list(mesh.to_rgba(count, bytes=True)[:3]) for count in (1, 30, 1000)]
    assert shades == [
        [int(LIGHT[name][index : index + 2], 16) for index in (1, 3, 5)]
        for name in (HEAT[0], HEAT[3], HEAT[-1])
    ]
    bar = figure.axes[1]
    assert [label.get_text() for label in bar.get_yticklabels()] == ["1", "1k"]
    assert bar.get_ylabel() == "messages"


def test_percentiles_are_interrupted_where_nothing_was_acknowledged() -> None:
    report = build(gold(*(row(minute, end_to_end=[10.0] * 9 + [500.0]) for minute in (0, 1, 3))))
    lines = steps(axes_of(report, "latency"))
    for label, expected in (("p50", 10.0), ("p95", 500.0)):
        percentiles = lines[label].get_data().values
        assert np.isnan(percentiles).tolist() == [False, False, True, False]
        assert percentiles[0] == pytest.approx(expected, rel=ERROR)


@pytest.mark.parametrize("size", [(1020, 290), (370, 290)])
@pytest.mark.parametrize(("minutes", "step"), [(1, 1), (1440, 7), (30 * 1440, 60)])
def test_texts_neither_overlap_nor_leave_figure(
    minutes: int, step: int, size: tuple[int, int]
) -> None:
    report = build(busy(minutes, 5, step), anomalies(anomaly()))
    assert report.timeline is not None
    assert list(charts(report)) == ["traffic", "latency", "backlog", "failures"]
    for name in charts(report):
        figure = draw(report, name, size)
        Drawings().svg(figure, name)
        axes = figure.axes[0]
        legend = axes.get_legend()
        assert legend is not None
        assert axes.get_xlabel() == "time (UTC)"
        for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
            boxes = [text.get_window_extent() for text in ticks if shown(text, axes)]
            assert len(boxes) >= 2
            for box, other in itertools.pairwise(boxes):
                assert not box.overlaps(other), name
        for item in (legend, axes.xaxis.label, axes.yaxis.label):
            box = item.get_window_extent()
            assert box.x0 >= 0, name
            assert box.y0 >= 0, name
            assert box.x1 <= size[0], name
            assert box.y1 <= size[1], name
        assert legend.get_window_extent().y0 >= axes.get_window_extent().y1 - 1
        start, end = extent(figure, report.timeline.bins)
        assert 0 < start < end <= 1


def shown(text: Any, axes: Axes) -> bool:
    x, y = text.get_position()
    low, high = axes.get_xlim() if text in axes.get_xticklabels() else axes.get_ylim()
    return bool(text.get_text()) and low <= (x if text in axes.get_xticklabels() else y) <= high


def test_drawings_share_neither_styles_nor_identifiers() -> None:
    drawings = Drawings()
    report = build(busy(100, 3), anomalies(anomaly()))
    texts = [drawings.svg(draw(report, "traffic", SIZE), f"traffic-{n}") for n in (1, 2)]
    identifiers = [re.findall(r' id="([^"]*)"', text) for text in texts]
    assert identifiers[0]
    assert not set(identifiers[0]) & set(identifiers[1])
    rules = drawings.rules()
    for text in texts:
        tree = ElementTree.fromstring(text)
        assert "nan" not in text
        assert all("style" not in element.attrib for element in tree.iter())
        for name in {
            element.attrib["class"] for element in tree.iter() if "class" in element.attrib
        }:
            assert f".{name}{{" in rules
    assert "#" not in rules
    assert "var(--phpmq)" in rules


def test_labels_are_not_shortened_with_coordinates() -> None:
    report = build(gold(row(0, end_to_end=[0.02, 0.03])))
    text = Drawings().svg(draw(report, "latency", SIZE), "latency")
    assert ">0.02 ms</text>" in text
    assert not re.search(r'd="[^"]*\.\d\d', text)


def test_sparks_show_one_message_in_busy_hour() -> None:
    figure = sparkline(np.array([100_000, 1, 0]))
    assert isinstance(figure, Figure)
    (bars,) = steps(figure.axes[0]).values()
    assert values(bars) == [100_000, 1, 0]
    assert bars.get_linewidth() > 0.5
    assert steps(sparkline(np.zeros(5, np.int64)).axes[0])


def test_charts_are_written_as_png(tmp_path: Path) -> None:
    """PNG of the given size, for a title that contains formula syntax."""
    report = build(busy(10, 3), title="$\\frac{1}$ 訂單")
    directory = tmp_path / "deep" / "pictures"
    write_pngs(report, directory)
    names = ["backlog.png", "failures.png", "latency.png", "traffic.png"]
    assert sorted(path.name for path in directory.iterdir()) == names
    for path in directory.iterdir():
        data = path.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", data[16:24]) == (2000, 808)


def test_no_charts_without_traffic(tmp_path: Path) -> None:
    write_pngs(build(gold()), tmp_path)
    assert list(tmp_path.iterdir()) == []
