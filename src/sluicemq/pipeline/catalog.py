"""Options and table properties that Spark's catalog passes to a data source.

`CREATE TABLE ... USING sluicemq OPTIONS (url '...')` passes every property of the table:

    provider, owner, comment ...   Spark's own (TABLE_PROPERTIES)
    option.NAME                    a copy of each option
    NAME                           options and TBLPROPERTIES
    path                           Spark's directory for the table's files

Temporary views and reads without a catalog pass their options only.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Container, Mapping
from typing import Final

TABLE_PROPERTIES: Final = frozenset(
    {"provider", "owner", "location", "external", "is_managed_location", "comment", "collation"}
)
OPTION_PREFIX: Final = "option."
SECRETS: Final = ("password", "token")

OPTIONS_NOT_PASSED: Final = (
    "Spark passes the options of a table to the source only in CREATE TABLE: set them "
    "again where the table is used, as in events WITH (url = 'http://localhost:7680'), or use a "
    "temporary view"
)
"""Limitation of Spark (PythonTable): a table is read with the statement's options only."""

_log: Final = logging.getLogger(__name__)


def own_options(raw_options: Mapping[str, str], option_names: Container[str]) -> dict[str, str]:
    """Return the options that Spark passes, with names in lower case.

    For a table in a catalog, these are the names in `option_names` and those written as an
    option; the table's properties are left out. Other reads and writes keep unknown names, so that
    the caller can reject them.
    """
    option_by_name = {name.lower(): value for name, value in raw_options.items()}
    if not is_table(option_by_name):
        return option_by_name
    options = {
        name: value
        for name, value in option_by_name.items()
        if name not in TABLE_PROPERTIES
        and not name.startswith(OPTION_PREFIX)
        and (name in option_names or OPTION_PREFIX + name in option_by_name)
    }
    directory = OPTION_PREFIX + "path" not in option_by_name
    managed = option_by_name.get("is_managed_location", "").lower() == "true"
    if directory and (managed or "url" in options):
        options.pop("path", None)
    return options


def is_table(raw_options: Mapping[str, str]) -> bool:
    """Return True for the properties of a table in a catalog; names in lower case."""
    return not TABLE_PROPERTIES.isdisjoint(raw_options) or any(
        name.startswith(OPTION_PREFIX) for name in raw_options
    )


def warn_of_secrets(raw_options: Mapping[str, str]) -> None:
    """Log a warning if a table is created with credentials in its options (lower-case names)."""
    if not is_table(raw_options):
        return
    secrets = [f"the option {name}" for name in SECRETS if raw_options.get(name)]
    if re.search(r"://[^?]*:[^?]+@", raw_options.get("url", "")):
        secrets.append("the option url")
    if secrets:
        _log.warning(
            "%s of the table contains credentials, which Spark's catalog stores in clear and shows "
            "to all users of the table. Create the table without them, and pass them where it "
            "is used: spark.read.option('token', ...).table(...), or a temporary view",
            " and ".join(secrets).capitalize(),
        )
