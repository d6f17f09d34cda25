"""Figures as text: the Prometheus text format 0.0.4, and OpenMetrics 1.0 for who asks for it.

    # HELP sluicemq_destination_messages_published_total Messages accepted.
    # TYPE sluicemq_destination_messages_published_total counter
    sluicemq_destination_messages_published_total{destination="orders",kind="queue"} 17

Lines of samples are the same in both; they differ in what is said of a family, and in the end.

The client library of Prometheus would do this too, but it takes 4 µs a sample (9 for OpenMetrics,
0.2 here), because it looks at every character of every name. A broker with a thousand destinations
has 20,000 samples, and while they are written nobody is served. The tests read what comes out here
with that library.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from sluicemq.model.histogram import Distribution

EACH: Final = 2
"""Of so many buckets one is told: a factor of 2 between bounds is as fine as charts need it."""
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Shape(StrEnum):
    """What the figures of a family are."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"
    INFO = "info"


SUFFIXES: Final = {Shape.COUNTER: "_total", Shape.INFO: "_info"}
"""What the name of a sample has behind that of its family."""


class Family(NamedTuple):
    """Figures of one name.

    name    as OpenMetrics has it; ends in the unit if there is one
    unit    "" for numbers of things; seconds, bytes
    labels  in the order of the values
    """

    name: str
    shape: Shape
    unit: str
    labels: tuple[str, ...]
    help: str

    @property
    def sample(self) -> str:
        """The name that its samples have (those of histograms and summaries have more behind it)
        and that expressions use."""
        return self.name + SUFFIXES.get(self.shape, "")


def text_of(name: str) -> str:
    """A name as the value of a label: what is no UTF-8 is shown as the bytes that it is."""
    return name.encode("utf-8", "backslashreplace").decode()


def labels_of(family: Family, values: Sequence[str]) -> str:
    """`destination="orders",kind="queue"`"""
    return ",".join(
        f'{label}="{escape(value)}"' for label, value in zip(family.labels, values, strict=True)
    )


def escape(value: str) -> str:
    """Whatever a value contains, it ends where its quotes end."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Exposition:
    """Collector of samples by family."""

    def __init__(self) -> None:
        self._lines: dict[Family, list[bytes]] = {}

    def add(self, family: Family, value: float, *labels: str) -> None:
        """Add one sample of a counter or gauge."""
        around = f"{{{labels_of(family, labels)}}}" if labels else ""
        self.add_lines(family, f"{family.sample}{around} {value}\n")

    def add_info(self, family: Family, *labels: str) -> None:
        """Add an info metric: value 1, the information is in its labels."""
        self.add(family, 1, *labels)

    def add_histogram(self, family: Family, seen: Distribution, *labels: str) -> None:
        """Add a histogram of durations."""
        lines = []
        own = labels_of(family, labels)
        before = f"{family.name}_bucket{{{own}{',' if own else ''}le="
        total = 0
        for number, (bound, count) in enumerate(zip(seen.bounds, seen.counts, strict=False)):
            total += count
            if number % EACH == 0:
                lines.append(f'{before}"{bound:.6g}"}} {total}\n')
        lines.append(f'{before}"+Inf"}} {seen.count}\n')
        self.add_lines(family, "".join(lines))
        self._add_ends(family, seen.count, seen.sum, own)

    def add_summary(self, family: Family, count: int, total: float, *labels: str) -> None:
        """Add a summary: count and total."""
        self._add_ends(family, count, total, labels_of(family, labels))

    def _add_ends(self, family: Family, count: int, total: float, own: str) -> None:
        around = f"{{{own}}}" if own else ""
        self.add_lines(
            family, f"{family.name}_count{around} {count}\n{family.name}_sum{around} {total}\n"
        )

    def add_lines(self, family: Family, text: str) -> None:
        """Add formatted sample lines, each with its line end."""
        self._lines.setdefault(family, []).append(text.encode())

    def text(self, openmetrics: bool) -> bytes:
        """Return all families as text."""
        parts: list[bytes] = []
        for family, lines in self._lines.items():
            parts.append(_head(family, openmetrics).encode())
            parts += lines
        if openmetrics:
            parts.append(b"# EOF\n")
        return b"".join(parts)


def _head(family: Family, openmetrics: bool) -> str:
    help = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    if openmetrics:
        unit = f"# UNIT {family.name} {family.unit}\n" if family.unit else ""
        return f"# HELP {family.name} {help}\n# TYPE {family.name} {family.shape}\n{unit}"
    shape = Shape.GAUGE if family.shape is Shape.INFO else family.shape
    return f"# HELP {family.sample} {help}\n# TYPE {family.sample} {shape}\n"


def wants_openmetrics(accept: str) -> bool:
    """Return whether an Accept header weighs OpenMetrics at least as high as plain text."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        media = media.lower()
        if media in weights:
            weights[media] = max(weights[media], _weight(parameters))
    wanted = weights["application/openmetrics-text"]
    return wanted > 0 and wanted >= weights["text/plain"]


def _weight(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
