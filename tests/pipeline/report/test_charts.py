"""The drawings: that what they show is what the figures say."""

from __future__ import annotations

import struct
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from sluicemq.pipeline.report import build, charts, heat
from sluicemq.pipeline.report.drawings import drawings
from sluicemq.pipeline.report.figures import ReportFigures, Timeline
from sluicemq.pipeline.report.palette import PAINTS
from sluicemq.pipeline.report.png import write_pngs
from sluicemq.pipeline.report.scene import Area, Boxes, Polylines, Scene, Shape, Text
from sluicemq.pipeline.report.svg import svg
from tests.pipeline.report.sample import START, anomalies, anomaly, busy, gold, row

SIZE = (960, 300)
SVG = "{http://www.w3.org/2000/svg}"


def timeline(*rows: dict[str, object]) -> Timeline:
    line = build(gold(*rows)).timeline
    assert line is not None
    return line


def shapes(scene: Scene, role: str) -> list[Shape]:
    return [shape for shape in scene.shapes if not isinstance(shape, Text) and shape.role == role]


def test_bars_are_as_high_as_their_rates() -> None:
    line = timeline(
        row(0, published=60, acknowledged=30),
        row(0, protocol="jmq", published=60),
        row(1, published=120),
    )
    scene = charts.traffic(line, (), SIZE)
    # The legend's square, then the bars. Lower layers are drawn over the higher ones.
    (phpmq,) = [each for each in shapes(scene, "in-phpmq")[1:] if isinstance(each, Boxes)]
    (jmq,) = [each for each in shapes(scene, "in-jmq")[1:] if isinstance(each, Boxes)]
    first, second = (height for _, _, _, height in phpmq.boxes)
    ((_, _, _, stacked),) = jmq.boxes
    assert second == pytest.approx(2 * first)
    assert stacked == pytest.approx(2 * first)
    assert scene.shapes.index(jmq) < scene.shapes.index(phpmq)
    line_shape = shapes(scene, "out")[-1]
    assert isinstance(line_shape, Polylines)
    base = phpmq.boxes[0][1] + first
    assert base - line_shape.runs[0][0][1] == pytest.approx(first / 2)
    assert "in 2/s · out 30/min" in scene.spots[0].says
    assert next(each.text for each in scene.shapes if isinstance(each, Text)) == "messages/s"


def test_many_bins_are_one_area() -> None:
    line = timeline(*(row(minute, published=60) for minute in range(180)))
    (area,) = [
        shape
        for shape in shapes(charts.traffic(line, (), SIZE), "in-phpmq")
        if isinstance(shape, Area)
    ]
    assert {round(y, 3) for _, y in area.points} == {
        round(min(y for _, y in area.points), 3),
        274.0,
    }


def test_little_traffic_is_shown_per_minute() -> None:
    scene = charts.traffic(timeline(row(0, published=3)), (), SIZE)
    texts = [shape.text for shape in scene.shapes if isinstance(shape, Text)]
    assert texts[0] == "messages/min"
    assert "3" in texts
    (_, bars) = shapes(scene, "in-phpmq")
    assert isinstance(bars, Boxes)
    ((_, top, _, _),) = bars.boxes
    (label,) = [each for each in scene.shapes if isinstance(each, Text) and each.text == "3"]
    assert label.y - 4 == pytest.approx(top)


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
    assert report.timeline is not None
    scene = charts.traffic(report.timeline, report.anomalies, SIZE)
    (critical,) = shapes(scene, "critical")
    (warning,) = shapes(scene, "warning")
    assert isinstance(critical, Area)
    assert isinstance(warning, Area)
    bins = [spot.box for spot in scene.spots[:10]]
    assert critical.points[-1][0] == pytest.approx(bins[2][0] + bins[2][2] / 2)
    assert warning.points[-1][0] == pytest.approx(bins[7][0] + bins[7][2] / 2)
    assert scene.spots[10].says.count("stuck-queue") == 2


def test_heat_rows_hold_every_message_at_its_latency() -> None:
    latencies = [0.0, 1.0, 2.0, 3.0, 30.0, 31.0, 4000.0]
    line = timeline(row(0, end_to_end=latencies, acknowledged=7))
    rows = heat.LatencyBands(line.latency)
    cells = rows.cells(line.latency)
    assert cells.sum() == 7
    edges = rows.edges
    for value in latencies:
        held = [
            index
            for index in range(len(rows))
            if edges[index] <= value < edges[index + 1] and cells[0, index]
        ]
        assert len(held) == 1, value
    assert rows.place(30.0) == pytest.approx(edges.index(30.0))
    assert rows.name(0).startswith("below")


