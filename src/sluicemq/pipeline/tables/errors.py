"""What goes wrong with tables.

TableError
├── TableNotFound      there is no table, or not that version of it
├── SchemaMismatch     rows do not fit the table's columns
└── TableConflict      other writers were faster too many times in a row
"""

from __future__ import annotations

from sluicemq.model.errors import SluiceError


class TableError(SluiceError):
    """A table cannot do what was asked; the text names the table."""


class TableNotFound(TableError):
    """No table lies there, or it has no such version."""


class SchemaMismatch(TableError):
    """The rows do not fit the table's columns; the text says which column and how."""


class TableConflict(TableError):
    """Other writers committed first, again and again. Trying later is safe."""
