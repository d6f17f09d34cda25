"""Bronze: all events as they came, with what the table is partitioned by."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from sluicemq.pipeline.jobs.schemas import BRONZE

NAMED: Final = 200
"""Destinations with a partition of their own; a million must not make a million directories."""

_PLAIN: Final = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$"
"""Names that are the same in a path on every file system and object store."""
_PLAIN_NAME: Final = re.compile(_PLAIN)
_REST: Final = "~"
"""Begins the names of the shared partitions, and no plain name."""


def bronze(events: DataFrame, named: Collection[str], broker: str) -> DataFrame:
    """`events` (columns of schema.EVENTS) as rows of BRONZE; `named` are the destinations with a
    partition of their own (`choose_named`)."""
    frame = (
        events.withColumn("broker", f.lit(broker))
        .withColumn("day", f.to_date("time"))
        .withColumn("destination_partition", _partition(f.col("destination"), named))
    )
    return frame.select(*BRONZE.names)


def choose_named(
    named: Collection[str], destinations: Iterable[str], limit: int = NAMED
) -> frozenset[str]:
    """`named` and as many new ones as there is room for, in the order of their names."""
    room = max(0, limit - len(named))
    new = sorted({each for each in destinations if _PLAIN_NAME.match(each)} - set(named))
    return frozenset(named) | frozenset(new[:room])


def named_of(partitions: Iterable[str]) -> frozenset[str]:
    """The destinations with a partition of their own, from the names of a table's partitions."""
    return frozenset(each for each in partitions if not each.startswith(_REST))


def _partition(destination: Column, named: Collection[str]) -> Column:
    digits = f.lower(f.lpad(f.hex(f.pmod(f.xxhash64(destination), f.lit(256))), 2, "0"))
    rest = f.concat(f.lit(_REST), digits)
    return f.when(destination.isin(*sorted(named)), destination).otherwise(rest)
