"""Options of tables in Spark's catalog."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.datasource import SluiceSource
from sluicemq.pipeline.sink import options as sink
from sluicemq.pipeline.sink.options import DEFAULT_SCHEMA, column_indexes
from sluicemq.pipeline.source.options import parse_options

URL = "http://broker:7680"
PROPERTIES = {
    "provider": "sluicemq",
    "owner": "root",
    "comment": "what happened",
    "collation": "UTF8_BINARY",
    "team": "warehouse",
}
"""Spark's own, and one of TBLPROPERTIES."""
MANAGED = {
    **PROPERTIES,
    "location": "file:/warehouse/events",
    "path": "file:/warehouse/events",
    "is_managed_location": "true",
    "url": URL,
    "option.url": URL,
}
EXTERNAL = {
    **PROPERTIES,
    "external": "true",
    "location": "file:/var/lib/sluicemq",
    "path": "file:/var/lib/sluicemq",
}


def test_properties_of_tables_are_no_options_of_reads() -> None:
    options = parse_options({**MANAGED, "events": "*", "option.events": "*"})
    assert (str(options.target), options.path, len(options.events)) == (URL, None, 13)
    options = parse_options({name: text for name, text in MANAGED.items() if name[:3] != "is_"})
    assert (str(options.target), options.path) == (URL, None)
    options = parse_options({**EXTERNAL, "columns": "body", "option.columns": "body"})
    assert options.path == Path("/var/lib/sluicemq")
    assert options.columns == ("body",)
    # an option of the statement has no copy
    assert parse_options({**MANAGED, "slot": "lake"}).slot == "lake"


def test_properties_of_tables_are_no_options_of_writes() -> None:
    options = sink.parse_options({**MANAGED, "writeId": "w", "option.writeId": "w"})
    assert (options.target.host, options.write_id) == ("broker", "w")


@pytest.mark.parametrize(
    "given", [{**MANAGED, "Owners": "x", "option.Owners": "x"}, {"owners": ""}]
)
def test_wrong_options_of_tables_are_errors(given: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"owners.*startingOffsets"):
        parse_options(given)
    with pytest.raises(ConfigurationError, match=r"owners.*badRows"):
        sink.parse_options(given)


def test_url_and_path_of_read_still_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="one of them"):
        parse_options({"url": URL, "path": "/x"})


def test_error_of_table_without_options_contains_instructions() -> None:
    with pytest.raises(ConfigurationError, match="only in CREATE TABLE"):
        parse_options({})
    with pytest.raises(ConfigurationError, match="only in CREATE TABLE"):
        sink.parse_options({"destination": "q"})


def test_views_to_write_to_have_columns_of_sink() -> None:
    for options in ({"destination": "answers"}, {"writeId": "w"}, {**MANAGED, "badRows": "drop"}):
        assert SluiceSource({"url": URL, **options}).schema() == DEFAULT_SCHEMA
    assert "sequence" in SluiceSource({"url": URL}).schema().names
    assert list(column_indexes(DEFAULT_SCHEMA, "")) == DEFAULT_SCHEMA.names
    with pytest.raises(ConfigurationError, match="no option events"):
        SluiceSource({"url": URL, "destination": "answers", "events": "*"}).schema()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"token": "secret"}, "The option token"),
        ({"user": "u", "password": "secret"}, "The option password"),
        ({"url": "http://u:secret@broker:7680"}, "The option url"),
        ({"url": "https://u@broker:7680?ca=a@b:c"}, ""),
        ({"user": "u"}, ""),
    ],
    ids=str,
)
def test_tables_with_credentials_cause_warning(
    given: dict[str, str], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        SluiceSource({"url": URL, **given}).schema()
        assert not caplog.records, "a view is stored nowhere"
        SluiceSource({**MANAGED, **given}).schema()
    assert [record.getMessage()[: len(says)] for record in caplog.records] == [says] * bool(says)
    assert "secret" not in caplog.text
