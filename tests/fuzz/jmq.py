"""Conversations of JMQ, in both directions and at the port mapper, for mutation.

Ids assigned by the broker are unknown here: ids of sessions and consumers are guessed, and requests
that need one use ids that may exist. Transactions have names chosen by the client.
"""

from __future__ import annotations

import zlib
from random import Random
from typing import Final

from sluicemq.protocols.java import Byte, Float, Long, Short, dumps_map, dumps_stream
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import (
    INT_BLOCK,
    LONG_BLOCK,
    QUEUE_CLASS,
    TOPIC_CLASS,
    Xid,
    encode_blocks,
    encode_header,
    encode_sysid,
    encode_xid,
)
from sluicemq.protocols.jmq.packets import DestType, PacketType, Status, XaFlag
from sluicemq.protocols.jmq.wire import encode_packet, encode_reply
from tests.fuzz.mutations import Frames
from tests.protocols.jmq.raw import ADDRESS, basic

LONGEST: Final = 12
NAMES: Final = ("hostile.a", "hostile.b", "hostile.é", "h" * 200, "hostile.*", "hostile.**", "mq.x")
TEMPORARY: Final = "temporary_destination://queue/127.0.0.1/1/1"

_SELECTORS: Final = (
    "a = 1",
    "a = 1 AND (b LIKE 'x%' ESCAPE '!' OR c IS NULL)",
    "JMSPriority BETWEEN 1 AND 9 AND NOT d IN ('x', 'y')",
    "JMSMessageID = 'ID:1'",
    "a = ",
    "((((((((",
    "'",
    "a LIKE",
    "1 / 0 = 1",
    "",
    "x = 99999999999999999999",
    "a" * 5000,
)
_XIDS: Final = (
    Xid(1, b"hostile", b"1"),
    Xid(1, b"hostile", b"2"),
    Xid(-1, b"", b""),
    Xid(0x7FFF_FFFF, b"g" * 64, b"b" * 64),
)
_XA_FLAGS: Final = (
    XaFlag.NOFLAGS,
    XaFlag.JOIN,
    XaFlag.SUSPEND,
    XaFlag.RESUME,
    XaFlag.SUCCESS,
    XaFlag.FAIL,
    XaFlag.ONEPHASE,
    XaFlag.STARTRSCAN,
    XaFlag.ENDRSCAN,
    XaFlag.STARTRSCAN | XaFlag.ENDRSCAN,
    3,
)
_PROPERTIES: Final[tuple[dict[str, object], ...]] = (
    {},
    {"a": 1, "b": "xyz", "c": True},
    {"a": Long(1), "d": 2.5, "e": Float(1.5), "f": Byte(-1), "g": Short(300)},
    {"JMS_SUN_PRESERVE_UNDELIVERED": True, "JMSXGroupID": "g", "x" * 300: "é\0"},
)


def client(chance: Random) -> Frames:
    """Return a conversation of a client that usually logs in and uses all kinds of requests."""
    frames = []
    if chance.random() < 0.95:
        hello = {"JMQProtocolLevel": chance.choice((100, 200, 350, 410, 450, 500, 500, 500, 501))}
        if chance.random() < 0.2:
            hello["JMQSize"] = chance.choice((0, 1, 100))
        frames.append(_request(chance, PacketType.HELLO, hello))
        frames.append(
            _request(
                chance, PacketType.AUTHENTICATE, {"JMQAuthType": "basic"}, basic("guest", "guest")
            )
        )
    for _ in range(chance.randint(1, LONGEST)):
        frames += chance.choice(_SAYINGS)(chance)
    return frames


def broker(chance: Random) -> Frames:
    """Return packets of a broker."""
    frames = []
    for _ in range(chance.randint(1, LONGEST)):
        number = chance.randint(0, 9)
        match chance.randrange(4):
            case 0:
                frames += _message(chance)
            case 1:
                properties: dict[str, object] = {
                    "JMQConsumerID": Long(chance.randint(0, 9)),
                    "JMQProducerID": Long(chance.randint(0, 9)),
                    "JMQSessionID": Long(1),
                    "JMQTransactionID": Long(1),
                    "JMQQuantity": 1,
                    "JMQSize": 100,
                    "JMQReason": "no",
                }
                kind = chance.choice(_REPLIES)
                frames.append(encode_reply(kind, number, chance.choice(list(Status)), properties))
            case 2:
                resume = {"JMQProducerID": Long(number), "JMQSize": 10}
                frames.append(encode_packet(PacketType.RESUME_FLOW, properties=resume))
            case _:
                kind = chance.choice((PacketType.PING, PacketType.GOODBYE, PacketType.INFO, 30, 99))
                frames.append(encode_packet(kind, packets.A, number, {"JMQExit": False}))
    return frames


def port_mapper(chance: Random) -> Frames:
    """Return a request for the port mapper."""
    return [chance.choice((b"101", b"1", b"999", b"101 more", b"9" * 200)), b"\n"]


def listener(chance: Random) -> Frames:
    """Return input of a listener for JMS clients."""
    return port_mapper(chance) if chance.random() < 0.1 else client(chance)


