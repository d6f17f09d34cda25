"""Parsing of `pipeline.toml`: typed tables, their expectations, and gold tables.

No Spark is needed here: schemas and SQL stay text, which `typed/validation.py` checks with a
session. All errors of a file are reported at once, each with its line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from sluicemq.model.access import is_pattern
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.setting import TomlLines, suggestion
from sluicemq.pipeline.typed.json_schema import ddl_of_json_schema

DEFAULT_FILE: Final = "pipeline.toml"
INFER: Final = "infer"
"""Value of `schema` that stands for a schema inferred from the messages."""
QUARANTINE: Final = "_quarantine"
TOMBSTONES: Final = "_tombstones"
MAX_NAME: Final = 63
RESERVED_TABLES: Final = frozenset({"messages"})
"""Tables of silver that the pipeline itself writes."""
RESERVED_GOLD: Final = frozenset({"traffic", "anomalies", "typed_counts"})

_DLQ_SUFFIX: Final = ".dlq"


class Format(StrEnum):
    """Format of the bodies of a typed table's messages.

    TEXT has exactly one column, of type STRING: the whole body
    """

    JSON = "json"
    CSV = "csv"
    XML = "xml"
    TEXT = "text"


class Action(StrEnum):
    """Effect of a failed expectation (docs/pipeline/typed-tables.md)."""

    WARN = "warn"
    DROP = "drop"
    QUARANTINE = "quarantine"
    FAIL = "fail"


class Refresh(StrEnum):
    """Scope of the refresh of a gold table: the groups of changed rows, or the whole table."""

    INCREMENTAL = "incremental"
    FULL = "full"


class Problem(NamedTuple):
    """Error in a definition; `line` is 0 if it is unknown."""

    line: int
    text: str


class DefinitionError(ConfigurationError):
    """Errors in a definition file, all at once."""

    def __init__(self, path: str, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems)
        location = Definition(path=path).location
        super().__init__("\n".join(f"{location(line)}: {text}" for line, text in self.problems))


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Condition that every row of a typed table should meet.

    check   Spark SQL of type BOOLEAN over the table's columns; NULL counts as failed
    line    line of the definition file
    """

    name: str
    check: str
    action: Action = Action.WARN
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class TypedTable:
    """Declared typed table.

    destination   pattern; `*` = any run of characters, `topic:NAME` = topics
    schema        columns in Spark's DDL; INFER = not inferred yet
    key           columns that identify a row; () = every message is a row
    delete        condition on which the newest message of a key removes the row; "" = none
    """

    name: str
    destination: str
    format: Format = Format.JSON
    schema: str = INFER
    key: tuple[str, ...] = ()
    delete: str = ""
    partition_by: tuple[str, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    line: int = 0

    @property
    def names_dead_letters(self) -> bool:
        """True if the pattern selects dead-letter queues on purpose: it is an exact name, or ends
        as dead-letter queues do."""
        pattern = self.destination
        return "*" not in pattern or pattern.endswith(_DLQ_SUFFIX)


@dataclass(frozen=True, kw_only=True)
class GoldTable:
    """Declared gold table.

    sql   query over `silver.NAME`
    keys  columns of its result that identify a row
    """

    name: str
    sql: str
    keys: tuple[str, ...] = ()
    refresh: Refresh = Refresh.FULL
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class Definition:
    """Contents of a definition file."""

    tables: tuple[TypedTable, ...] = ()
    gold: tuple[GoldTable, ...] = ()
    path: str = DEFAULT_FILE

    def location(self, line: int) -> str:
        """Return a line as the start of an error."""
        return f"{self.path}:{line}" if line else self.path


def load_definition(path: Path) -> Definition:
    """Read and parse a definition file.

    Raises DefinitionError with all errors, and ConfigurationError if it cannot be read.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path} does not exist: create it, or name another file with --definition"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    return parse_definition(text, path)


def parse_definition(text: str, path: Path = Path(DEFAULT_FILE)) -> Definition:
    """Parse the text of a definition file; `schema_file` is relative to the directory of `path`.

    Raises DefinitionError.
    """
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DefinitionError(str(path), [Problem(0, f"this is not TOML: {error}")]) from None
    reader = _Reader(TomlLines(text), path)
    definition = reader.definition(tree)
    if reader.problems:
        raise DefinitionError(str(path), reader.problems)
    return definition


# --- keys of the file ----------------------------------------------------------------------------

_TEXT: Final = Annotated[str, msgspec.Meta(pattern=r"\S")]
_NAME: Final = Annotated[
    str, msgspec.Meta(pattern=r"\A[a-z][a-z0-9_]*\Z", min_length=1, max_length=MAX_NAME)
]
_NAMES: Final = tuple[str, ...]
_SECTIONS: Final = list[dict[str, Any]]
_TYPE_ERRORS: Final[dict[Any, str]] = {
    _TEXT: "must be a text in quotes that is not empty",
    _NAME: f"must be a text of up to {MAX_NAME} letters a-z, digits and _ that begins with a "
    "letter",
    _NAMES: 'must be a list of different texts such as ["id"]',
    _SECTIONS: "must be an array of tables: write it as [[{path}]]",
}

_FILE: Final = {"table": _SECTIONS, "gold": _SECTIONS}
_TABLE: Final = {
    "name": _NAME,
    "destination": _TEXT,
    "format": Format,
    "schema": _TEXT,
    "schema_file": _TEXT,
    "key": _NAMES,
    "delete": _TEXT,
    "partition_by": _NAMES,
    "expect": _SECTIONS,
}
_EXPECTATION: Final = {"name": _TEXT, "check": _TEXT, "action": Action}
_GOLD: Final = {"name": _NAME, "sql": _TEXT, "keys": _NAMES, "refresh": Refresh}


class _Section:
    """One table of the TOML file.

    Unknown keys and values of a wrong type are reported. `values` has the valid ones, and "" for a
    required key that is missing."""

    def __init__(
        self,
        reader: _Reader,
        title: str,
        tree: Mapping[str, Any],
        kinds: Mapping[str, Any],
        required: Iterable[str],
        path: tuple[str | int, ...],
    ) -> None:
        self._reader = reader
        self.tree = tree
        self.path = path
        self.title = title
        self.line = reader.lines.number(path)
        self.values: dict[str, Any] = dict.fromkeys(required, "")
        for key in self.values:
            if key not in tree:
                self.problem(key, f'{key} is missing: add {key} = "..."')
        for key, value in tree.items():
            if key not in kinds:
                self.problem(key, f"there is no key {key!r}; {suggestion(key, kinds)}")
                continue
            kind = kinds[key]
            try:
                self.values[key] = msgspec.convert(value, kind)
                if kind is _NAMES and len(set(value)) < len(value):
                    raise msgspec.ValidationError
            except msgspec.ValidationError:
                self.problem(key, self._type_error(key, value, kind))

    def _type_error(self, key: str, value: object, kind: Any) -> str:
        if kind not in _TYPE_ERRORS:
            names = [str(name) for name in kind]
            return f"there is no {key} {value!r}; {suggestion(str(value), names)}"
        path = ".".join(part for part in (*self.path, key) if isinstance(part, str))
        return f"{key} {_TYPE_ERRORS[kind].format(path=path)}"

    def problem(self, key: str, text: str) -> None:
        """Report an error at a key, or at the section's header if the key is missing."""
        path = (*self.path, key) if key in self.tree else self.path
        line = self._reader.lines.number(path) or self.line
        self._reader.problems.append(Problem(line, f"{self.title}: {text}"))

    def sections(
        self, key: str, title: str, kinds: Mapping[str, Any], required: Iterable[str]
    ) -> Iterator[_Section]:
        """Yield the elements of an array of tables, and remove it from `values`."""
        for index, tree in enumerate(self.values.pop(key, ())):
            name = f"{title} {tree.get('name', index + 1)!r}"
            yield _Section(self._reader, name, tree, kinds, required, (*self.path, key, index))


class _Reader:
    """Reads the tree of a file and collects its errors."""

    def __init__(self, lines: TomlLines, path: Path) -> None:
        self.lines = lines
        self._path = path
        self.problems: list[Problem] = []

    def definition(self, tree: Mapping[str, Any]) -> Definition:
        root = _Section(self, self._path.name, tree, _FILE, (), ())
        tables = root.sections("table", "table", _TABLE, ("name", "destination"))
        gold = root.sections("gold", "gold table", _GOLD, ("name", "sql"))
        definition = Definition(
            tables=tuple(map(self._table, tables)),
            gold=tuple(map(self._gold, gold)),
            path=str(self._path),
        )
        self._unique("table", definition.tables)
        self._unique("gold table", definition.gold)
        return definition

    def _unique(self, title: str, named: Sequence[TypedTable | GoldTable | Expectation]) -> None:
        names = [item.name for item in named if item.name]
        for item in named:
            if names.count(item.name) > 1:
                text = f"{title} {item.name!r} is defined more than once"
                self.problems.append(Problem(item.line, text))

    def _table(self, section: _Section) -> TypedTable:
        self._check_name(section, RESERVED_TABLES, (QUARANTINE, TOMBSTONES))
        destination = section.values["destination"]
        if destination and not is_pattern(destination.removeprefix("topic:")):
            section.problem("destination", "the pattern, without topic:, has 1 to 256 characters")
        checks = section.sections(
            "expect", f"{section.title}, expectation", _EXPECTATION, ("name", "check")
        )
        expectations = tuple(Expectation(**check.values, line=check.line) for check in checks)
        self._unique(f"{section.title}: expectation", expectations)
        section.values["schema"] = self._schema(section)
        table = TypedTable(**section.values, expectations=expectations, line=section.line)
        if table.delete and not table.key:
            section.problem("delete", "delete needs a key: without one no row is ever replaced")
        return table

    def _check_name(
        self, section: _Section, reserved: Iterable[str], suffixes: tuple[str, ...] = ()
    ) -> None:
        name = section.values["name"]
        if name in reserved:
            section.problem("name", "the pipeline itself writes a table of this name")
        elif name.endswith(suffixes):
            section.problem("name", f"names that end in {' or '.join(suffixes)} are reserved")

    def _schema(self, section: _Section) -> str:
        """Return the columns of `schema` or `schema_file`, which is removed from `values`."""
        declared = str(section.values.get("schema", ""))
        name = section.values.pop("schema_file", "")
        if ("schema" in section.tree) == ("schema_file" in section.tree):
            section.problem(
                "schema_file",
                'a table has either schema = "id BIGINT, ...", or schema = "infer", '
                'or schema_file = "FILE.json"',
            )
        elif name and section.values.get("format", Format.JSON) is not Format.JSON:
            section.problem("schema_file", "a JSON Schema describes messages of format json only")
        elif name:
            file = self._path.parent / name
            try:
                return ddl_of_json_schema(file.read_text("utf-8"))
            except (ConfigurationError, OSError, UnicodeDecodeError) as error:
                for text in str(error).split("\n"):
                    section.problem("schema_file", f"{file}: {text}")
        return declared

    def _gold(self, section: _Section) -> GoldTable:
        self._check_name(section, RESERVED_GOLD)
        gold = GoldTable(**section.values, line=section.line)
        if gold.refresh is Refresh.INCREMENTAL and "keys" not in section.tree:
            section.problem("keys", 'keys is missing: add keys = ["..."]')
        return gold
