"""Tables of the lakehouse: Delta, Iceberg or plain Parquet, written exactly once per batch.

bronze = table("delta", "lake/bronze", partitions=("day",), sort=("sequence",))
bronze.append(rows, application="run", version=7)     # True
bronze.append(rows, application="run", version=7)     # False: it is there already
bronze.frame(spark).where("event = 'published'").count()
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.tables.snapshot import Commit, TableSnapshot, Tag
from sluicemq.pipeline.tables.table import Table

KINDS: Final = ("delta", "iceberg", "parquet")

__all__ = ["KINDS", "Commit", "Table", "TableSnapshot", "Tag", "table"]


def table(
    kind: str,
    path: str | os.PathLike[str],
    *,
    partitions: Sequence[str] = (),
    sort: Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
) -> Table:
    """The table of that kind in that directory (or below that URI); see Table.

    Raises ConfigurationError for another kind, or if its library is not installed.
    """
    chosen: type[Table]
    try:
        if kind == "delta":
            from sluicemq.pipeline.tables.delta import Delta

            chosen = Delta
        elif kind == "iceberg":
            from sluicemq.pipeline.tables.iceberg import Iceberg

            chosen = Iceberg
        elif kind == "parquet":
            from sluicemq.pipeline.tables.parquet import Parquet

            chosen = Parquet
        else:
            raise ConfigurationError(
                f"there is no kind of table {kind!r}; there are {', '.join(KINDS)}"
            )
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"tables of kind {kind!r} need the package {error.name}: "
            "pip install 'sluicemq[pipeline]'"
        ) from error
    return chosen(path, partitions=partitions, sort=sort, storage_options=storage_options)