def _request(
    chance: Random,
    kind: int,
    properties: dict[str, object] | None = None,
    body: bytes = b"",
    header: bytes = b"",
) -> bytes:
    """Return a request, which usually requests a reply; some have the format of older versions."""
    flags = packets.A if chance.random() < 0.9 else 0
    number = chance.choice((1, 2, 77, -(1 << 63)))
    packet = encode_packet(kind, flags, number, properties, header, body)
    if chance.random() < 0.03:
        block = dumps_map(dict(properties or {}), hashtable=True)
        packet = _with_block(packet, block)
        packet = packet[:4] + (200).to_bytes(2, "big") + packet[6:]
    return packet


def _with_block(packet: bytes, block: bytes) -> bytes:
    """Return the packet with another property block."""
    start = int.from_bytes(packet[52:56], "big")
    body = packet[start + int.from_bytes(packet[56:60], "big") :]
    size = start + len(block) + len(body)
    return b"".join(
        (
            packet[:8],
            size.to_bytes(4, "big"),
            packet[12:56],
            len(block).to_bytes(4, "big"),
            packet[60:start],
            block,
            body,
        )
    )


def _destination_properties(chance: Random) -> dict[str, object]:
    kind = chance.choice((DestType.QUEUE, DestType.QUEUE, DestType.TOPIC))
    if chance.random() < 0.1:
        return {"JMQDestination": TEMPORARY, "JMQDestType": kind | DestType.TEMP}
    return {"JMQDestination": chance.choice(NAMES), "JMQDestType": kind}


def _session(chance: Random) -> Frames:
    mode = chance.choice((None, {"JMQAckMode": 1}, {"JMQAckMode": 2}, {"JMQAckMode": 32768}))
    return [
        _request(chance, PacketType.CREATE_SESSION, mode),
        _request(
            chance,
            chance.choice((PacketType.DESTROY_SESSION, PacketType.START, PacketType.STOP)),
            chance.choice((None, {"JMQSessionID": Long(chance.randint(0, 3))})),
        ),
    ]


def _destination(chance: Random) -> Frames:
    kinds = (PacketType.CREATE_DESTINATION, PacketType.VERIFY_DESTINATION)
    frames = [_request(chance, chance.choice(kinds), _destination_properties(chance))]
    if chance.random() < 0.3:
        frames.append(
            _request(chance, PacketType.DESTROY_DESTINATION, _destination_properties(chance))
        )
    return frames


def _producer(chance: Random) -> Frames:
    number = {"JMQProducerID": Long(chance.randint(0, 9))}
    return [
        _request(chance, PacketType.ADD_PRODUCER, _destination_properties(chance)),
        *_message(chance),
        _request(chance, PacketType.DELETE_PRODUCER, number),
    ]


def _consumer(chance: Random) -> Frames:
    properties: dict[str, object] = {
        **_destination_properties(chance),
        "JMQNoLocal": chance.random() < 0.2,
        "JMQShare": chance.random() < 0.2,
        "JMQAckMode": chance.choice((1, 2, 3, 32768)),
        "JMQSize": chance.choice((-1, 0, 1, 5, 1000)),
    }
    if chance.random() < 0.5:
        properties["JMQSelector"] = chance.choice(_SELECTORS)
    if chance.random() < 0.3:
        properties["JMQDurableName"] = "hostile"
    if chance.random() < 0.2:
        properties["JMQJMSShare"] = True
        properties["JMQSharedSubscriptionName"] = "hostile"
    frames = [
        _request(chance, PacketType.SET_CLIENTID, {"JMQClientID": "hostile", "JMQShare": True}),
        _request(chance, PacketType.ADD_CONSUMER, properties),
        encode_packet(PacketType.START),
    ]
    if chance.random() < 0.5:
        deletion: dict[str, object] = {
            "JMQConsumerID": Long(chance.randint(0, 9)),
            "JMQBodyType": 3,
        }
        frames.append(_request(chance, PacketType.DELETE_CONSUMER, deletion, _sysid(chance)))
    if chance.random() < 0.3:
        frames.append(_request(chance, PacketType.DELETE_CONSUMER, {"JMQDurableName": "hostile"}))
    return frames