@pytest.mark.parametrize(
    "latencies",
    [[0.0], [5.0], [0.02, 0.03], [1e12], [0.0, 1e12], [0.5 * 1.3**step for step in range(60)]],
)
def test_any_latencies_make_few_rows(latencies: list[float]) -> None:
    rows = heat.LatencyBands(timeline(row(0, end_to_end=latencies)).latency)
    assert heat.FEWEST_ROWS <= len(rows) <= 2 * heat.MOST_ROWS
    assert rows.edges == sorted(set(rows.edges))
    for value in latencies:
        assert 0 <= rows.place(value) <= len(rows)


def test_more_messages_have_a_stronger_colour() -> None:
    line = timeline(
        row(0, end_to_end=[10.0] * 1000), row(1, end_to_end=[10.0] * 30), row(2, end_to_end=[10.0])
    )
    scene = heat.latency(line, SIZE)
    places = {}
    for step in range(7):
        for shape in shapes(scene, f"heat-{step}")[1:]:
            assert isinstance(shape, Boxes)
            for x, _, _, _ in shape.boxes:
                places[step] = x
    assert list(places) == [0, 3, 6]
    assert places[6] < places[3] < places[0]


def test_equal_neighbours_are_one_box() -> None:
    line = timeline(*(row(minute, end_to_end=[10.0]) for minute in (0, 1, 2, 4)))
    scene = heat.latency(line, SIZE)
    boxes = [
        box
        for shape in shapes(scene, "heat-0")[1:]
        if isinstance(shape, Boxes)
        for box in shape.boxes
    ]
    assert len(boxes) == 2
    assert boxes[0][2] == pytest.approx(3 * boxes[1][2])
    line_runs = shapes(scene, "p95")[-1]
    assert isinstance(line_runs, Polylines)
    assert len(line_runs.runs) == 2


def scenes(table: pa.Table, size: tuple[int, int]) -> dict[str, Scene]:
    report = build(table, anomalies(anomaly()))
    assert report.timeline is not None
    return {name: draw(report.timeline, size) for name, draw in drawings(report).items()}


@pytest.mark.parametrize("size", [(960, 300), (460, 250), (370, 270)])
@pytest.mark.parametrize(("minutes", "step"), [(1, 1), (1440, 7), (30 * 1440, 60)])
def test_every_drawing_is_whole(minutes: int, step: int, size: tuple[int, int]) -> None:
    """Well-formed, with title and description, painted by known roles, inside its frame."""
    drawn = scenes(busy(minutes, 5, step), size)
    assert list(drawn) == ["traffic", "latency", "backlog", "troubles"]
    for name, scene in drawn.items():
        for shape in scene.shapes:
            assert shape.role in PAINTS
            for x, y in points(shape):
                assert -0.1 <= x <= size[0] + 0.1, (name, shape)
                assert -0.1 <= y <= size[1] + 0.1, (name, shape)
        root = ElementTree.fromstring(svg(scene, name))
        labelled = root.attrib["aria-labelledby"].split()
        texts = {part.attrib.get("id"): part.text for part in root}
        assert all(texts[label] for label in labelled)
        assert len(root.findall(f"{SVG}g/{SVG}rect/{SVG}title")) == len(scene.spots)
        assert "nan" not in svg(scene, name)


def points(shape: Shape) -> list[tuple[float, float]]:
    if isinstance(shape, Text):
        return [(shape.x, shape.y)]
    if isinstance(shape, Area):
        return list(shape.points)
    if isinstance(shape, Polylines):
        return [point for run in shape.runs for point in run]
    corners = [(x, y) for x, y, _, _ in shape.boxes]
    return corners + [(x + width, y + height) for x, y, width, height in shape.boxes]


def test_a_title_cannot_break_out() -> None:
    scene = Scene(10, 10, "</title><script>", "a & b", [Text(0, 0, "<b>", "tick")])
    root = ElementTree.fromstring(svg(scene, "x"))
    assert [part.text for part in root] == ["</title><script>", "a & b", "<b>"]


def test_sparks_show_one_message_in_a_busy_hour() -> None:
    (area,) = charts.spark(np.array([100_000, 1, 0])).shapes
    assert isinstance(area, Area)
    height = charts.SPARK[1]
    assert [height - y for _, y in area.points[1:-1]] == [25.0, 25.0, 0.75, 0.75, 0.0, 0.0]
    assert not charts.spark(np.zeros(5, np.int64)).shapes


def test_pictures(tmp_path: Path) -> None:
    """PNG of the size that was promised, for a title that would be a formula elsewhere."""
    report = build(busy(10, 3), title="$\\frac{1}$ 訂單")
    made = write_pngs(report, tmp_path / "deep" / "pictures")
    assert [path.name for path in made] == [
        "traffic.png",
        "latency.png",
        "backlog.png",
        "troubles.png",
    ]
    for path in made:
        data = path.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", data[16:24]) == (2000, 808)


def test_no_pictures_without_traffic(tmp_path: Path) -> None:
    report: ReportFigures = build(gold())
    assert write_pngs(report, tmp_path) == []
