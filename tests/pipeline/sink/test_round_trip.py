"""Rows read by the source are written back unchanged by the sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sluicemq.clients.http import HttpClient, target
from sluicemq.model.destination import decode_name
from sluicemq.model.message import BodyKind, Message
from sluicemq.model.rows import encode, row
from sluicemq.pipeline.sink.options import COLUMNS
from sluicemq.protocols.java import dumps_map, dumps_stream
from tests.pipeline.sink.published_messages import published

PROPERTIES: dict[str, Any] = {
    "truth": True,
    "lie": False,
    "small": -(1 << 63),
    "large": (1 << 64) - 1,
    "real": 5e-324,
    "inf": float("-inf"),
    "text": "true",
    "empty": "",
    "raw": b"\0\xff",
    "none": None,
    "": "no name",
    "JMSType": "not the field",
    "a.b-c d\n😀": "\0",
    "x" * 1000: "y" * 10_000,
}
FAR = 4_000_000_000_000
NAME = decode_name(b"round \xff\xfe trip")
"""No UTF-8."""


def messages() -> list[Any]:
    """Return messages of every kind of body, some invalid, with properties of every type."""
    bodies = [
        (BodyKind.NONE, b""),
        (BodyKind.TEXT, "é".encode()),
        (BodyKind.TEXT, b""),
        (BodyKind.JSON, b' {"a": [1.0]}'),
        (BodyKind.BYTES, bytes(range(256))),
        (BodyKind.MAP, dumps_map({"a": 1, "b": b"x"})),
        (BodyKind.MAP, b"no map"),
        (BodyKind.STREAM, dumps_stream([1, "x", None])),
        (BodyKind.STREAM, b""),
        (BodyKind.OBJECT, b"\xac\xed\0\5whatever"),
    ]
    rows = [row("was", body, body_kind=int(kind)) for kind, body in bodies]
    rows.append(
        row(
            "was",
            b"all",
            priority=0,
            expiration=FAR,
            deliver_at=FAR - 1,
            message_id="id \x00",
            correlation_id="c",
            reply_to="a queue",
            type="t",
            properties=PROPERTIES,
        )
    )
    rows.append(row("was", b"reply", reply_to="topic", reply_topic=True))
    rows.append(row("was", b"topic", topic=True))
    rows.append(row(NAME.encode("utf-8", "surrogateescape"), b"name"))
    return rows


def fields_of(message: Message) -> tuple[Any, ...]:
    """Return all fields set by the sender."""
    return (
        message.kind,
        message.body,
        message.priority,
        message.expiration,
        message.deliver_at,
        message.message_id,
        message.correlation_id,
        message.reply_to,
        message.type,
        {name: (type(value), value) for name, value in (message.properties or {}).items()},
        message.durability,
    )


def test_rows_are_written_back_unchanged(spark: SparkSession, url: str, data: Path) -> None:
    with HttpClient(target({"url": url})) as remote:
        path = "/api/v1/batches?writer=first&batch=0&partition=0&part=0&final=true"
        remote.request("POST", path, list(encode(messages())))
    reader = spark.read.format("sluicemq").option("includeHeaders", "true")
    rows = reader.load(str(data)).orderBy("sequence").coalesce(1)
    selected = rows.select(*(name for name in COLUMNS if name in rows.columns))
    before = published(data)
    assert len(before) == selected.count() == len(messages())
    selected.write.format("sluicemq").mode("append").option("url", url).save()
    rewritten = published(data)[len(before) :]
    assert [message.destination for message in rewritten] == [m.destination for m in before]
    for first, second in zip(before, rewritten, strict=True):
        assert fields_of(second) == fields_of(first)


def test_message_of_70_megabytes(spark: SparkSession, url: str, data: Path) -> None:
    size = 70 * 1024 * 1024
    frame = spark.range(1).selectExpr(
        f"cast(repeat('x', cast(id + {size} as int)) as binary) as body"
    )
    writer = frame.write.format("sluicemq").mode("append").option("url", url)
    writer.option("destination", "large").save()
    (message,) = published(data, "large")
    assert message.body == b"x" * size