def _message(chance: Random) -> Frames:
    kind = chance.randint(PacketType.TEXT_MESSAGE, PacketType.MESSAGE)
    body = {
        PacketType.MAP_MESSAGE: dumps_map({"k": "v", "n": 1}),
        PacketType.STREAM_MESSAGE: dumps_stream([1, "x", b"y"]),
    }.get(kind, chance.choice((b"", b"x", "é".encode(), bytes(chance.randrange(500)))))
    properties = dict(chance.choice(_PROPERTIES))
    destination = _destination_properties(chance)
    queue = bool(int(str(destination["JMQDestType"])) & DestType.QUEUE)
    flags = chance.choice((0, packets.A)) | chance.choice((0, packets.P))
    flags |= packets.Q if queue else 0
    if chance.random() < 0.1:
        properties["JMS_SUN_UNCOMPRESSED_SIZE"] = len(body)
        body = zlib.compress(body)
        flags |= packets.Z
    header = encode_header(
        str(destination["JMQDestination"]),
        chance.choice((None, "c")),
        chance.choice((None, "hostile.b", TEMPORARY)),
        chance.choice((None, "t")),
        QUEUE_CLASS if queue else TOPIC_CLASS,
        chance.choice((None, QUEUE_CLASS, "no.such.Class")),
        chance.choice((0, 0, 0, 1, 1 << 62)),
        chance.choice((0, 1)),
        chance.choice((0, 0, 0, 1 << 40)),
    )
    return [
        encode_packet(
            kind,
            flags,
            chance.randint(0, 99),
            properties,
            header,
            body,
            chance.choice((0, 4, 9, 200)),
            chance.choice((0, 0, 1, 1 << 45, -1)),
            _sysid(chance),
        )
    ]


def _sysid(chance: Random) -> bytes:
    return encode_sysid(1_790_000_000_000, ADDRESS, 1, chance.randint(1, 20))


def _acknowledge(chance: Random) -> Frames:
    width = chance.choice((LONG_BLOCK, LONG_BLOCK, LONG_BLOCK, INT_BLOCK))
    blocks = [(chance.randint(0, 9), _sysid(chance)) for _ in range(chance.choice((0, 1, 2, 20)))]
    header = encode_header(transaction_id=chance.choice((0, 0, 1)))
    kind = chance.choice((PacketType.ACKNOWLEDGE, PacketType.ACKNOWLEDGE, PacketType.REDELIVER))
    properties: dict[str, object] = chance.choice(
        (
            {},
            {"JMQBodyType": 2},
            {"JMQAckType": 1},
            {"JMQAckType": 2, "JMQDeadReason": 1},
            {"JMQSetRedelivered": True, "JMQTransactionID": Long(1)},
            {"JMQValidate": True},
        )
    )
    return [_request(chance, kind, properties, encode_blocks(blocks, width), header)]


def _browse(chance: Random) -> Frames:
    properties: dict[str, object] = {
        **_destination_properties(chance),
        "JMQMetrics": chance.random() < 0.3,
    }
    if chance.random() < 0.3:
        properties["JMQSelector"] = chance.choice(_SELECTORS)
    ids = b"".join(_sysid(chance) for _ in range(chance.randrange(5)))
    return [
        _request(chance, PacketType.BROWSE, properties),
        _request(chance, PacketType.DELIVER, {"JMQConsumerID": Long(1), "JMQBodyType": 3}, ids),
    ]


def _transaction(chance: Random) -> Frames:
    """Return the packets of a transaction, some of which may be missing or wrong."""
    xid = chance.choice(_XIDS)
    local: dict[str, object] = {"JMQTransactionID": Long(chance.randint(0, 3))}
    frames = [_request(chance, PacketType.START_TRANSACTION, {"JMQSessionID": Long(1)})]
    for kind in (
        PacketType.START_TRANSACTION,
        PacketType.END_TRANSACTION,
        PacketType.PREPARE_TRANSACTION,
        PacketType.VERIFY_TRANSACTION,
        PacketType.RECOVER_TRANSACTION,
        chance.choice((PacketType.COMMIT_TRANSACTION, PacketType.ROLLBACK_TRANSACTION)),
    ):
        if chance.random() < 0.8:
            properties: dict[str, object] = dict(local) if chance.random() < 0.2 else {}
            properties["JMQXAFlags"] = chance.choice(_XA_FLAGS)
            if chance.random() < 0.1:
                properties["JMQAutoRollback"] = chance.randint(0, 4)
            frames.append(_request(chance, kind, properties, encode_xid(xid)))
    return frames


def _control(chance: Random) -> Frames:
    kind = chance.choice(
        (
            PacketType.PING,
            PacketType.GENERATE_UID,
            PacketType.GET_LICENSE,
            PacketType.INFO_REQUEST,
            PacketType.RESUME_FLOW,
            PacketType.SET_CLIENTID,
            PacketType.DEBUG,
            PacketType.FLOW_PAUSED,
            PacketType.ERROR,
            *(7, 80, 81, 999, 0),
        )
    )
    properties = chance.choice(
        (
            None,
            {"JMQQuantity": chance.choice((1, 10, 1 << 30, -1))},
            {"JMQRequestType": chance.randint(0, 4)},
            {"JMQConsumerID": Long(1), "JMQSize": 5},
            {"JMQClientID": chance.choice(("", "x", "${u}x", "a b"))},
        )
    )
    return [_request(chance, kind, properties)]


def _goodbye(chance: Random) -> Frames:
    if chance.random() < 0.7:
        return []
    return [_request(chance, PacketType.GOODBYE, {"JMQBlock": True})]


_SAYINGS: Final = (
    _session,
    _destination,
    _producer,
    _message,
    _message,
    _consumer,
    _acknowledge,
    _browse,
    _transaction,
    _control,
    _goodbye,
)
_REPLIES: Final = tuple(kind for kind in PacketType if kind.name.endswith("_REPLY"))
