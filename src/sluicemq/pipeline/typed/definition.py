"""Parsing of `pipeline.toml`: typed tables, their expectations, and gold tables.

    [[table]]                 name, destination, format, schema or schema_file, key, delete,
                              partition_by
    [[table.expect]]          name, check, action
    [[gold]]                  name, sql, keys, refresh

No Spark is needed here: schemas and SQL stay text, which `typed/validation.py` checks with a
session. All errors of a file are reported at once, each with its line.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from sluicemq.model.access import is_pattern
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.setting import TomlLines
from sluicemq.pipeline.typed.json_schema import ddl_of_json_schema

DEFAULT_FILE: Final = "pipeline.toml"
INFER: Final = "infer"
"""Value of `schema` that stands for a schema inferred from the messages."""
QUARANTINE: Final = "_quarantine"
TOMBSTONES: Final = "_tombstones"
RESERVED_TABLES: Final = frozenset({"messages"})
"""Tables of silver that the pipeline itself writes."""
RESERVED_GOLD: Final = frozenset({"traffic", "anomalies", "typed_counts"})

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_DLQ_SUFFIX: Final = ".dlq"
_JMS_DLQ: Final = "mq.sys.dmq"

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)


class Format(StrEnum):
    """Format of the bodies of a typed table's messages.

    TEXT has exactly one column, of type STRING: the whole body
    """

    JSON = "json"
    CSV = "csv"
    XML = "xml"
    TEXT = "text"


class Action(StrEnum):
    """Effect of a failed expectation.

    WARN        the row is written; the failure is counted
    DROP        the row is not written; the failure is counted
    QUARANTINE  the message is written to the quarantine table instead
    FAIL        the batch fails before anything of this table is written
    """

    WARN = "warn"
    DROP = "drop"
    QUARANTINE = "quarantine"
    FAIL = "fail"


class Refresh(StrEnum):
    """Way in which a gold table is brought up to date.

    INCREMENTAL  recompute the groups of changed rows
    FULL         recompute the whole table
    """

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
        super().__init__(
            "\n".join(
                f"{path}:{problem.line}: {problem.text}"
                if problem.line
                else f"{path}: {problem.text}"
                for problem in self.problems
            )
        )


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
        return "*" not in pattern or pattern.endswith(_DLQ_SUFFIX) or pattern == _JMS_DLQ


@dataclass(frozen=True, kw_only=True)
class GoldTable:
    """Declared gold table.

    sql   query over `silver.NAME`
    keys  columns of its result that identify a row
    """

    name: str
    sql: str
    keys: tuple[str, ...]
    refresh: Refresh = Refresh.FULL
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class Definition:
    """Contents of a definition file."""

    tables: tuple[TypedTable, ...] = ()
    gold: tuple[GoldTable, ...] = ()
    path: str = DEFAULT_FILE

    def place(self, line: int) -> str:
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
        found = re.search(r"line (\d+)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        raise DefinitionError(str(path), [Problem(line, f"this is not TOML: {error}")]) from None
    reader = _Reader(TomlLines(text), path)
    definition = reader.definition(tree)
    if reader.problems:
        raise DefinitionError(str(path), reader.problems)
    return definition


class _Section:
    """One table of the TOML file, whose keys are taken one after the other."""

    def __init__(
        self, reader: _Reader, tree: Mapping[str, Any], path: tuple[str | int, ...], title: str
    ) -> None:
        self._reader = reader
        self._tree = tree
        self._known: list[str] = []
        self.path = path
        self.title = title
        self.line = reader.lines.number(path)

    def problem(self, key: str, text: str) -> None:
        """Report an error at a key, or at the section's header if the key is missing."""
        path = (*self.path, key) if key in self._tree else self.path
        line = self._reader.lines.number(path) or self.line
        self._reader.problems.append(Problem(line, f"{self.title}: {text}"))

    def has(self, key: str, example: str = "") -> bool:
        """Return whether there is a key. One with an `example` is required."""
        self._known.append(key)
        if example and key not in self._tree:
            self.problem(key, f"{key} is missing: add {key} = {example}")
        return key in self._tree

    def text(self, key: str, *, required: bool = False, default: str = "") -> str:
        """Return a text that is not empty, or the default."""
        if not self.has(key, '"..."' if required else ""):
            return default
        value = self._tree[key]
        if isinstance(value, str) and value.strip():
            return value
        wrong = "empty" if isinstance(value, str) else f"{_kind(value)}, not a text in quotes"
        self.problem(key, f"{key} is {wrong}")
        return default

    def texts(self, key: str, *, required: bool = False) -> tuple[str, ...]:
        """Return a list of different texts."""
        if not self.has(key, '["..."]' if required else ""):
            return ()
        value = self._tree[key]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.problem(key, f'{key} is no list of texts such as ["id"]')
            return ()
        for item in sorted({item for item in value if value.count(item) > 1}):
            self.problem(key, f"{key} names {item!r} twice")
        return tuple(dict.fromkeys(value))

    def choice(self, key: str, choices: type[ChoiceT], default: ChoiceT) -> ChoiceT:
        value = self.text(key, default=default)
        try:
            return choices(value)
        except ValueError:
            self.problem(
                key, f"{key} {value!r} is none of {', '.join(choices)}{_guess(value, choices)}"
            )
            return default

    def sections(self, key: str, title: str) -> Iterator[_Section]:
        """Yield the elements of an array of tables; the user takes the keys of each."""
        if not self.has(key):
            return
        value = self._tree[key]
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            name = ".".join(str(part) for part in (*self.path, key) if isinstance(part, str))
            self.problem(key, f"{key} is {_kind(value)}: write it as [[{name}]]")
            return
        for index, item in enumerate(value):
            section = _Section(self._reader, item, (*self.path, key, index), f"{title} {index + 1}")
            yield section
            section.end()

    def end(self) -> None:
        """Report the keys that have not been taken."""
        for key in self._tree:
            if key not in self._known:
                hint = _guess(key, self._known) or f"; there are {', '.join(self._known)}"
                self.problem(key, f"there is no key {key!r}{hint}")


