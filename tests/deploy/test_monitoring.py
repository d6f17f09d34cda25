"""The dashboard, the alert rules and their runbooks: they load, their metrics and commands exist,
and the page of metrics is complete."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer
import yaml

from sluicemq.admin.metrics import FAMILIES, Shape
from sluicemq.cli.main import app
from tests.support.programs import PROMTOOL

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD: Final = ROOT / "deploy" / "grafana" / "sluicemq.json"
DOCS: Final = ROOT / "docs"
PAGE: Final = DOCS / "metrics.md"
RULE_TESTS: Final = ROOT / "tests" / "deploy" / "alerts.test.yml"

_ENDS: Final = {
    Shape.HISTOGRAM: ("_bucket", "_count", "_sum"),
    Shape.SUMMARY: ("_count", "_sum"),
}
SAMPLES: Final = {
    family.sample + end: family for family in FAMILIES for end in _ENDS.get(family.shape, ("",))
}
PROMETHEUS_METRICS: Final = {"up", "ALERTS"}
"""Metrics that Prometheus itself creates."""


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return document


def expressions() -> Iterator[tuple[str, str]]:
    """Yield the location and the text of each expression."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the metrics in a PromQL expression, and the labels of their selectors."""
    expression_without_strings = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    for match in re.finditer(
        r"\b((?:sluicemq|process|python)_\w+|up)\b(?:\{([^}]*)\})?", expression_without_strings
    ):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", match[2] or ""))
        yield match[1], labels


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_metrics_and_labels_in_expressions_exist(where: str, expression: str) -> None:
    selected = list(selectors(expression))
    assert selected, where
    for name, labels in selected:
        if name in PROMETHEUS_METRICS:
            continue
        assert name in SAMPLES, f"{where}: there is no metric {name}"
        family = SAMPLES[name]
        known_labels = {*family.labels, "job", "instance", *(["le"] if "_bucket" in name else [])}
        assert labels <= known_labels, f"{where}: {name} has no label {labels - known_labels}"
    groupings = re.findall(r"\bby \(([^)]*)\)", expression)
    known_labels = {
        label for name, _ in selected if name in SAMPLES for label in SAMPLES[name].labels
    }
    for label in ", ".join(groupings).split(", "):
        assert label in {*known_labels, "job", "instance", "le", ""}, f"{where}: by {label}"


def test_rates_are_of_counters_only() -> None:
    """`rate` of a gauge has no meaning, and a counter without `rate` has little."""
    for location, expression in expressions():
        for function, name in re.findall(
            r"\b(rate|increase|deriv|predict_linear)\((\w+)", expression
        ):
            shape = SAMPLES[name].shape
            is_rate = function in ("rate", "increase")
            assert (shape is not Shape.GAUGE) is is_rate, f"{location}: {function} of {name}"
        for name, _ in selectors(expression):
            if name in SAMPLES and SAMPLES[name].shape is Shape.COUNTER:
                assert re.search(rf"\b(rate|increase)\({name}\b", expression), f"{location}: {name}"


def test_rules_have_every_field_of_alert() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert all(rule["annotations"].values())
        assert rule["annotations"]["runbook_url"] == f"runbooks/{rule['alert']}.md"
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))


def test_each_alert_has_runbook_and_each_runbook_alert() -> None:
    index = (DOCS / "runbooks" / "index.md").read_text()
    for rule in rules():
        text = (DOCS / rule["annotations"]["runbook_url"]).read_text()
        assert text.startswith(f"# {rule['alert']}\n\n*{rule['labels']['severity']}: ")
        headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert headings == ["Meaning", "Diagnosis", "Mitigation", "Prevention"], rule["alert"]
        section = text.partition("## Diagnosis")[2].partition("## Mitigation")[0]
        assert "```sh\n" in section
        assert f"| [{rule['alert']}]({rule['alert']}.md) | {rule['labels']['severity']} |" in index
    pages = {page.stem for page in (DOCS / "runbooks").glob("*.md")} - {"index"}
    assert pages == {rule["alert"] for rule in rules()}


