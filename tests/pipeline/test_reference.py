"""The tables of docs/pipeline/source.md and sink.md equal the code, in order."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_type

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.schema import ANOMALIES, GOLD, HEADERS, KAFKA, PLAIN, SILVER, Event
from sluicemq.pipeline.sink import options as sink
from sluicemq.pipeline.sink.options import COLUMNS, PART_BYTES, PART_ROWS
from sluicemq.pipeline.source.options import OPTION_NAMES, OPTIONS, parse_options

DOCS = Path(__file__).parents[2] / "docs" / "pipeline"
NAME = re.compile(r"`([^`]+)`")


def tables(page: str) -> list[list[list[str]]]:
    """Return the rows of each table of a page as cells, including headings."""
    tables: list[list[list[str]]] = [[]]
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not set(cells[0]) <= {"-", ":"}:
                tables[-1].append(cells)
        elif tables[-1]:
            tables.append([])
    return [rows for rows in tables if rows]


def names(rows: list[list[str]]) -> list[str]:
    return [name for row in rows[1:] for name in NAME.findall(row[0])]


def options_known(error: str) -> list[str]:
    """Return the known options, with which an error about an unknown one ends."""
    return re.sub(r".*(?:but|there are) ", "", error).split(", ")


def test_options_of_source() -> None:
    table = tables("source.md")[0]
    assert names(table) == list(OPTION_NAMES)
    with pytest.raises(ConfigurationError) as error:
        parse_options({"nonsense": "1"})
    assert options_known(str(error.value)) == list(OPTION_NAMES)


def test_defaults_of_source() -> None:
    table = tables("source.md")[0]
    documented = {name: NAME.findall(row[1]) for row in table[1:] for name in NAME.findall(row[0])}
    # the end of a batch; an endingOffsets of None is also what a stream must have
    assert documented.pop("endingOffsets") == ["latest"]
    defaults = parse_options({"path": "/x"})
    for option in OPTIONS:
        if texts := documented.get(option.name):
            assert [option.parse(texts[0])] == [getattr(defaults, option.field)], option.name
        elif option.name != "path":
            assert not getattr(defaults, option.field), option.name


@pytest.mark.parametrize(("place", "schema"), [(2, KAFKA), (3, PLAIN), (4, HEADERS)])
def test_columns_of_source(place: int, schema: pa.Schema) -> None:
    table = tables("source.md")[place]
    assert names(table) == schema.names
    types = [from_arrow_type(field.type).simpleString() for field in schema]
    assert [row[1] for row in table[1:]] == types


def test_events_of_source() -> None:
    assert names(tables("source.md")[5]) == list(Event)


def test_options_of_sink() -> None:
    with pytest.raises(ConfigurationError) as error:
        sink.parse_options({"nonsense": "1"})
    table = tables("sink.md")[0]
    assert names(table) == options_known(str(error.value))
    defaults = {name: NAME.findall(row[1]) for row in table[1:] for name in NAME.findall(row[0])}
    parsed = sink.parse_options({"url": "http://localhost"})
    assert defaults["badRows"] == [parsed.bad_rows]
    assert defaults["deadLetterQueue"] == [parsed.dead_letters]
    assert defaults["transactionBytes"] == [str(PART_BYTES)]
    assert defaults["transactionRows"] == [str(PART_ROWS)]
    assert defaults["retryTimeout"] == [f"{parsed.retry_timeout:g}"]


def test_columns_of_sink() -> None:
    table = tables("sink.md")[1]
    assert names(table) == list(COLUMNS)
    assert [row[1] for row in table[1:]] == [kind for kind, _, _ in COLUMNS.values()]


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_link_targets_exist(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+\.md)(?:#[^)]*)?\)", (DOCS / page).read_text()):
        assert (DOCS / target).exists(), target


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_python_snippets_compile(page: str) -> None:
    text = (DOCS / page).read_text()
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        compile(code, page, "exec")


@pytest.mark.parametrize(("place", "schema"), [(1, SILVER), (2, GOLD), (3, ANOMALIES)])
def test_columns_of_lake(place: int, schema: pa.Schema) -> None:
    columns: set[str] = set()
    for row in tables("tables.md")[place][1:]:
        for first, last in re.findall(r"`(\w+)`(?: … `(\w+)`)?", row[0]):
            start, end = schema.names.index(first), schema.names.index(last or first)
            columns.update(schema.names[start : end + 1])
    assert columns == set(schema.names)
