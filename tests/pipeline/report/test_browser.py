"""The page in a browser: its content security policy, its script, themes and accessibility."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from sluicemq.pipeline.report import build, write
from sluicemq.pipeline.report.charts import COLOURS
from tests.console.test_accessible import violations
from tests.pipeline.report.sample import anomalies, anomaly, busy, gold, row
from tests.pipeline.report.test_page import HOSTILE, full
from tests.support.programs import launch_chromium

LOOKS: dict[str, dict[str, Any]] = {
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 400, "height": 800}},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run a headless browser."""
    with launch_chromium() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a day."""
    path = tmp_path_factory.mktemp("day") / "report.html"
    write(build(busy(1440, 10, 10), anomalies(anomaly())), path)
    return path


def opened(browser: Browser, path: Path, look: str) -> Page:
    page = browser.new_page(**LOOKS[look])
    page.goto(path.as_uri())
    return page


def test_policy_permits_what_page_has_and_names_run_no_script(
    browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    write(full(HOSTILE), path)
    page = browser.new_page()
    messages: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("dialog", lambda dialog: messages.append(dialog.message))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    assert page.locator('th [role="button"]').count() == 8
    assert messages == []
    assert requests == [path.as_uri()]


@pytest.mark.parametrize("look", LOOKS)
def test_axe_finds_no_violation_and_nothing_is_wider_than_screen(
    browser: Browser, day: Path, look: str
) -> None:
    page = opened(browser, day, look)
    assert violations(page) == []
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width == LOOKS[look]["viewport"]["width"]
    classes = page.locator(".chart").evaluate_all(
        "charts => charts.filter(chart => chart.offsetParent).map(chart => chart.className)"
    )
    assert classes == [f"chart {'narrow' if look == 'phone' else 'wide'}"] * 4


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_charts_follow_theme(browser: Browser, day: Path, theme: str) -> None:
    page = opened(browser, day, theme)
    colours = page.locator(".chart.wide path").evaluate_all(
        "paths => paths.flatMap(path => [getComputedStyle(path).fill,"
        " getComputedStyle(path).stroke])"
    )
    for name in ("phpmq", "jmq", "ink", "heat-0", "heat-6", "bad"):
        colour = COLOURS[name][theme == "dark"]
        red, green, blue = (int(colour[index : index + 2], 16) for index in (1, 3, 5))
        assert f"rgb({red}, {green}, {blue})" in colours, name


def test_keyboard_and_pointer_show_values_of_period(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write(build(gold(row(0, published=5), row(4, protocol="jmq", published=7))), path)
    page = opened(browser, path, "light")
    chart, tip = page.locator(".chart.wide").first, page.locator("#tip")
    chart.focus()
    page.keyboard.press("ArrowRight")
    assert tip.inner_text().split("\n") == [
        "20 Nov, 08:00 to 08:01",
        "in by PHPMQ: 5",
        "in by JMS: 0",
        "out: 0",
    ]
    page.keyboard.press("ArrowLeft")
    assert "08:00 to 08:01" in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + box["height"] / 2)
    assert "08:04 to 08:05" in tip.inner_text()
    assert "in by JMS: 7" in tip.inner_text()
    page.mouse.move(box["x"] + 2, box["y"] + box["height"] / 2)
    assert tip.is_hidden()


def test_heading_sorts_destinations(browser: Browser, day: Path) -> None:
    page = opened(browser, day, "light")
    names = page.locator("table.queues tbody th .name")
    assert names.first.inner_text() == "queue.00000"
    page.get_by_role("button", name="Backlog").click()
    assert names.first.inner_text() == "queue.00003"
    page.get_by_role("button", name="Backlog").press("Enter")
    assert names.last.inner_text() == "queue.00003"
