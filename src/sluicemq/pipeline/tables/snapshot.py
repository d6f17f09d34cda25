"""What a table holds at one version, and what one commit changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from sluicemq.pipeline.tables.files import DataFile


@dataclass(frozen=True)
class TableSnapshot:
    """One version of a table. `schema` includes the partition columns."""

    version: int
    schema: pa.Schema
    partitions: tuple[str, ...]
    sort: tuple[str, ...]
    files: list[DataFile]


@dataclass(frozen=True)
class Tag:
    """Names a batch: what an application writes under the same version is written once."""

    application: str
    version: int


@dataclass(frozen=True)
class Change:
    """Files that come and go in one commit.

    operation  "append", "upsert", "compact" or "overwrite"
    """

    operation: str
    adds: Sequence[DataFile] = ()
    removes: Sequence[DataFile] = ()
    tag: Tag | None = None


@dataclass(frozen=True)
class Commit:
    """One entry of a table's history. Counts are of files; `time` is the writer's clock."""

    version: int
    time: datetime
    operation: str
    added: int
    removed: int
    tags: dict[str, int] = field(default_factory=dict)


class Outrun(Exception):
    """Another writer has committed since the snapshot was taken; within this package only."""
