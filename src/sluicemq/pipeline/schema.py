"""The columns of the source: declared once, as Arrow and Spark types.

One row is one event of a destination or of a message. New columns are added at the end of their
group, and none ever changes its name, type or meaning.

    sequence          number of the journal record; ascends in time through the whole journal
    item              place of the event in its record, from 0; (sequence, item) is unique
    time              when it happened, by the broker's clock
    event             see Event
    destination       its name; bytes that are not UTF-8 are spelled \\xNN
    destination_kind  "queue" or "topic"
    message           number (`sequence`) of the message that the event is about; null = none
    published         when that message was published; null if the journal does not hold it any more
    protocol          by which that message came: "phpmq", "vibemq", "jmq", "msglite", "internal";
                      null as with `published`
    subscription      number of the subscription, for what happens to one delivery
    attempts          deliveries so far, that of the event included ("delivered", "redelivered",
                      "requeued")
    priority          0-9; of events with a body
    durability        "none", "lazy", "sync"; of events with a body
    expiration        when the message expires; null = never; of events with a body
    size              bytes of the body; of events with a body
    body_kind         "none", "text", "json", "bytes", "map", "stream", "object" (model.BodyKind)
    body              as it was sent
    waiting           "gauge": messages that wait
    in_flight         "gauge": delivered and not yet settled
    consumers         "gauge": consumers attached

With `includeHeaders` (or where a read's own schema names them), of events with a body:

    message_id        the sender's own id
    correlation_id    as sent
    reply_to          name of the destination for answers; a topic is "topic:NAME"
    type              JMSType or similar
    deliver_at        when the message may be delivered; null = at once
    properties        the sender's properties and headers, as text; of "dead-lettered" those of the
                      dead letter, which say why
    property_types    the type of each: "boolean", "integer", "real", "text", "bytes" (in base64),
                      "null"
    client_timestamp  when the client sent the message, by the client's own clock (JMSTimestamp);
                      null = the client set none
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import pyarrow as pa

TIME: Final = pa.timestamp("us", tz="UTC")
TEXTS: Final = pa.map_(pa.string(), pa.string())


class Event(StrEnum):
    """What an event says.

    MESSAGE        was published
    CARRIED        still waited when its segment was emptied, and was moved forward in the journal;
                   the same message as the one published earlier
    DELIVERED      was given to a consumer for the first time
    REDELIVERED    again; `attempts` tells how often
    ACKNOWLEDGED ... DISCARDED   the delivery ended (journal.format.Cause)
    REQUEUED       went to the tail of its queue
    GAUGE          how a destination stood
    """

    MESSAGE = "message"
    CARRIED = "carried"
    DELIVERED = "delivered"
    REDELIVERED = "redelivered"
    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"
    DEAD_LETTERED = "dead-lettered"
    DROPPED = "dropped"
    PURGED = "purged"
    MOVED = "moved"
    DISCARDED = "discarded"
    REQUEUED = "requeued"
    GAUGE = "gauge"


PLAIN: Final = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("item", pa.int32(), nullable=False),
        pa.field("time", TIME, nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("destination", pa.string()),
        pa.field("destination_kind", pa.string()),
        pa.field("message", pa.int64()),
        pa.field("published", TIME),
        pa.field("protocol", pa.string()),
        pa.field("subscription", pa.int64()),
        pa.field("attempts", pa.int32()),
        pa.field("priority", pa.int32()),
        pa.field("durability", pa.string()),
        pa.field("expiration", TIME),
        pa.field("size", pa.int64()),
        pa.field("body_kind", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("waiting", pa.int64()),
        pa.field("in_flight", pa.int64()),
        pa.field("consumers", pa.int64()),
    ]
)
"""The columns of every read."""

HEADERS: Final = pa.schema(
    [
        pa.field("message_id", pa.string()),
        pa.field("correlation_id", pa.string()),
        pa.field("reply_to", pa.string()),
        pa.field("type", pa.string()),
        pa.field("deliver_at", TIME),
        pa.field("properties", TEXTS),
        pa.field("property_types", TEXTS),
        pa.field("client_timestamp", TIME),
    ]
)
"""The columns that cost a look into the rarely set fields of each message."""

EVENTS: Final = pa.schema([*PLAIN, *HEADERS])
"""All columns, in order: what bronze tables hold."""
