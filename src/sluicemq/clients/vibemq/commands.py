"""Requests of VibeMQ clients as frames, and the parsing of their responses. Sans-I/O.

One function creates the frame of a request, another parses its response.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from sluicemq.clients.transport import protocol_violation
from sluicemq.model.errors import (
    ClientError,
    ConnectionLost,
    FrameTooLarge,
    ProtocolError,
    RequestRefused,
)
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.compression import Compression, algorithm_names, negotiate
from sluicemq.protocols.vibemq.mapping import BASE64, CONTENT_ENCODING, check_payload
from sluicemq.protocols.vibemq.queues import (
    OPTIONS,
    QueueOptions,
    Strategy,
    WrittenOptions,
    format_span,
    mode_name,
    read_written,
)
from sluicemq.protocols.vibemq.wire import NO_HEADERS, Frame

ABSENT: Final = msgspec.UNSET
"""Payload of a message without payload. `None` is the JSON value `null`."""
OUTSTANDING: Final = 1000
"""Default maximum number of published messages that wait for their confirmation."""


class CommandRefused(RequestRefused):
    """Error response of the broker; `code` is its error code, or ""."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class Conflict(StrEnum):
    """Handling of a queue that exists with other options than declared.

    FAIL      raise ClientError
    OVERRIDE  delete it, with its messages, and create it again
    IGNORE    leave it unchanged
    """

    FAIL = "fail"
    OVERRIDE = "override"
    IGNORE = "ignore"


class Declaration(NamedTuple):
    """Queue that a client creates, if necessary, whenever it connects."""

    queue: str
    options: QueueOptions = QueueOptions()
    conflict: Conflict = Conflict.FAIL


class QueueInfo(NamedTuple):
    """Information on a queue.

    messages     ready messages
    subscribers  connections
    options      effective options of `written`
    created      time of creation; None if the broker does not report it
    written      options as they were written when it was created, or the defaults
    """

    name: str
    messages: int
    subscribers: int
    options: QueueOptions
    created: datetime | None
    written: WrittenOptions


# --- connecting ----------------------------------------------------------------------------------


def connect(
    identity: str, username: str, password: str, token: str, offered: Collection[Compression]
) -> Frame:
    """Return a CONNECT. Empty values are omitted."""
    headers = {
        "authUsername": username,
        "authPassword": password,
        "authToken": token,
        "supported-compression": algorithm_names(offered),
    }
    return Frame(
        wire.CONNECT, identity, headers={name: text for name, text in headers.items() if text}
    )


def negotiated_compression(answer: Frame, offered: Collection[Compression]) -> Compression:
    """Return the negotiated compression. `answer` is no error frame. Raises ConnectionLost."""
    if answer.type != wire.CONNECT_ACK:
        reason = answer.headers.get("reason", "") if answer.type == wire.DISCONNECT else ""
        raise ConnectionLost(reason or "the peer does not speak VibeMQ")
    return negotiate(answer.headers.get("negotiated-compression", ""), offered)


def refusal_error(answer: Frame) -> CommandRefused:
    """Return the exception for an error frame."""
    code, message = answer.error_code, answer.error_message
    return CommandRefused(": ".join(filter(None, (code, message))) or "no reason given", code)


# --- messages ------------------------------------------------------------------------------------


def encode_payload(value: object) -> bytes:
    """Encode a value that msgspec supports as JSON; msgspec.Raw is used as it is.

    Raises ValueError if it cannot be encoded, or not so that all clients can read it.
    """
    if value is ABSENT:
        return b""
    try:
        payload = msgspec.json.encode(value)
        check_payload(payload)
    except (TypeError, OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"the payload cannot be encoded as JSON: {error}") from None
    except ProtocolError as error:
        raise ValueError(str(error)) from None
    return payload


def payload_of(body: bytes) -> tuple[object, Mapping[str, str]]:
    """Return payload and headers for a body of any bytes.

    JSON other than a string is used as it is, other text becomes a JSON string, other bytes
    base64.
    """
    if body.lstrip()[:1] != b'"':
        try:
            check_payload(body)
        except ProtocolError:
            pass
        else:
            return msgspec.Raw(body), NO_HEADERS
    try:
        return body.decode(), NO_HEADERS
    except UnicodeDecodeError:
        return body, {CONTENT_ENCODING: BASE64}


def encode_publish(
    identity: str,
    queue: str,
    value: object = ABSENT,
    headers: Mapping[str, str] = NO_HEADERS,
) -> bytes:
    """Encode a PUBLISH. Raises ValueError for values that the protocol cannot represent."""
    if not queue:
        raise ValueError("the queue name is missing")
    return encode(Frame(wire.PUBLISH, identity, queue, encode_payload(value), headers))