def commands() -> Iterator[tuple[str, str]]:
    """Yield every command line of the product in the runbooks and on the page of metrics."""
    for page in (PAGE, DOCS / "tracing.md", *sorted((DOCS / "runbooks").glob("*.md"))):
        text = page.read_text()
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            for line in block.splitlines():
                if line.startswith("sluicemq "):
                    yield page.stem, line.partition(" > ")[0]
        for line in re.findall(r"`(sluicemq [^`]*)`", text):
            yield page.stem, line


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_every_command_on_page_can_be_parsed(page: str, line: str) -> None:
    """The command line is parsed and not executed."""
    words = shlex.split(line)[1:]
    command: Any = typer.main.get_command(app)
    context = command.context_class(command, info_name="sluicemq")
    while hasattr(command, "resolve_command"):
        subcommands = command.list_commands(context)
        if "list" in subcommands and (not words or words[0] not in subcommands):
            words = ["list", *words]  # the group without a subcommand lists
        if not words:
            return
        name, command, words = command.resolve_command(context, words)
        context = command.context_class(command, parent=context, info_name=name)
    command.make_parser(context).parse_args(args=list(words))


def test_dashboard_is_valid() -> None:
    board = dashboard()
    assert board["title"] == "SluiceMQ"
    assert board["uid"] == "sluicemq"
    assert board["schemaVersion"] >= 36
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert variables == {"datasource", "job", "instance", "destination"}
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    titles = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert titles == ["Overview", "Protocols", "Destinations", "Journal", "Pipeline", "Process"]
    for panel in panels:
        position = panel["gridPos"]
        assert position["x"] + position["w"] <= 24
        if panel["type"] == "row":
            continue
        assert panel["type"] in ("stat", "timeseries", "table", "heatmap")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"] is not None
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names)
        for target in panel["targets"]:
            for name in re.findall(r"\$(\w+)", target["expr"]):
                assert name in variables | {"__rate_interval"}, panel["title"]
    # panels do not overlap
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        position = panel["gridPos"]
        panel_cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert not panel_cells & cells, panel["title"]
        cells |= panel_cells


def test_page_lists_every_metric_as_it_is_exported() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| (\w*) ?\| (.*?) ?\| (.*) \|$", PAGE.read_text(), re.MULTILINE
    )
    documented = {
        name: (shape, unit, tuple(re.findall(r"`(\w+)`", labels)), text)
        for name, shape, unit, labels, text in rows
    }
    assert len(documented) == len(rows)
    assert documented == {
        family.sample: (str(family.shape), family.unit, family.labels, family.help)
        for family in FAMILIES
    }


def test_metric_names_follow_conventions() -> None:
    for family in FAMILIES:
        assert re.fullmatch(r"(sluicemq|process|python)_[a-z_]+", family.name)
        assert family.unit in ("", "bytes", "seconds")
        assert family.name.endswith(family.unit)
        assert family.help.endswith(".")
        assert not family.name.endswith(("_total", "_count", "_sum", "_bucket"))


def test_promtool_accepts_rules_and_their_tests_pass() -> None:
    promtool = PROMTOOL.path_or_skip()
    for command in (("check", "rules", str(RULES)), ("test", "rules", str(RULE_TESTS))):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_rule_has_test() -> None:
    """The file that promtool runs tests each alert as firing and as silent."""
    healthy_test, failing_test = yaml.safe_load(RULE_TESTS.read_text())["tests"]
    names = {rule["alert"] for rule in rules()}
    assert {test["alertname"] for test in healthy_test["alert_rule_test"]} == names
    fired_alerts = re.findall(r'alertname="(\w+)"', json.dumps(failing_test).replace("\\", ""))
    assert set(fired_alerts) == names
