"""Layout of a lake, and its record of the journals that feed it.

    LAKE/bronze/events
    LAKE/silver/messages
    LAKE/gold/traffic  LAKE/gold/anomalies      Delta tables
    LAKE/_checkpoints/BROKER/QUERY              checkpoints of each broker's queries
    LAKE/_checkpoints/BROKER.lock               lock of the process that writes the broker's events

LAKE is a directory, or a URI of any file system that Spark knows. A batch of events is identified
by its journal and its last record: every commit is tagged with (broker and journal, last sequence
number), so each table stores its own progress. A table ignores events that it already has,
whichever checkpoint repeats them, and a new checkpoint starts at the end of the table that is
furthest behind.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sluicemq.journal.files import lock_file
from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.delta import (
    CHANGE_DATA_FEED,
    NO_COLUMNS,
    HadoopPath,
    LakeTable,
    skipping_statistics,
)
from sluicemq.pipeline.schema import ANOMALIES, BRONZE, GOLD, GOLD_KEYS, SILVER, SILVER_KEYS

EVENT_LAYERS: Final = ("gold", "bronze", "silver")
"""Layers of events, in the order in which a batch is written to them."""
LAYERS: Final = ("bronze", "silver", "gold")
"""Layers of all tables, which are directories of the lake and schemas in a catalog."""
TABLES: Final[tuple[str, ...]] = (
    "bronze.events",
    "silver.messages",
    "gold.traffic",
    "gold.anomalies",
)
SCHEMES: Final = ("file", "s3a", "abfss", "abfs", "gs", "hdfs")
"""Schemes of a lake's URI."""

_SCHEME: Final = re.compile("([A-Za-z][A-Za-z0-9+.-]+):/")
_APPLICATION: Final = re.compile("sluicemq/(?P<broker>[^/]+)/(?P<source>[^/]+)")
"""Application of a broker's writes, see Lake.application."""
_BROKER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


