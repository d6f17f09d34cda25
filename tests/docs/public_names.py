"""Collect the public names of the product from the code, for docs/decisions/0001-public-names.md.

A name maps to its uses. A use tells where a name occurs if it may be renamed in one place and kept
in another: `Schema.field` for a field, `command --option` for an option.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click
from typer.main import get_command

import sluicemq
from sluicemq.admin.metrics import FAMILIES
from sluicemq.admin.openapi import document
from sluicemq.broker import BatchPart, describe
from sluicemq.broker.codec import encode
from sluicemq.cli.console import body_fields
from sluicemq.cli.main import app
from sluicemq.journal.format import Cause, RecordType
from sluicemq.management.operation import ApiOperation
from sluicemq.model.destination import DestinationSettings
from sluicemq.pipeline.decode import FRAMES
from sluicemq.pipeline.schema import ANOMALIES, BRONZE, EVENTS, GOLD, SILVER, Event
from sluicemq.pipeline.sink import options as sink
from sluicemq.pipeline.sink.options import COLUMNS
from sluicemq.pipeline.source import options as source
from sluicemq.security import audit
from sluicemq.server.listener_settings import Listener, ListenerLimits
from sluicemq.server.loading import SECTIONS
from sluicemq.server.settings import choices, settings_of
from sluicemq.server.tracing import export, span_recorder
from tests.support.api import ApiFixture

Uses = dict[str, list[str]]
"""The uses of each name, in the order of the code; empty for names without uses."""

ROOT: Final = Path(sluicemq.__file__).parent
_CHANGES: Final = ("added", "changed", "removed")
_LABELS: Final = re.compile(
    r"""\b(?:label|caption|action|title):\s*"([^"]+)"
    | \b(?:button|panel|head|reading|tool)\(\s*"([^"]+)"
    | \b(?:number|choiceFilter|textFilter)\(\s*"\w+",\s*"([^"]+)"
    | \btitle\s=\s\(\)\s=>\s*"([^"]+)"
    | (?<!headers)\[\s*"([A-Z][^"]+)"
    """,
    re.VERBOSE,
)
"""A label in the source of the console; those that end in a period are sentences."""


def _plain(names: Iterable[str]) -> Uses:
    return {name: [] for name in names}


def metrics() -> Uses:
    """Return the names of all metrics as Prometheus reads them."""
    return _plain(family.sample for family in FAMILIES)


def metric_labels() -> Uses:
    """Return the labels of all metrics."""
    return _plain(label for family in FAMILIES for label in family.labels)


def settings() -> Uses:
    """Return the configuration keys as `section.key`.

    Keys of a listener are also the options of its URL. Those of `[limits]` apply to listeners too
    and are not repeated, nor are those of `[broker.default_destination]` for `[destinations]`.
    """
    names = ["insecure_public"]
    for path, struct in SECTIONS.items():
        if struct is not DestinationSettings:
            keys = [key for key in settings_of(struct) if (*path, key) not in SECTIONS]
            names += [".".join((*path, key)) for key in keys]
    names += [
        f"listeners.{key}"
        for key in settings_of(Listener)
        if key not in settings_of(ListenerLimits)
    ]
    names += [f"broker.default_destination.{key}" for key in settings_of(DestinationSettings)]
    return _plain(names)


def setting_values() -> Uses:
    """Return the words that settings accept, as `key=word`."""
    structs: list[Any] = [*SECTIONS.values(), Listener]
    return _plain(
        f"{setting.name}={word}"
        for struct in structs
        for setting in settings_of(struct).values()
        for word in choices(setting)
    )


def _operations() -> list[ApiOperation[Any, Any]]:
    async def collect() -> list[ApiOperation[Any, Any]]:
        with tempfile.TemporaryDirectory() as directory:
            api_fixture = ApiFixture(Path(directory))
            api_fixture.authenticator.close()
            return [endpoint.operation for endpoint in api_fixture.endpoints]

    return asyncio.run(collect())


def requests() -> Uses:
    """Return methods and paths of the HTTP API."""
    return _plain(f"{operation.method} {operation.full_path}" for operation in _operations())


def operations() -> Uses:
    """Return the ids of the operations of the HTTP API, which are also in the audit log."""
    return _plain(sorted({operation.operation_id for operation in _operations()}))


def parameters() -> Uses:
    """Return the query parameters of the HTTP API."""
    uses: Uses = {}
    for operation in _operations():
        for name in (*(["name_base64"] if operation.has_address else ()), *operation.query_names):
            uses.setdefault(name, []).append(f"{operation.method} {operation.full_path} {name}")
    return uses


def _schemas() -> dict[str, dict[str, Any]]:
    component_schemas: dict[str, dict[str, Any]] = document(_operations())["components"]["schemas"]
    return component_schemas


def schemas() -> Uses:
    """Return the schemas of the OpenAPI document, without those of single pages of a list."""
    return _plain(name for name in _schemas() if not name.startswith("Page_"))


def fields() -> Uses:
    """Return the fields of requests and responses; a use is `Schema.field`."""
    uses: Uses = {}
    for schema, content in _schemas().items():
        for name in content.get("properties", {}):
            uses.setdefault(name, []).append(f"{schema}.{name}")
    return uses


def field_values() -> Uses:
    """Return the words that fields have or accept; a use is `Schema.word`."""
    uses: Uses = {}

    def visit(schema: str, node: object) -> None:
        if isinstance(node, dict):
            for word in node.get("enum", ()):
                uses.setdefault(str(word), []).append(f"{schema}.{word}")
            for child in node.values():
                visit(schema, child)
        elif isinstance(node, list):
            for child in node:
                visit(schema, child)

    for schema, content in _schemas().items():
        visit(schema, content)
    return uses


def error_codes() -> Uses:
    """Return the error codes of the HTTP API."""
    texts = (path.read_text("utf-8") for path in sorted((ROOT / "admin").rglob("*.py")))
    pattern = re.compile(r'\b[45]\d\d,\s+"([a-z-]+)"')
    return _plain(sorted({code for text in texts for code in pattern.findall(text)}))


def record_types() -> Uses:
    """Return the record types that `journal dump` prints."""
    return _plain(record.name.lower() for record in RecordType)


def causes() -> Uses:
    """Return the causes of a delivery's end that `journal dump` prints."""
    return _plain(cause.label for cause in Cause)


