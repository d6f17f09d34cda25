"""Bronze: all events unchanged, with the partition columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from sluicemq.pipeline.jobs.schemas import BRONZE

NAMED: Final = 200
"""Maximum number of destinations with their own partition, to bound the directories."""

_PLAIN: Final = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$"
"""Names that are valid in paths of every file system and object store."""
_PLAIN_NAME: Final = re.compile(_PLAIN)
_REST: Final = "~"
"""Prefix of the shared partitions; no plain name has it."""


def bronze(events: DataFrame, named: Collection[str], broker: str) -> DataFrame:
    """Return `events` (columns of schema.EVENTS) as rows of BRONZE.

    `named` are the destinations with their own partition (`choose_named`)."""
    frame = (
        events.withColumn("broker", f.lit(broker))
        .withColumn("day", f.to_date("time"))
        .withColumn("destination_partition", _partition(f.col("destination"), named))
    )
    return frame.select(*BRONZE.names)


def choose_named(
    named: Collection[str], destinations: Iterable[str], limit: int = NAMED
) -> frozenset[str]:
    """Return `named` plus new destinations in the order of their names, up to `limit`."""
    free = max(0, limit - len(named))
    new = sorted({each for each in destinations if _PLAIN_NAME.match(each)} - set(named))
    return frozenset(named) | frozenset(new[:free])


def named_of(partitions: Iterable[str]) -> frozenset[str]:
    """Return the destinations with their own partition, from a table's partition names."""
    return frozenset(each for each in partitions if not each.startswith(_REST))


def _partition(destination: Column, named: Collection[str]) -> Column:
    digits = f.lower(f.lpad(f.hex(f.pmod(f.xxhash64(destination), f.lit(256))), 2, "0"))
    rest = f.concat(f.lit(_REST), digits)
    return f.when(destination.isin(*sorted(named)), destination).otherwise(rest)
