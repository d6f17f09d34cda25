"""What a client asks, as frames, and what the broker's answers say. Sans-I/O.

Both clients are made of these: one function makes the frame of a request, another reads its answer.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from itertools import count
from secrets import token_hex
from typing import Any, Final, NamedTuple

import msgspec

from sluicemq.model.errors import (
    ClientError,
    ConnectionLost,
    FrameTooLarge,
    ProtocolError,
    RequestRefused,
)
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.compression import Compression, names, negotiate
from sluicemq.protocols.vibemq.mapping import BASE64, CONTENT_ENCODING
from sluicemq.protocols.vibemq.payload import check
from sluicemq.protocols.vibemq.queues import (
    Options,
    Strategy,
    WrittenOptions,
    read_written,
    shown_mode,
    shown_span,
)
from sluicemq.protocols.vibemq.wire import ATTEMPTS_HEADER, ERROR, NO_HEADERS, Frame

ABSENT: Final = msgspec.UNSET
"""Published, it is a message without payload. `None` is one: `null`."""
OUTSTANDING: Final = 1000
"""Published messages that may wait for their confirmation at a time."""


class CommandRefused(RequestRefused):
    """The broker answered with an error frame; `code` is its error code, or ""."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class Ids:
    """Ids of 32 hex digits: what one client gives twice, none does."""

    __slots__ = ("_numbers", "_prefix")

    def __init__(self) -> None:
        self._prefix = token_hex(8)
        self._numbers = count(1)

    def new(self) -> str:
        """The next id."""
        return f"{self._prefix}{next(self._numbers):016x}"


class Received:
    """A message as it came: what both kinds of client show of it.

    id        the publisher's; the same each time the message is delivered
    queue     where it was waiting
    payload   JSON as it was published; b"" if it has none
    headers   the publisher's, and `deliveryAttempts` if the broker tells it
    """

    __slots__ = ("headers", "id", "payload", "queue")

    def __init__(self, frame: Frame) -> None:
        self.id = frame.id
        self.queue = frame.queue
        self.payload = frame.payload
        self.headers = frame.headers

    @property
    def attempts(self) -> int:
        """How often it has been delivered, this time included; 0 if the broker does not say."""
        text = self.headers.get(ATTEMPTS_HEADER, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0

    @property
    def body(self) -> bytes:
        """The payload; if its header says that it carries bytes in base64, those bytes."""
        if self.headers.get(CONTENT_ENCODING) == BASE64:
            try:
                return b64decode(msgspec.json.decode(self.payload, type=str), validate=True)
            except (msgspec.MsgspecError, ValueError):
                pass
        return self.payload

    @property
    def text(self) -> bytes:
        """The body; of a JSON string, the text. The inverse of `payload_of`."""
        body = self.body
        if body is self.payload and body[:1] == b'"':
            try:
                return msgspec.json.decode(body, type=str).encode()
            except (msgspec.MsgspecError, UnicodeError):
                pass
        return body

    def json(self, type: Any = Any) -> Any:
        """The payload's value, as `msgspec.json.decode` makes it. None if there is none.

        Raises msgspec.MsgspecError if it does not fit `type`.
        """
        return msgspec.json.decode(self.payload, type=type) if self.payload else None

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name} {self.id} of {self.queue}, {len(self.payload)} bytes>"


class Conflict(StrEnum):
    """What to do about a queue that exists with other settings than those declared.

    FAIL      raise ClientError
    OVERRIDE  delete it, with its messages, and create it anew
    IGNORE    leave it as it is
    """

    FAIL = "fail"
    OVERRIDE = "override"
    IGNORE = "ignore"


class Declaration(NamedTuple):
    """A queue that a client makes sure of whenever it connects."""

    queue: str
    options: Options = Options()
    conflict: Conflict = Conflict.FAIL


class QueueInfo(NamedTuple):
    """What the broker tells of a queue.

    messages     waiting, not those in flight
    subscribers  connections
    options      what `written` means
    created      or None if the broker does not say
    written      options as they were written when it was created, or the defaults
    """

    name: str
    messages: int
    subscribers: int
    options: Options
    created: datetime | None
    written: WrittenOptions


class User(NamedTuple):
    """An account in the broker's user database. `created` is in seconds since the epoch."""

    name: str
    superuser: bool
    created: int