def encode(frame: Frame) -> bytes:
    """Encode a frame without compression, see `compress`.

    Raises ValueError for values that the protocol cannot represent.
    """
    try:
        try:
            return wire.encode(frame)
        except FrameTooLarge:
            return wire.encode(frame, trailer=False, limit=wire.MAX_UNPACKED)
    except ProtocolError as error:
        raise ValueError(str(error)) from None


def compress(data: bytes, compression: Compression, threshold: int) -> bytes:
    """Compress an encoded frame as negotiated, in a higher level if it would be too long.

    Raises ValueError if it is too long even then.
    """
    try:
        return wire.compressed(data, compression, threshold)
    except ProtocolError as error:
        raise ValueError(str(error)) from None


# --- queues --------------------------------------------------------------------------------------


def create_queue(identity: str, queue: str, options: QueueOptions) -> Frame:
    """Return a CREATE_QUEUE, with the options as the .NET client sends them."""
    written = options.written
    fields: dict[str, object] = {
        option.key: value for option, value in zip(OPTIONS.values(), written, strict=True)
    }
    if written.ttl_ticks is not None:
        fields["messageTtl"] = format_span(written.ttl_ticks)
    payload = {name: value for name, value in fields.items() if value is not None}
    return Frame(wire.CREATE_QUEUE, identity, queue, msgspec.json.encode(payload))


def read_info(answer: Frame) -> QueueInfo | None:
    """Parse the response to QUEUE_INFO; None if there is no such queue. Raises ConnectionLost."""
    info = _read(answer)
    if info is None:
        return None
    try:
        values = {"mode": info["deliveryMode"], "maxQueueSize": info["maxSize"]}
        values |= {
            option.key: info[option.key] for option in OPTIONS.values() if option.key in info
        }
        created = info.get("createdAt")
        written = read_written(b"", values)
        return QueueInfo(
            str(info["name"]),
            int(info["messageCount"]),
            int(info["subscriberCount"]),
            written.options(),
            datetime.fromisoformat(created) if created else None,
            written,
        )
    except (ProtocolError, KeyError, TypeError, ValueError) as error:
        raise protocol_violation(f"its queue info cannot be read: {error}") from None


def read_names(answer: Frame) -> list[str]:
    """Parse the response to LIST_QUEUES. Raises ConnectionLost."""
    names = _read(answer)
    if names is not None and not isinstance(names, list):
        raise protocol_violation("a list was expected")
    return [str(name) for name in names or ()]


def conflicts(declared: WrittenOptions, existing: WrittenOptions) -> list[str]:
    """Return the conflicts of an existing queue with its declaration, as texts.

    The rules are those of the .NET client: the declaration must not lose messages that the
    existing queue would keep. Conflicts are another mode, another dead-letter queue if both have
    one, an overflow to dead letters that are not kept, a declaration with a shorter TTL or a TTL
    where there is none, and one that disables dead letters. Sizes, numbers of attempts, and options
    with which messages live longer may differ.
    """
    differences = []
    if declared.mode != existing.mode:
        differences.append(
            f"its mode is {mode_name(existing.mode)}, not {mode_name(declared.mode)}"
        )
    if declared.ttl_ticks is not None and (
        existing.ttl_ticks is None or declared.ttl_ticks < existing.ttl_ticks
    ):
        lifetime = (
            "for ever" if existing.ttl_ticks is None else f"for {format_span(existing.ttl_ticks)}"
        )
        differences.append(f"its messages live {lifetime}, not {format_span(declared.ttl_ticks)}")
    if existing.dead_letter and not declared.dead_letter:
        differences.append("it keeps dead letters, which the declaration does not")
    elif existing.dead_letter and declared.dead_letter_queue != existing.dead_letter_queue:
        differences.append(f"its dead-letter queue is {existing.dead_letter_queue or 'not named'}")
    if (
        declared.overflow == Strategy.REDIRECT_TO_DLQ != existing.overflow
        and not existing.dead_letter
    ):
        differences.append("it keeps no dead letters, to which the overflow is to go")
    return differences


def must_replace(declared: Declaration, existing: QueueInfo) -> bool:
    """Return whether the queue must be deleted and created again.

    Raises ClientError if it conflicts with the declaration and must be kept.
    """
    differences = conflicts(declared.options.written, existing.written)
    if not differences or declared.conflict is Conflict.IGNORE:
        return False
    if declared.conflict is Conflict.FAIL:
        raise ClientError(f"{declared.queue} is not as declared: {', '.join(differences)}")
    return True


def _read(answer: Frame) -> Any:
    try:
        return msgspec.json.decode(answer.payload) if answer.payload else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise protocol_violation(f"its answer is not JSON: {error}") from None