class _Reader:
    """Reads the tree of a file and collects its errors."""

    def __init__(self, lines: TomlLines, path: Path) -> None:
        self.lines = lines
        self._path = path
        self.problems: list[Problem] = []

    def definition(self, tree: Mapping[str, Any]) -> Definition:
        root = _Section(self, tree, (), self._path.name)
        tables = tuple(self._table(section) for section in root.sections("table", "table"))
        gold = tuple(self._gold(section) for section in root.sections("gold", "gold table"))
        root.end()
        self._unique("table", tables)
        self._unique("gold table", gold)
        return Definition(tables=tables, gold=gold, path=str(self._path))

    def _unique(self, title: str, named: Iterable[TypedTable | GoldTable | Expectation]) -> None:
        first: dict[str, int] = {}
        for item in named:
            if item.name in first:
                text = f"{title} {item.name!r} is defined twice, first in line {first[item.name]}"
                self.problems.append(Problem(item.line, text))
            elif item.name:
                first[item.name] = item.line

    def _table(self, section: _Section) -> TypedTable:
        name = self._name(section, RESERVED_TABLES, (QUARANTINE, TOMBSTONES))
        destination = section.text("destination", required=True)
        if destination and not is_pattern(destination.removeprefix("topic:")):
            section.problem("destination", "the pattern is longer than 256 characters")
        format = section.choice("format", Format, Format.JSON)
        table = TypedTable(
            name=name,
            destination=destination,
            format=format,
            schema=self._schema(section, format),
            key=section.texts("key"),
            delete=section.text("delete"),
            partition_by=section.texts("partition_by"),
            expectations=tuple(
                Expectation(
                    name=item.text("name", required=True),
                    check=item.text("check", required=True),
                    action=item.choice("action", Action, Action.WARN),
                    line=item.line,
                )
                for item in section.sections("expect", f"{section.title}, expectation")
            ),
            line=section.line,
        )
        if table.delete and not table.key:
            section.problem("delete", "delete needs a key: without one no row is ever replaced")
        self._unique(f"{section.title}: expectation", table.expectations)
        return table

    def _name(
        self, section: _Section, reserved: Iterable[str], suffixes: tuple[str, ...] = ()
    ) -> str:
        """Return the name of a table, and set the section's title to it."""
        name = section.text("name", required=True)
        if not name:
            return ""
        section.title = f"{section.title.rpartition(' ')[0]} {name!r}"
        if not _NAME.fullmatch(name):
            section.problem(
                "name", "a name has up to 63 letters a-z, digits and _, and begins with a letter"
            )
        elif name in reserved:
            section.problem("name", "the pipeline itself writes a table of this name")
        elif name.endswith(suffixes):
            section.problem("name", f"names that end in {' or '.join(suffixes)} are reserved")
        return name

    def _schema(self, section: _Section, format: Format) -> str:
        declared, has_file = section.text("schema"), section.has("schema_file")
        if not has_file:
            if not section.has("schema"):
                section.problem(
                    "schema",
                    'there is no schema: add schema = "id BIGINT, ...", schema_file = "FILE.json", '
                    'or schema = "infer"',
                )
            return declared
        name = section.text("schema_file")
        if declared:
            section.problem("schema_file", "schema and schema_file are both given: remove one")
            return declared
        if format is not Format.JSON:
            section.problem("schema_file", "a JSON Schema describes messages of format json only")
        if not name:
            return ""
        file = self._path.parent / name
        try:
            return ddl_of_json_schema(file.read_text("utf-8"))
        except ConfigurationError as error:
            for text in str(error).split("\n"):
                section.problem("schema_file", f"{file}: {text}")
        except (OSError, UnicodeDecodeError) as error:
            section.problem("schema_file", f"{file} cannot be read: {error}")
        return ""

    def _gold(self, section: _Section) -> GoldTable:
        name = self._name(section, RESERVED_GOLD)
        sql = section.text("sql", required=True)
        refresh = section.choice("refresh", Refresh, Refresh.FULL)
        keys = section.texts("keys", required=refresh is Refresh.INCREMENTAL)
        return GoldTable(name=name, sql=sql, keys=keys, refresh=refresh, line=section.line)


def _guess(word: str, known: Iterable[str]) -> str:
    """Return a suggestion for a mistyped word, or ""."""
    found = difflib.get_close_matches(word, [str(item) for item in known], n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def _kind(value: object) -> str:
    """Return the TOML type of a value, with its article."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "a table")