class Grant(NamedTuple):
    """Operations, by their names, on the queues whose names match `pattern`."""

    pattern: str
    operations: tuple[str, ...]


# --- connecting ----------------------------------------------------------------------------------


def connect(
    identity: str, username: str, password: str, token: str, offered: Collection[Compression]
) -> Frame:
    """CONNECT. What is "" is not sent."""
    headers = {
        "authUsername": username,
        "authPassword": password,
        "authToken": token,
        "supported-compression": names(offered),
    }
    return Frame(
        wire.CONNECT, identity, headers={name: text for name, text in headers.items() if text}
    )


def agreed(answer: Frame, offered: Collection[Compression]) -> Compression:
    """What the answer to CONNECT lets this side write. Raises CommandRefused, ConnectionLost."""
    if answer.type == ERROR:
        raise refusal(answer)
    if answer.type != wire.CONNECT_ACK:
        reason = answer.headers.get("reason", "") if answer.type == wire.DISCONNECT else ""
        raise ConnectionLost(reason or "what answers does not speak VibeMQ")
    return negotiate(answer.headers.get("negotiated-compression", ""), offered)


def refusal(answer: Frame) -> CommandRefused:
    """What an error frame says."""
    code, message = answer.error_code, answer.error_message
    return CommandRefused(": ".join(filter(None, (code, message))) or "no reason given", code)


# --- messages ------------------------------------------------------------------------------------


def encode_payload(value: object) -> bytes:
    """JSON for a value that msgspec knows; msgspec.Raw as it is.

    Raises ValueError if it has no form in JSON, or none that all clients can read.
    """
    if value is ABSENT:
        return b""
    try:
        payload = msgspec.json.encode(value)
        check(payload)
    except (TypeError, OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"the payload has no form in JSON: {error}") from None
    except ProtocolError as error:
        raise ValueError(str(error)) from None
    return payload


def payload_of(body: bytes) -> tuple[object, Mapping[str, str]]:
    """A payload, and its headers, for a body that may be anything: JSON that is no string as it
    is, other text as a JSON string, other bytes in base64."""
    if body.lstrip()[:1] != b'"':
        try:
            check(body)
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
    """PUBLISH. Raises ValueError for what has no form in the protocol."""
    if not queue:
        raise ValueError("the queue has no name")
    return encode(Frame(wire.PUBLISH, identity, queue, encode_payload(value), headers))


def encode(frame: Frame) -> bytes:
    """The frame, not compressed; see `packed`. Raises ValueError if it has no form in the
    protocol."""
    try:
        try:
            return wire.encode(frame)
        except FrameTooLarge:
            return wire.encode(frame, trailer=False, limit=wire.MAX_UNPACKED)
    except ProtocolError as error:
        raise ValueError(str(error)) from None


def packed(data: bytes, how: Compression, threshold: int) -> bytes:
    """An encoded frame as it is sent: compressed as agreed upon, and with a higher quality if it
    would be longer than brokers accept. Raises ValueError if it would be so all the same."""
    try:
        if len(data) > wire.MAX_BODY + wire.HEADER_SIZE:
            return wire.fitted(data, how, threshold)
        return wire.compressed(data, how, threshold)
    except ProtocolError as error:
        raise ValueError(str(error)) from None


# --- queues --------------------------------------------------------------------------------------


def create_queue(identity: str, queue: str, options: Options) -> Frame:
    """CREATE_QUEUE, with the options as the .NET client sends them."""
    mode, size, ticks, dead_letter, name, overflow, attempts = options.written
    fields = {
        "mode": mode,
        "maxQueueSize": size,
        "messageTtl": None if ticks is None else shown_span(ticks),
        "enableDeadLetterQueue": dead_letter,
        "deadLetterQueueName": name,
        "overflowStrategy": overflow,
        "maxRetryAttempts": attempts,
    }
    said = {name: value for name, value in fields.items() if value is not None}
    return Frame(wire.CREATE_QUEUE, identity, queue, msgspec.json.encode(said))