def dump_fields() -> Uses:
    """Return the fields of `journal dump --json`."""
    text = (ROOT / "cli" / "journal.py").read_text("utf-8")
    body = text[text.index("def describe_entry(") : text.index("def _line(")]
    pattern = r'^        "(\w+)":|\{"(\w+)":|yield "(\w+)"|"(\w+)"[,)]'
    matches = re.findall(pattern, body, re.M)
    part = encode(BatchPart("w", 1, 0, 0, True, 0, 1))
    fields = [
        *describe(RecordType.BATCH_PART, part),
        *describe(RecordType.CLOCK_STEP, bytes(8)),
        *body_fields(b"text"),
        *body_fields(b"\xff"),
    ]
    return _plain([*(name for groups in matches for name in groups if name), *fields])


def events() -> Uses:
    """Return the values of the Spark source's column `event`."""
    return _plain(Event)


def columns() -> Uses:
    """Return the columns of the source, the sink and all tables; a use is `table.column`."""
    tables = {
        "source": EVENTS.names,
        "sink": list(COLUMNS),
        "bronze": [name for name in BRONZE.names if name not in EVENTS.names],
        "silver": SILVER.names,
        "gold": GOLD.names,
        "anomalies": ANOMALIES.names,
        "frames": FRAMES.names,
    }
    uses: Uses = {}
    for table, names in tables.items():
        for name in names:
            uses.setdefault(name, []).append(f"{table}.{name}")
    return uses


def spark_options() -> Uses:
    """Return the options of source and sink; a use is `source option`."""
    places = {
        "source": source.OPTION_NAMES,
        "sink": sink.OPTION_NAMES,
    }
    uses: Uses = {}
    for side, names in places.items():
        for name in names:
            uses.setdefault(name, []).append(f"{side} {name}")
    return uses


def _commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if path:
        yield path, command
    if isinstance(command, click.Group) or hasattr(command, "list_commands"):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from _commands(command.get_command(context, name), f"{path} {name}".strip())


def commands() -> Uses:
    """Return the commands of the program."""
    return _plain(path for path, _ in _commands(get_command(app)))


def options() -> Uses:
    """Return the long options of all commands; a use is `command --option`."""
    uses: Uses = {}
    for path, command in _commands(get_command(app)):
        for parameter in command.params:
            for name in (*parameter.opts, *parameter.secondary_opts):
                if name.startswith("--"):
                    uses.setdefault(name, []).append(f"{path} {name}")
    return uses


def span_attributes() -> Uses:
    """Return the operations of spans, and their attributes that OpenTelemetry does not define."""
    text = inspect.getsource(span_recorder) + inspect.getsource(export.attributes)
    return _plain([*export._KINDS, *re.findall(r'"(sluicemq\.[a-z.]+)"', text)])


def audit_events() -> Uses:
    """Return the events of the audit log."""
    changes = [f"{kind} {change}" for kind in ("user", "role") for change in _CHANGES]
    return _plain([*audit._COMMON_EVENTS, *changes])


def variables() -> Uses:
    """Return the environment variables of the program."""
    texts = (path.read_text("utf-8") for path in sorted(ROOT.rglob("*.py")))
    names = {name for text in texts for name in re.findall(r"\bSLUICEMQ_[A-Z]+(?:_[A-Z]+)*", text)}
    return _plain(sorted(names))


def alerts() -> Uses:
    """Return the alerts in deploy/prometheus/alerts.yml, which are the names of runbooks too."""
    text = (ROOT.parents[1] / "deploy" / "prometheus" / "alerts.yml").read_text("utf-8")
    return _plain(re.findall(r"- alert: (\w+)", text))


def console_labels() -> Uses:
    """Return the labels of the console: titles, columns, form fields, buttons and facts."""
    console = ROOT / "admin" / "console"
    texts = [path.read_text("utf-8") for path in sorted(console.rglob("*.js"))]
    labels = {label for text in texts for groups in _LABELS.findall(text) for label in groups}
    return _plain(sorted(label for label in labels if label and not label.endswith(".")))


SECTIONS_OF_PAGE: Final[dict[str, Callable[[], Uses]]] = {
    "Metrics": metrics,
    "Metric labels": metric_labels,
    "Alerts": alerts,
    "Configuration keys": settings,
    "Configuration values": setting_values,
    "Environment variables": variables,
    "HTTP requests": requests,
    "HTTP operations": operations,
    "HTTP query parameters": parameters,
    "HTTP fields": fields,
    "HTTP values": field_values,
    "HTTP error codes": error_codes,
    "OpenAPI schemas": schemas,
    "Journal record types": record_types,
    "Journal dump fields": dump_fields,
    "Causes": causes,
    "Spark events": events,
    "Spark and table columns": columns,
    "Spark options": spark_options,
    "CLI commands": commands,
    "CLI options": options,
    "Span operations and attributes": span_attributes,
    "Audit events": audit_events,
    "Console labels": console_labels,
}
"""Headings of the page, and the functions that collect the names below them."""
