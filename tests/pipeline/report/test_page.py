"""The HTML page: self-contained, well-formed, and safe with hostile names and bodies."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq.pipeline.report import ReportFigures, build, render, write
from sluicemq.pipeline.report.figures import LakeState
from tests.pipeline.report.sample import (
    START,
    anomalies,
    anomaly,
    busy,
    dead_letter,
    examples,
    gold,
    row,
)

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></style></textarea><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "https://tracker.example/pixel.png",
    "nul\0 escape\x1b bell\x07",
    "\u202egnp.exe",
    "]]>&amp;&lt;",
    "x" * 5000,
]


def page(report: ReportFigures) -> ElementTree.Element:
    return parse(render(report))


def parse(text: str) -> ElementTree.Element:
    """Return a page as a tree, without script and style, which HTML does not parse as markup."""
    text = re.sub(r"(?s)<(script|style)>.*?</\1>", r"<\1/>", text)
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))


def words_of(tree: ElementTree.Element) -> str:
    return " ".join(" ".join(tree.itertext()).split())


def full(names: list[str]) -> ReportFigures:
    """Return a report that uses each name in every place."""
    return build(
        gold(
            *(
                row(
                    number,
                    name,
                    broker=name,
                    published=5,
                    dead_lettered=1,
                    backlog=3,
                    end_to_end=[2.0, 900.0],
                    dead_letter_reasons={name: 1},
                )
                for number, name in enumerate(names)
            )
        ),
        anomalies(
            *(
                anomaly(
                    id=name,
                    kind=name,
                    severity=name,
                    broker=name,
                    destination=name,
                    evidence=name,
                    details=name,
                )
                for name in names
            )
        ),
        examples(
            *(
                dead_letter(number, broker=name, destination=name, reason=name, beginning=name)
                for number, name in enumerate(names)
            )
        ),
        title=names[0],
        state=LakeState(
            (
                {
                    "name": "gold.traffic",
                    "rows": 12,
                    "files": 3,
                    "size": 4096,
                    "version": 7,
                    "changed": START,
                },
            ),
            ((names[0], 123_456, START),),
        ),
    )


REPORTS = {
    "empty": lambda: build(gold()),
    "nothing in the period": lambda: build(gold(), since=datetime(2026, 1, 1, tzinfo=UTC)),
    "one row": lambda: build(gold(row(published=1))),
    "gauge only": lambda: build(gold(row(protocol="any", backlog=0, unacked=0))),
    "a minute": lambda: build(busy(1, 12)),
    "a day": lambda: build(busy(1440, 10, 3)),
    "a month": lambda: build(busy(30 * 1440, 4, 60)),
    "10,000 destinations": lambda: build(busy(60, 10_000, 30)),
    "hostile": lambda: full(HOSTILE),
}


@pytest.mark.parametrize("name", REPORTS)
def test_page_loads_nothing_and_is_well_formed(name: str) -> None:
    text = render(REPORTS[name]())
    tree = parse(text)
    assert len(text) < 1_000_000
    identifiers = [element.attrib["id"] for element in tree.iter() if "id" in element.attrib]
    assert len(identifiers) == len(set(identifiers))
    for element in tree.iter():
        tag = element.tag.rpartition("}")[2]
        assert tag not in {
            "link",
            "img",
            "image",
            "iframe",
            "object",
            "embed",
            "base",
            "form",
        }
        for attribute, value in element.attrib.items():
            assert attribute not in {"src", "href", "action", "style", "srcset", "poster", "data"}
            # marks in a chart refer to their shape
            assert not attribute.endswith("}href") or (tag == "use" and value[1:] in identifiers)
            assert not attribute.startswith("on")
    assert sum(element.tag == "script" for element in tree.iter()) == 1
    for part in re.findall(r"(?s)<(?:script|style)>(.*?)</", text):
        assert not re.search(r"url\(|@import|https?:|fetch|XMLHttp|WebSocket|innerHTML|eval", part)
    for element in tree.iter():
        assert set(element.attrib.get("aria-labelledby", "").split()) <= set(identifiers)


def test_content_security_policy_allows_this_page_only() -> None:
    text = render(build(busy(5, 2)))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = policy[1].replace("&#39;", "'")
    assert rules.startswith("default-src 'none'; ")
    assert "unsafe" not in rules
    for tag in ("script", "style"):
        content = re.search(rf"(?s)<{tag}>(.*?)</{tag}>", text)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in rules


def frame(tree: ElementTree.Element) -> list[tuple[str, list[str]]]:
    """Return the elements of a page without their texts and values."""
    return [(element.tag, sorted(element.attrib)) for element in tree.iter()]


@pytest.fixture(scope="module")
def harmless() -> ElementTree.Element:
    return page(full(["plain"]))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(name: str, harmless: ElementTree.Element) -> None:
    assert frame(page(full([name]))) == frame(harmless)


def test_invisible_characters_are_escaped() -> None:
    text = words_of(page(full(["a\0b\u202ec"])))
    assert "a\\x00b\\u202ec" in text
    assert "\0" not in text
    assert "\u202e" not in text


@settings(max_examples=7)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
        min_size=4,
        max_size=4,
        unique=True,
    )
)
def test_any_names_make_a_page(names: list[str]) -> None:
    page(full(names))


def test_page_contains_figures() -> None:
    report = full(["orders", "invoices"])
    text = words_of(page(report))
    for expected in (
        "Messages in 10 0 B of bodies",
        "Dead letters 2 0 redelivered, 0 expired",
        "Backlog 6 messages at the end",
        "10 messages were published",
        "2 messages became dead letters (20.00% of the published ones), 50% for the reason",
        "The lake contains the records of the broker orders up to 123,456, since 20 Nov 2026, "
        "08:00 UTC.",
        "20 Nov 2026, 08:00 to 08:02 UTC (2 min)",
    ):
        assert expected in text
    assert values(page(report), "queues") == [
        ["5", "0", "3", "1.99 ms", "887 ms", "887 ms", "0", "1"],
        ["5", "0", "3", "1.99 ms", "887 ms", "887 ms", "0", "1"],
    ]


def values(tree: ElementTree.Element, kind: str) -> list[list[str]]:
    (table,) = [
        element for element in tree.iter("table") if kind in element.attrib.get("class", "")
    ]
    body = table.find("tbody")
    assert body is not None
    return [
        [words_of(cell) for cell in line.iter("td") if "n" in cell.attrib["class"].split()]
        for line in body.iter("tr")
    ]


def test_tables_equal_charts() -> None:
    report = build(
        gold(
            row(0, published=5, acknowledged=2, end_to_end=[3.0, 3.0]),
            row(1, protocol="jmq", published=1234, redelivered=3),
            row(1, protocol="any", backlog=9, unacked=2),
        )
    )
    tables = {}
    for table in page(report).iter("table"):
        caption = table.findtext("caption")
        assert caption is not None
        tables[caption] = [[words_of(cell) for cell in line] for line in table.iter("tr")]
    assert tables["Traffic per period of time"] == [
        ["Time (UTC)", "in by PHPMQ", "in by JMS", "out"],
        ["20 Nov, 08:00 to 08:01", "5", "0", "2"],
        ["20 Nov, 08:01 to 08:02", "0", "1,234", "0"],
        ["Total", "5", "1,234", "2"],
    ]
    assert tables["Latency per period of time"][1:] == [
        ["20 Nov, 08:00 to 08:01", "2", "2.94 ms", "2.94 ms", "2.94 ms"],
        ["20 Nov, 08:01 to 08:02", "0", "–", "–", "–"],
    ]
    assert tables["Backlog per period of time"][2][1:] == ["9", "2"]
    assert tables["Redelivered, expired, dead per period of time"] == [
        ["Time (UTC)", "dead letters", "expired", "redelivered"],
        ["20 Nov, 08:00 to 08:01", "0", "0", "0"],
        ["20 Nov, 08:01 to 08:02", "0", "0", "3"],
        ["Total", "0", "0", "3"],
    ]


def test_report_without_period_makes_page() -> None:
    period = {"since": datetime.min.replace(tzinfo=UTC), "until": datetime.max.replace(tzinfo=UTC)}
    assert "1 Jan 1970, 00:00" in render(build(gold(row(published=1)), **period))


def test_page_of_empty_lake_contains_instructions() -> None:
    text = words_of(page(build(gold())))
    assert "No traffic in this lake yet" in text
    assert "sluicemq pipeline run" in text


def test_page_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write(build(gold()), path)
    first = path.read_text()
    write(build(gold(row(published=1))), path)
    assert path.read_text() != first
    assert path.stat().st_mode & 0o777 == 0o644
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_failed_rendering_keeps_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    write(build(gold()), path)
    first = path.read_text()

    def failing(_: ReportFigures) -> str:
        raise ValueError("no page")

    monkeypatch.setattr("sluicemq.pipeline.report.page.render", failing)
    with pytest.raises(ValueError, match="no page"):
        write(build(gold()), path)
    assert path.read_text() == first
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_rendering_needs_no_spark_session(tmp_path: Path) -> None:
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    write(build(busy(3, 2)), tmp_path / "report.html")
    assert SparkSession.getActiveSession() is before


def test_unknown_columns_are_ignored() -> None:
    table = gold(row(published=2))
    wider = table.append_column("new", pa.array(["x"]))
    created: Any = datetime(2026, 1, 1, tzinfo=UTC)
    assert render(build(wider, created=created)) == render(build(table, created=created))
