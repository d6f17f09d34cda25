"""What Spark's catalog hands to a data source beside the options of a table.

`CREATE TABLE ... USING sluicemq OPTIONS (url '...')` gives the source every property of the table:

    provider, owner, comment ...   Spark's own (PROPERTIES)
    option.NAME                    a copy of each option
    NAME                           the options, and what TBLPROPERTIES says
    path                           the directory that Spark means for the table's files

A temporary view, and what is not in a catalog, has its options only.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from typing import Final

from sluicemq.protocols import targets

PROPERTIES: Final = frozenset(
    {"provider", "owner", "location", "external", "is_managed_location", "comment", "collation"}
)
COPY: Final = "option."
SECRETS: Final = ("password", "token")

NOT_HANDED_ON: Final = (
    "Spark hands the options of a table to the source only when CREATE TABLE makes it: name them "
    "again where the table is used, as in events WITH (url = 'http://localhost:7680'), or use a "
    "temporary view"
)
"""Of Spark 4.3 (PythonTable): a read or a write of a table has the options of the statement."""

_log: Final = logging.getLogger(__name__)


def own_options(given: Mapping[str, str], known: Container[str]) -> dict[str, str]:
    """Return the options among what Spark hands over, names in lower case.

    Of a table in a catalog that is what `known` has, and what was written as an option: its
    properties are left out. Names that are in none of them are left in for other reads and writes,
    so that the caller can reject them.
    """
    lowered = {name.lower(): value for name, value in given.items()}
    if not is_table(lowered):
        return lowered
    options = {
        name: value
        for name, value in lowered.items()
        if name not in PROPERTIES
        and not name.startswith(COPY)
        and (name in known or COPY + name in lowered)
    }
    directory = COPY + "path" not in lowered
    managed = lowered.get("is_managed_location", "").lower() == "true"
    if directory and (managed or "url" in options):
        options.pop("path", None)
    return options


def is_table(given: Mapping[str, str]) -> bool:
    """Return whether these are the properties of a table in a catalog; names in lower case."""
    return not PROPERTIES.isdisjoint(given) or any(name.startswith(COPY) for name in given)


def warn_of_secrets(given: Mapping[str, str]) -> None:
    """Log a warning if a table is made with credentials in its options; names in lower case."""
    if not is_table(given):
        return
    found = [f"the option {name}" for name in SECRETS if given.get(name)]
    _, _, rest = given.get("url", "").partition("://")
    if "@" in rest and targets.credentials(rest.partition("?")[0])[1]:
        found.append("the option url")
    if found:
        _log.warning(
            "%s of the table holds credentials, which Spark's catalog stores in clear and shows to "
            "everybody who can see the table. Make the table without them, and give them where it "
            "is used: spark.read.option('token', ...).table(...), or a temporary view",
            " and ".join(found).capitalize(),
        )
