"""Where the tables of a lake are, and what is remembered of the journals that feed it.

    LAKE/bronze LAKE/silver LAKE/gold LAKE/anomalies     the tables (pipeline/tables)
    LAKE/_checkpoints/BROKER/QUERY                       of the queries of each broker
    LAKE/_brokers/BROKER.json                            which journal that broker has
    LAKE/_logs/spark.log                                 what Spark said
    LAKE/_rebuilding                                     silver and gold are incomplete

A batch of events is known by its journal and the number of its last record: every commit is tagged
(broker and journal, last number), so that each table itself says how far it has come. What it has
is left out when it comes again, by whatever checkpoint, and a new checkpoint starts where the
table that is furthest behind ends.
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
"""The tables that events go into, in the order in which a batch does: gold is waited for."""

_BROKER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_PARTITIONS: Final = {"bronze": BRONZE_PARTITIONS, "gold": GOLD_PARTITIONS}
_SORT: Final = {
    "bronze": ("sequence",),
    "silver": SILVER_KEYS,
    "gold": ("minute", "destination"),
    "anomalies": ANOMALY_KEYS,
}


class _Known(msgspec.Struct):
    """_brokers/BROKER.json."""

    journal: str
    kind: str


class Lake:
    """One lake, as one broker's events are written to it."""

    def __init__(self, directory: Path, kind: str = "delta", broker: str = "main") -> None:
        """Touches no file. Raises ConfigurationError."""
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
        """The directory of a table: "bronze", "silver", "gold" or "anomalies"."""
        return self.directory / name

    def table(self, name: str) -> Table:
        """The table, which may not exist yet."""
        partitions, sort = _PARTITIONS.get(name, ()), _SORT[name]
        return table(self.kind, self.path(name), partitions=partitions, sort=sort)

    @property
    def checkpoints(self) -> Path:
        """Of this broker's queries; each has a directory of its name there."""
        return self.directory / "_checkpoints" / self.broker

    @property
    def log(self) -> Path:
        """What Spark says."""
        return self.directory / "_logs" / "spark.log"

    @property
    def rebuilding(self) -> Path:
        """A file that is there while silver and gold are made anew (rebuild.py)."""
        return self.directory / "_rebuilding"

    def application(self, journal: str) -> str:
        """The tag of commits; `journal` is its identity."""
        return f"sluicemq/{self.broker}/{journal}"

    def claim(self, journal: str) -> None:
        """Note that this broker has this journal.

        Raises ConfigurationError if it had another: messages have numbers that mean something in
        one journal only. And if the tables are of another kind.
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
                "was made anew. Give it a name of its own with --broker, or use another --lake."
            )

    def brokers(self) -> dict[str, str]:
        """The journal of each broker that has fed this lake."""
        found = {}
        for path in sorted((self.directory / "_brokers").glob("*.json")):
            found[path.stem] = msgspec.json.decode(path.read_bytes(), type=_Known).journal
        return found

    def reached(self, journal: str, names: Collection[str] = NAMES) -> int | None:
        """The number of the last record that all these tables have; None if one has nothing."""
        application = self.application(journal)
        ends = [self._end(name, application) for name in names]
        known = [end for end in ends if end is not None]
        return min(known) if known and len(known) == len(ends) else None

    def _end(self, name: str, application: str) -> int | None:
        found = self.table(name)
        return found.committed(application) if found.exists() else None

    def named(self) -> frozenset[str]:
        """Destinations with a partition of their own in bronze."""
        bronze = self.table("bronze")
        if not bronze.exists():
            return frozenset()
        return named_of(str(file.partition["destination_partition"]) for file in bronze.files())