def read_info(answer: Frame) -> QueueInfo | None:
    """The answer to QUEUE_INFO; None if there is no such queue. Raises ConnectionLost."""
    said = _read(answer)
    if said is None:
        return None
    try:
        known = {
            "mode": said["deliveryMode"],
            "maxQueueSize": said["maxSize"],
            **{name: said[name] for name in _OPTIONAL if name in said},
        }
        created = said.get("createdAt")
        written = read_written(msgspec.json.encode(known), {})
        return QueueInfo(
            str(said["name"]),
            int(said["messageCount"]),
            int(said["subscriberCount"]),
            written.options(),
            datetime.fromisoformat(created) if created else None,
            written,
        )
    except (ProtocolError, KeyError, TypeError, ValueError) as error:
        raise _broken(f"what it says of a queue cannot be read: {error}") from None


_OPTIONAL: Final = (
    "messageTtl",
    "enableDeadLetterQueue",
    "deadLetterQueueName",
    "overflowStrategy",
    "maxRetryAttempts",
)


def read_names(answer: Frame) -> list[str]:
    """The answer to LIST_QUEUES. Raises ConnectionLost."""
    return [str(name) for name in _list(answer)]


def conflicts(declared: WrittenOptions, found: WrittenOptions) -> list[str]:
    """Return in what a queue that exists conflicts with its declaration, as texts.

    The rules are those of the .NET client: what the declaration asks for must not cost messages
    that the queue as it is would keep. That is another mode, another dead-letter queue where both
    have one, an overflow to dead letters that are not kept; and a declaration that ends the life of
    messages that have no end or a later one, or switches dead letters off. Sizes, numbers of
    attempts, and whatever makes messages live longer may differ.
    """
    differences = []
    if declared.mode != found.mode:
        differences.append(f"its mode is {shown_mode(found.mode)}, not {shown_mode(declared.mode)}")
    if declared.ttl_ticks is not None and (
        found.ttl_ticks is None or declared.ttl_ticks < found.ttl_ticks
    ):
        lives = "for ever" if found.ttl_ticks is None else f"for {shown_span(found.ttl_ticks)}"
        differences.append(f"its messages live {lives}, not {shown_span(declared.ttl_ticks)}")
    if found.dead_letter and not declared.dead_letter:
        differences.append("it keeps dead letters, which the declaration does not")
    elif found.dead_letter and declared.dead_letter_queue != found.dead_letter_queue:
        differences.append(f"its dead-letter queue is {found.dead_letter_queue or 'not named'}")
    if declared.overflow == Strategy.REDIRECT_TO_DLQ != found.overflow and not found.dead_letter:
        differences.append("it keeps no dead letters, to which the overflow is to go")
    return differences


def must_replace(declared: Declaration, found: QueueInfo) -> bool:
    """Whether the queue is to be deleted and created anew. Raises ClientError if it is to be left,
    and is not as declared."""
    differences = conflicts(declared.options.written, found.written)
    if not differences or declared.conflict is Conflict.IGNORE:
        return False
    if declared.conflict is Conflict.FAIL:
        raise ClientError(f"{declared.queue} is not as declared: {', '.join(differences)}")
    return True


# --- users ---------------------------------------------------------------------------------------


def administer(kind: int, identity: str, **fields: str | list[str]) -> Frame:
    """One of wire.ADMIN, with its fields under their names in the protocol."""
    return Frame(kind, identity, payload=msgspec.json.encode(fields) if fields else b"")


def read_users(answer: Frame) -> list[User]:
    """The answer to LIST_USERS. Raises ConnectionLost."""
    try:
        return [
            User(str(each["username"]), bool(each["isSuperuser"]), int(each["createdAt"]))
            for each in _list(answer)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(f"its list of users cannot be read: {error}") from None


def read_grants(answer: Frame) -> list[Grant]:
    """The answer to GET_USER_PERMISSIONS. Raises ConnectionLost."""
    try:
        return [
            Grant(str(each["queuePattern"]), tuple(map(str, _strings(each["operations"]))))
            for each in _list(answer)
        ]
    except (KeyError, TypeError) as error:
        raise _broken(f"its list of permissions cannot be read: {error}") from None


def _strings(value: object) -> Iterable[object]:
    if not isinstance(value, list):
        raise TypeError("operations are a list")
    return value


def _list(answer: Frame) -> list[Any]:
    value = _read(answer)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _broken("a list was expected")
    return value


def _read(answer: Frame) -> Any:
    try:
        return msgspec.json.decode(answer.payload) if answer.payload else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _broken(f"its answer is not JSON: {error}") from None


def _broken(how: str) -> ConnectionLost:
    return ConnectionLost(f"the broker broke the protocol: {how}")
