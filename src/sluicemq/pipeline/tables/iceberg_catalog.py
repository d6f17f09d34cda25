"""An Iceberg catalog that is nothing but the table's own directory.

    metadata/v1.metadata.json, v2.metadata.json, …   one per commit
    metadata/version-hint.text                       the number of a late one

This is the layout of the catalog that Java calls "hadoop": Spark, Flink, Trino and DuckDB read the
table by its path, and there is no database beside it that could be lost or left behind. A commit
belongs to whoever creates the next number first; on a local disk creating it is one atomic step.
Object stores offer no such step through `pyiceberg`: one writer at a time there.
"""

from __future__ import annotations

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.typedef import Identifier

from sluicemq.pipeline.tables.numbered import Numbered
from sluicemq.pipeline.tables.snapshot import Outrun
from sluicemq.pipeline.tables.storage import Storage


class Late(ValidationException):
    """The next version exists already. (pyiceberg cleans up after a ValidationException and, unlike
    after CommitFailedException, does not try again by itself.)"""


class DirectoryCatalog(NoopCatalog):
    """The catalog of one table."""

    def __init__(self, storage: Storage) -> None:
        super().__init__("directory", **storage.options)
        self._storage = storage
        self.versions = Numbered(storage, "metadata", "v", ".metadata.json")

    def _location(self, number: int) -> str:
        return self._storage.location(self.versions.path(number))

    def latest(self) -> int:
        """The highest number; 0 if there is no table."""
        return self.versions.latest()

    def load_table(self, identifier: str | Identifier = "table") -> Table:
        """The table now. Raises NoSuchTableError."""
        number = self.latest()
        if not number:
            raise NoSuchTableError(f"no Iceberg table in {self._storage.root}")
        location = self._location(number)
        files = load_file_io(dict(self._storage.options), location)
        metadata = FromInputFile.table_metadata(files.new_input(location))
        return Table(("table",), metadata, location, files, self)

    def create(self, metadata: TableMetadata) -> None:
        """Makes the table; Late if there is one."""
        self._put(1, metadata)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Holds only against exactly the version that `table` was loaded at."""
        number = self.latest()
        if table.metadata_location != self._location(number):
            raise Late(f"the Iceberg table in {self._storage.root} has a newer version")
        try:
            for requirement in requirements:
                requirement.validate(table.metadata)
        except CommitFailedException as error:
            raise Late(str(error)) from error
        metadata = update_table_metadata(
            table.metadata, updates, metadata_location=table.metadata_location
        )
        self._put(number + 1, metadata)
        return CommitTableResponse.model_validate(
            {"metadata": metadata, "metadata-location": self._location(number + 1)}
        )

    def _put(self, number: int, metadata: TableMetadata) -> None:
        try:
            self.versions.put(number, metadata.model_dump_json().encode())
        except Outrun as error:
            raise Late(str(error)) from error
