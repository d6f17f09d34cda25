"""Options and columns of a write."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sluicemq.clients.http import HttpTarget, target
from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.sink.options import COLUMNS, column_indexes, parse_options
from sluicemq.pipeline.sink.writer import BatchWriter, StreamWriter

URL = {"url": "http://localhost:7680"}


def test_option_names_are_case_insensitive() -> None:
    options = parse_options(
        {
            "URL": "http://me@broker",
            "Password": "secret",
            "BADROWS": "dead-letter",
            "transactionbytes": "1000",
            "TransactionRows": "5",
            "writeId": "w",
            "batchID": "7",
            "checkpointLocation": "of Spark",
        }
    )
    assert (options.target.host, options.target.port) == ("broker", 7680)
    assert options.bad_rows == "dead-letter"
    assert (options.part_bytes, options.part_rows) == (1000, 5)
    assert (options.write_id, options.batch) == ("w", 7)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "the option url"),
        ({"url": "phpmq://localhost"}, "the option url"),
        ({"url": "http://a,b"}, "names one host"),
        ({"url": "http://a?x=1"}, "unknown option x"),
        ({**URL, "queue": "q"}, "has no option queue; there are url"),
        ({**URL, "path": "/tmp"}, "without a path"),
        ({**URL, "badRows": "keep"}, "option badRows: 'keep' is none of fail, drop, dead-letter"),
        (
            {**URL, "transactionRows": "0"},
            "option transactionRows: '0' is not a whole number from 1 to",
        ),
        (
            {**URL, "transactionBytes": "16 MiB"},
            "option transactionBytes: '16 MiB' is not a whole number",
        ),
        (
            {**URL, "writeId": "two words"},
            "option writeId: 'two words' is not 1 to 128 characters",
        ),
        ({**URL, "batchId": "1"}, "set writeId, too"),
        ({**URL, "deadLetterQueue": ""}, "option deadLetterQueue: '' is not the name of a queue"),
        (
            {**URL, "deadLetterQueue": "topic:x"},
            "option deadLetterQueue: 'topic:x' is not the name of a queue",
        ),
        ({**URL, "password": "secret"}, "needs the option user"),
        ({**URL, "user": "me", "token": "secret"}, "leave out user"),
        ({**URL, "token": "secret\r\nX: y"}, "no token has"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as raised:
        parse_options(options)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://localhost", HttpTarget("localhost", 7680)),
        ("HTTPS://[::1]:81/", HttpTarget("::1", 81, tls=True)),
        (
            "http+tls://h?ca=/ca.pem&insecure=true",
            HttpTarget("h", 7680, True, ca="/ca.pem", insecure=True),
        ),
        ("http://me:pa%3Ass@h", HttpTarget("h", 7680, authorization="Basic bWU6cGE6c3M=")),
    ],
)
def test_urls_are_parsed(url: str, found: HttpTarget) -> None:
    assert target({"url": url}) == found
    assert pickle.loads(pickle.dumps(found)) == found


def test_target_shows_no_secret() -> None:
    secret = target({**URL, "user": "me", "password": "secret"})
    assert "bWU6" not in repr(secret) + str(secret)
    assert "bWU6" not in repr(parse_options({**URL, "token": "bWU6"}))


def test_columns_are_recognised(spark: SparkSession) -> None:
    schema = StructType.fromDDL("Body string, x void, priority smallint, destination varchar(9)")
    schema = StructType([field for field in schema if field.name != "x"])
    assert column_indexes(schema, "") == {"body": 0, "priority": 1, "destination": 2}
    types = {
        "body": "map<string,string>",
        "properties": "map<string,string>",
        "property_types": "map<string,string>",
        "priority": "int",
        "ttl": "bigint",
        "expiration": "timestamp",
        "deliver_at": "timestamp",
    }
    ddl = ", ".join(f"{name} {types.get(name, 'string')}" for name in COLUMNS)
    assert list(column_indexes(StructType.fromDDL(ddl), "")) == list(COLUMNS)
    # a column of nothing but null is no column
    assert column_indexes(StructType.fromDDL("body void, type void"), "q") == {}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("destination string", "the column body is missing"),
        ("body string", "the option destination"),
        ("body string, destination string, value string", "there is no column value"),
        ("body struct<a:int>, destination string", "body is string, binary or map<string,string>"),
        ("body map<string,int>, destination string", "and not map<string,int>"),
        ("body string, destination string, priority string", "priority is an integer"),
        ("body string, destination string, expiration bigint", "expiration is timestamp"),
        ("body string, destination string, deliver_at timestamp_ntz", "not timestamp_ntz"),
        ("body string, destination string, BODY string", "there are two columns body"),
        ("body string, destination string, property_types map<string,string>", "which is missing"),
    ],
)
def test_invalid_columns_are_refused(spark: SparkSession, schema: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as raised:
        column_indexes(StructType.fromDDL(schema), "")
    assert "destination_kind" in str(raised.value)  # it names the columns there are


def test_writers_check_on_driver(spark: SparkSession) -> None:
    schema = StructType.fromDDL("destination string, body string")
    with pytest.raises(ConfigurationError, match="append"):
        BatchWriter(URL, schema, overwrite=True)
    with pytest.raises(ConfigurationError, match="append"):
        StreamWriter(URL, schema, overwrite=True)
    with pytest.raises(ConfigurationError, match=r"df\.write"):
        StreamWriter({**URL, "writeId": "w"}, schema, overwrite=False)
    with pytest.raises(ConfigurationError, match="no column x"):
        BatchWriter(URL, schema.add("x", "string"), overwrite=False)