class Lake:
    """Lake as one broker's events are written to it.

    location  absolute path, or URI
    directory   the same as a path; None for a lake on other file systems
    catalog   Spark catalog in which the tables are registered, too; "" = none
    """

    def __init__(
        self, location: str | os.PathLike[str], broker: str = "main", catalog: str = ""
    ) -> None:
        """Define the lake without any file access. Raises ConfigurationError."""
        text = os.fspath(location).rstrip("/")
        if not text:
            raise ConfigurationError(
                f"--lake: {os.fspath(location)!r} is neither a directory for a lake nor a URI"
            )
        match = _SCHEME.match(text)
        self.scheme = match[1].lower() if match else "file"
        if self.scheme not in SCHEMES:
            hint = "; write s3a:// for S3" if self.scheme in ("s3", "s3n") else ""
            raise ConfigurationError(
                f"--lake: {text} has none of the schemes {', '.join(SCHEMES)}{hint}"
            )
        self.directory: Path | None = None
        if self.scheme == "file":
            url = urlsplit(text) if match else None
            if url is not None and (url.netloc or not url.path.startswith("/")):
                raise ConfigurationError(f"--lake: {text} is not of the form file:///path")
            self.directory = Path(text if url is None else unquote(url.path)).absolute()
        if not _BROKER.fullmatch(broker):
            raise ConfigurationError(
                f"--broker: {broker!r} is not a valid name: up to 63 letters, digits, '_', "
                "'.' and '-'"
            )
        self.location = str(self.directory) if self.directory is not None else text
        self.broker = broker
        self.catalog = catalog
        self.bronze = self.table(
            "bronze.events",
            from_arrow_schema(BRONZE),
            partitions=("broker", "day"),
            properties=CHANGE_DATA_FEED
            | skipping_statistics("sequence", "time", "event", "destination", "message_sequence"),
        )
        self.silver = self.table(
            "silver.messages",
            from_arrow_schema(SILVER),
            SILVER_KEYS,
            # the next batches have events of messages without an outcome, rarely of others: a merge
            # of these events writes only the files of such messages again
            ("broker", "outcome"),
            skipping_statistics(
                "message_sequence", "destination", "published", "last_event", "state", "message_id"
            ),
        )
        self.gold = self.table(
            "gold.traffic",
            from_arrow_schema(GOLD),
            GOLD_KEYS,
            ("broker", "day"),
            skipping_statistics(*GOLD_KEYS[1:]),
        )
        self.anomalies = self.table("gold.anomalies", from_arrow_schema(ANOMALIES), ("id",))

    def __str__(self) -> str:
        return self.location

    def table(
        self,
        name: str,
        columns: StructType = NO_COLUMNS,
        keys: Sequence[str] = (),
        partitions: Sequence[str] = (),
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> LakeTable:
        """Return the table of a name, such as "silver.messages", which may not exist yet."""
        location = f"{self.location}/{name.replace('.', '/')}"
        return LakeTable(name, location, columns, keys, partitions, self.catalog, properties)

    def tables(self, spark: SparkSession) -> dict[str, LakeTable]:
        """Return all existing tables by their names."""
        names = (
            f"{layer}.{name}"
            for layer in LAYERS
            for name in sorted(HadoopPath(spark, f"{self.location}/{layer}").names())
        )
        return {table.name: table for table in map(self.table, names) if table.exists(spark)}

    def register(self, spark: SparkSession) -> None:
        """Register the existing tables in the catalog, if there is one.

        Raises ConfigurationError if it has one of their names, or of the tables that the pipeline
        creates, for a table elsewhere.
        """
        if self.catalog:
            for name in dict.fromkeys([*TABLES, *self.tables(spark)]):
                self.table(name).register(spark)

    def layer(self, name: str) -> LakeTable:
        """Return the table of events of a layer (EVENT_LAYERS)."""
        return {"bronze": self.bronze, "silver": self.silver, "gold": self.gold}[name]

    def check_exists(self, name: str = "") -> None:
        """Check that the lake, or the table of a name, exists if it is local: Spark starts slowly.

        Raises ConfigurationError."""
        if self.directory is None:
            return
        directory = (
            self.directory / name.replace(".", "/") / "_delta_log" if name else self.directory
        )
        if not directory.is_dir():
            missing = f"table {name}" if name else "lake"
            raise ConfigurationError(
                f"there is no {missing} in {self}: sluicemq pipeline run or backfill creates it"
            )

    def checkpoint(self, query: str) -> str:
        """Return the location of the checkpoint of one of this broker's queries."""
        return f"{self.location}/_checkpoints/{self.broker}/{query}"

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Keep other processes from writing this broker's events, if the lake is a directory.

        Raises ConfigurationError if another one does.
        """
        if self.directory is None:
            yield
            return
        busy = ConfigurationError(
            f"another process writes the events of the broker {self.broker} to the lake {self}, "
            "and one at a time may: stop it first"
        )
        checkpoints = self.directory / "_checkpoints"
        checkpoints.mkdir(parents=True, exist_ok=True)
        with lock_file(checkpoints / f"{self.broker}.lock", mode=0o660, seconds=0, busy=busy):
            yield

    @property
    def log(self) -> Path:
        """Path of Spark's log: in the lake if that is a directory, else in the user's state."""
        if self.directory is not None:
            return self.directory / "_logs" / "spark.log"
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(state) / "sluicemq" / "spark.log"

    def application(self, source: str) -> str:
        """Return the application in the tags of this broker's writes.

        source  identity of the journal, or the name of a typed table
        """
        return f"sluicemq/{self.broker}/{source}"

    def append_application(self, journal: str) -> str:
        """Return the application of appends to silver whose batch changes other messages, too."""
        return f"sluicemq-new/{self.broker}/{journal}"

    def check_journal(self, spark: SparkSession, journal: str) -> None:
        """Check that the tables have no other journal of this broker.

        Raises ConfigurationError if they have, because sequence numbers are unique within one
        journal only.
        """
        for layer in EVENT_LAYERS:
            existing = journals(self.layer(layer).tags(spark)).get(self.broker, journal)
            if existing != journal:
                raise ConfigurationError(
                    f"the broker {self.broker} of the lake {self} has the journal {existing}, and "
                    f"this is {journal}: another broker, or a data directory that was created "
                    "again. Set another name with --broker, or use another --lake."
                )


def journals(applications: Iterable[str]) -> dict[str, str]:
    """Return the journal of each broker, from the applications of a table's tags."""
    return {
        match["broker"]: match["source"]
        for match in map(_APPLICATION.fullmatch, applications)
        if match
    }
