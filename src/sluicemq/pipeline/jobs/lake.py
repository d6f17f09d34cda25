"""Directory layout of a lake and its record of the journals that feed it.

    LAKE/bronze LAKE/silver LAKE/gold LAKE/anomalies     tables (pipeline/tables)
    LAKE/_checkpoints/BROKER/QUERY                       checkpoints of each broker's queries
    LAKE/_brokers/BROKER.json                            journal of that broker
    LAKE/_logs/spark.log                                 Spark's log
    LAKE/_rebuilding                                     marker: silver and gold are incomplete

A batch of events is identified by its journal and its last record. Every commit is tagged with
(broker and journal, last sequence number), so each table stores its own progress. A table ignores
events that it already has, whichever checkpoint repeats them, and a new checkpoint starts at the
end of the table that is furthest behind.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.jobs.bronze import named_of
from sluicemq.pipeline.jobs.schemas import (
    ANOMALY_KEYS,
    BRONZE_PARTITIONS,
    GOLD_PARTITIONS,
    SILVER_KEYS,
)
from sluicemq.pipeline.tables import KINDS, Table, table

NAMES: Final = ("gold", "bronze", "silver")
"""Tables of events, in the order in which a batch writes them: gold has the lowest latency."""

_BROKER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_PARTITIONS: Final = {"bronze": BRONZE_PARTITIONS, "gold": GOLD_PARTITIONS}
_SORT: Final = {
    "bronze": ("sequence",),
    "silver": SILVER_KEYS,
    "gold": ("minute", "destination"),
    "anomalies": ANOMALY_KEYS,
}


class _Known(msgspec.Struct):
    """Contents of _brokers/BROKER.json."""

    journal: str
    kind: str


class Lake:
    """Lake as one broker's events are written to it."""

    def __init__(self, directory: Path, kind: str = "delta", broker: str = "main") -> None:
        """Define the lake without any file access. Raises ConfigurationError."""
        if kind not in KINDS:
            raise ConfigurationError(f"--format: {kind!r} is none of {', '.join(KINDS)}")
        if not _BROKER.fullmatch(broker):
            raise ConfigurationError(
                f"--broker: {broker!r} is no name: up to 63 letters, digits, '_', '.' and '-'"
            )
        self.directory = directory.absolute()
        self.kind = kind
        self.broker = broker

    def path(self, name: str) -> Path:
        """Return the directory of a table: "bronze", "silver", "gold" or "anomalies"."""
        return self.directory / name

    def table(self, name: str) -> Table:
        """Return the table, which may not exist yet."""
        partitions, sort = _PARTITIONS.get(name, ()), _SORT[name]
        return table(self.kind, self.path(name), partitions=partitions, sort=sort)

    @property
    def checkpoints(self) -> Path:
        """Directory of this broker's checkpoints, one per query."""
        return self.directory / "_checkpoints" / self.broker

    @property
    def log(self) -> Path:
        """Path of Spark's log."""
        return self.directory / "_logs" / "spark.log"

    @property
    def rebuilding(self) -> Path:
        """Path of the marker file that exists while silver and gold are rebuilt (rebuild.py)."""
        return self.directory / "_rebuilding"

    def application(self, journal: str) -> str:
        """Return the tag of commits; `journal` is the journal's identity."""
        return f"sluicemq/{self.broker}/{journal}"

    def claim(self, journal: str) -> None:
        """Record that this broker has this journal.

        Raises ConfigurationError if the broker had another journal, because sequence numbers are
        unique within one journal only, or if the tables have another format.
        """
        path = self.directory / "_brokers" / f"{self.broker}.json"
        try:
            known = msgspec.json.decode(path.read_bytes(), type=_Known)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.encode(_Known(journal, self.kind)) + b"\n")
            return
        except msgspec.MsgspecError as error:
            raise ConfigurationError(
                f"{path} cannot be read: {error}. It names the journal that the broker "
                f"{self.broker} of this lake has; remove it if that is {journal}."
            ) from None
        if known.kind != self.kind:
            raise ConfigurationError(
                f"the tables in {self.directory} are of the format {known.kind}, not {self.kind}: "
                f"use --format {known.kind}, or another --lake"
            )
        if known.journal != journal:
            raise ConfigurationError(
                f"the broker {self.broker} of the lake {self.directory} has the journal "
                f"{known.journal}, and this is {journal}: another broker, or a data directory that "
                "was created again. Set another name with --broker, or use another --lake."
            )

    def brokers(self) -> dict[str, str]:
        """Return the journal of each broker that feeds this lake."""
        journals = {}
        for path in sorted((self.directory / "_brokers").glob("*.json")):
            journals[path.stem] = msgspec.json.decode(path.read_bytes(), type=_Known).journal
        return journals

    def reached(self, journal: str, names: Collection[str] = NAMES) -> int | None:
        """Return the last record that all these tables have; None if one of them is empty."""
        application = self.application(journal)
        ends = [self._end(name, application) for name in names]
        known = [end for end in ends if end is not None]
        return min(known) if known and len(known) == len(ends) else None

    def _end(self, name: str, application: str) -> int | None:
        table = self.table(name)
        return table.committed(application) if table.exists() else None

    def named(self) -> frozenset[str]:
        """Return the destinations that have their own partition in bronze."""
        bronze = self.table("bronze")
        if not bronze.exists():
            return frozenset()
        return named_of(str(file.partition["destination_partition"]) for file in bronze.files())
