"""Options of reads and writes: what Spark passes to a data source, and the values of the options.

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
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from sluicemq.model.errors import ConfigurationError

CONNECTION: Final = ("url", "user", "password", "token")
"""Options for the address of a broker and the credentials (`clients.http.target`)."""

MAX_NUMBER: Final = (1 << 63) - 1
"""Largest number of Spark and of the journal."""

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


class OptionSpec(NamedTuple):
    """One option.

    name   its name in Spark; case does not matter
    field  field of the options' class, which has the default. Of the options for one field, a read
           or write has at most one
    parse  returns the value for the text of the option; raises ValueError
    only   READ or READ_STREAM (source/options.py) if the option is for these queries only
    """

    name: str
    field: str
    parse: Callable[[str], object]
    only: str = ""


def parse_values(texts: Mapping[str, str], options: Iterable[OptionSpec]) -> dict[str, Any]:
    """Return the values of the options in `texts` (names in lower case) by their fields.

    Raises ConfigurationError that names the option.
    """
    given = [option for option in options if option.name.lower() in texts]
    values: dict[str, Any] = {}
    for option in given:
        names = [other.name for other in given if other.field == option.field]
        if len(names) > 1:
            raise ConfigurationError(
                f"options {' and '.join(names)}: they contradict each other, give one of them"
            )
        try:
            values[option.field] = option.parse(texts[option.name.lower()])
        except ValueError as error:
            raise ConfigurationError(f"option {option.name}: {error}") from None
    return values


def from_json(text: str, type: Any, rule: str) -> Any:
    """Return a JSON text as an object of a type. Raises ValueError: the text is `rule`."""
    try:
        return msgspec.json.decode(text, type=type)
    except msgspec.MsgspecError:
        raise ValueError(f"{text!r} is {rule}") from None


number: Final = partial(
    from_json,
    type=Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)],
    rule=f"not a whole number from 0 to {MAX_NUMBER}",
)
positive: Final = partial(
    from_json,
    type=Annotated[int, msgspec.Meta(gt=0, le=MAX_NUMBER)],
    rule=f"not a whole number from 1 to {MAX_NUMBER}",
)


def matching(text: str, pattern: str, rule: str) -> str:
    """Return a text that matches a regular expression. Raises ValueError: the text is `rule`."""
    if not re.fullmatch(pattern, text):
        raise ValueError(f"{text!r} is {rule}")
    return text


def choice(text: str, choices: Iterable[str]) -> str:
    """Return the choice of a name; choices are in lower case. Raises ValueError."""
    names = {str(choice): choice for choice in choices}
    name = text.strip().lower()
    if name not in names:
        raise ValueError(f"{text!r} is none of {', '.join(names)}")
    return names[name]


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
    has_path = OPTION_PREFIX + "path" in option_by_name
    is_managed = option_by_name.get("is_managed_location", "").lower() == "true"
    if not has_path and (is_managed or "url" in options):
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
