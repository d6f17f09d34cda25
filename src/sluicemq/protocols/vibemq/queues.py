"""Mapping of VibeMQ queues to destinations.

| mode                  | destination                                                       |
|-----------------------|-------------------------------------------------------------------|
| 0 RoundRobin          | queue without priorities                                          |
| 1 FanOutWithAck       | topic that keeps messages while no VibeMQ client subscribes       |
| 2 FanOutWithoutAck    | the same; deliveries are acknowledged once sent                   |
| 3 PriorityBased       | queue with priorities                                             |

A VibeMQ name denotes the queue of that name, or else the topic: the broker has separate namespaces
for queues and topics, VibeMQ has one.

Options of CreateQueue are read from its JSON payload, as .NET clients send them, and from its
headers, as the protocol page has them; the payload takes precedence. Numbers may be written as
text, modes and strategies as number or name, in any letter case. Values that the original broker
accepts but ignores are accepted here too, and QueueInfo returns them as they were written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from sluicemq.broker import Broker, Destination
from sluicemq.model.destination import (
    Address,
    CreatedBy,
    DestinationSettings,
    Kind,
    Overflow,
    Provenance,
    is_temporary,
)
from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.vibemq.mapping import is_queue_name, read_address
from sluicemq.protocols.vibemq.wire import NO_LIMIT

ChoiceT = TypeVar("ChoiceT", bound=IntEnum)


class Mode(IntEnum):
    """Delivery mode of a queue."""

    ROUND_ROBIN = 0
    FAN_OUT_WITH_ACK = 1
    FAN_OUT_WITHOUT_ACK = 2
    PRIORITY_BASED = 3


class Strategy(IntEnum):
    """Overflow strategy: the handling of a message for which the queue has no room."""

    DROP_OLDEST = 0
    DROP_NEWEST = 1
    BLOCK_PUBLISHER = 2
    REDIRECT_TO_DLQ = 3


_OVERFLOW: Final = {
    Strategy.DROP_OLDEST: Overflow.DROP_OLDEST,
    Strategy.DROP_NEWEST: Overflow.REJECT,
    Strategy.BLOCK_PUBLISHER: Overflow.BLOCK,
    Strategy.REDIRECT_TO_DLQ: Overflow.DEAD_LETTER,
}
STRATEGIES: Final = {overflow: strategy for strategy, overflow in _OVERFLOW.items()} | {
    Overflow.DROP_LOWEST: Strategy.DROP_OLDEST
}

_MODES: Final = frozenset(mode.value for mode in Mode)
_STRATEGY_NUMBERS: Final = frozenset(strategy.value for strategy in Strategy)
_SPAN: Final = re.compile(
    r"(-)?(?:(\d{1,8})\.)?(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,7}))?)?\Z", re.A
)
_INTEGER: Final = re.compile(r"-?\d{1,18}\Z", re.A)
TICKS_PER_MS: Final = 10_000
"""A tick is 100 ns, the unit of .NET's time spans."""
MOST_TICKS: Final = 2**63 - 1
LEAST_TICKS: Final = -(2**63)
MOST_NAME: Final = 1024
"""Maximum length of a dead-letter queue's name, in bytes."""
MOST_ODD_NAME: Final = 4096
"""Maximum length of an unusable dead-letter queue name that QueueInfo returns, in characters."""


class QueueOptions(NamedTuple):
    """Options of CreateQueue, with the original broker's defaults.

    max_queue_size        ready messages, 1 to NO_LIMIT
    message_ttl           ms; 0 = none
    dead_letter_queue     queue name; "" means <queue>.dlq
    max_retry_attempts    deliveries in total, 1 to NO_LIMIT
    """

    mode: Mode = Mode.ROUND_ROBIN
    max_queue_size: int = 10_000
    message_ttl: int = 0
    dead_letter: bool = False
    dead_letter_queue: str = ""
    overflow: Strategy = Strategy.DROP_OLDEST
    max_retry_attempts: int = 3

    @classmethod
    def of(cls, destination: Destination) -> QueueOptions:
        """Return the options that the broker enforces for this destination."""
        settings = destination.settings
        if destination.topic:
            mode = Mode.FAN_OUT_WITHOUT_ACK if settings.auto_ack else Mode.FAN_OUT_WITH_ACK
        else:
            mode = Mode.PRIORITY_BASED if settings.priority_ordering else Mode.ROUND_ROBIN
        return cls(
            mode,
            min(settings.max_messages or NO_LIMIT, NO_LIMIT),
            settings.message_ttl,
            settings.dead_letter,
            settings.dead_letter_queue,
            STRATEGIES[settings.overflow],
            min(settings.max_attempts or NO_LIMIT, NO_LIMIT),
        )

    @property
    def written(self) -> WrittenOptions:
        """Options as a .NET client writes them: all that are not null."""
        return WrittenOptions(
            self.mode.value,
            self.max_queue_size,
            self.message_ttl * TICKS_PER_MS or None,
            self.dead_letter,
            self.dead_letter_queue or None,
            self.overflow.value,
            self.max_retry_attempts,
        )

    @property
    def kind(self) -> Kind:
        """Kind of the destination: queue or topic."""
        fan_out = self.mode in (Mode.FAN_OUT_WITH_ACK, Mode.FAN_OUT_WITHOUT_ACK)
        return Kind.TOPIC if fan_out else Kind.QUEUE

    @property
    def settings(self) -> DestinationSettings:
        """The settings of the destination."""
        return DestinationSettings(
            max_messages=0 if self.max_queue_size == NO_LIMIT else self.max_queue_size,
            overflow=_OVERFLOW[self.overflow],
            message_ttl=self.message_ttl,
            max_attempts=0 if self.max_retry_attempts == NO_LIMIT else self.max_retry_attempts,
            dead_letter=self.dead_letter,
            dead_letter_queue=self.dead_letter_queue,
            retain_without_subscriptions=self.kind is Kind.TOPIC,
            priority_ordering=self.mode is Mode.PRIORITY_BASED,
            auto_ack=self.mode is Mode.FAN_OUT_WITHOUT_ACK,
        )


class WrittenOptions(NamedTuple):
    """Options as the client wrote them; None = not written.

    Any value of the type is possible: the original broker stores and returns values that it cannot
    use.

    mode, overflow      numbers of Mode and Strategy, or others
    ttl_ticks           100 ns; 0 and less = none
    dead_letter_queue   any text of up to MOST_ODD_NAME characters
    """

    mode: int | None = None
    max_queue_size: int | None = None
    ttl_ticks: int | None = None
    dead_letter: bool | None = None
    dead_letter_queue: str | None = None
    overflow: int | None = None
    max_retry_attempts: int | None = None

    @classmethod
    def of(cls, destination: Destination) -> WrittenOptions:
        """Return the options that QueueInfo reports for this destination.

        Options that were set explicitly are as they were written; the rest are the original
        broker's defaults.
        """
        provenance = destination.provenance
        enforced = QueueOptions.of(destination).written._asdict()
        odd = dict(provenance.as_written)
        reported = QueueOptions().written._asdict()
        for name, setting in SETTINGS.items():
            if setting in odd:
                reported[name] = odd[setting]
            elif setting in provenance.explicit:
                reported[name] = enforced[name]
        if destination.topic:
            reported["mode"] = enforced["mode"]
        return cls(**reported)

    def options(self, defaults: QueueOptions | None = None) -> QueueOptions:
        """Return the effective options.

        Options that were not written are taken from `defaults` (None = the original broker's). A
        size or number of attempts below 1 becomes 1, a time below 1 ms 1 ms, an unknown mode
        RoundRobin, an unknown strategy DropNewest, and an invalid queue name none.
        """
        given = {
            effective: read(value)
            for (effective, read), value in zip(_EFFECTIVE, self, strict=True)
            if value is not None
        }
        return (defaults or QueueOptions())._replace(**given)

    def provenance(self, created_ticks: int = 0) -> Provenance:
        """Return the provenance to store for a queue that was created with these options."""
        meant = self.options().written._asdict()
        given = {name: value for name, value in self._asdict().items() if value is not None}
        explicit = [SETTINGS[name] for name in given]
        odd = [(SETTINGS[name], given[name]) for name in given if given[name] != meant[name]]
        return Provenance(CreatedBy.VIBEMQ, frozenset(explicit), tuple(odd), created_ticks)


def _at_least_1(number: int) -> int:
    return max(1, number)


_EFFECTIVE: Final[tuple[tuple[str, Callable[[Any], Any]], ...]] = (
    ("mode", lambda mode: Mode(mode) if mode in _MODES else Mode.ROUND_ROBIN),
    ("max_queue_size", _at_least_1),
    ("message_ttl", lambda ticks: max(0, -(-ticks // TICKS_PER_MS))),
    ("dead_letter", bool),
    ("dead_letter_queue", lambda name: name if can_be_queue(name) else ""),
    (
        "overflow",
        lambda number: Strategy(number) if number in _STRATEGY_NUMBERS else Strategy.DROP_NEWEST,
    ),
    ("max_retry_attempts", _at_least_1),
)
"""For each written option: the name of the effective one, and its value for the written one."""

SETTINGS: Final = {
    "mode": "priority_ordering",
    "max_queue_size": "max_messages",
    "ttl_ticks": "message_ttl",
    "dead_letter": "dead_letter",
    "dead_letter_queue": "dead_letter_queue",
    "overflow": "overflow",
    "max_retry_attempts": "max_attempts",
}
"""Setting of the destination for each option."""


def can_be_queue(name: str) -> bool:
    """Return whether a dead-letter queue may have this name: a valid name in any protocol."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= MOST_NAME and name.isprintable() and not is_temporary(name)


# --- names ---------------------------------------------------------------------------------------


def find(broker: Broker, name: str) -> Destination | None:
    """Return the destination of this name, or None. A dead-letter queue exists as soon as a queue
    has it.

    Temporary destinations of other protocols' clients are not returned: VibeMQ clients can only
    publish replies to them (`find_answered`).
    """
    queue = Address(Kind.QUEUE, name)
    found = broker.destinations.find(queue) or broker.destinations.find_dead_letter_queue(queue)
    if found is None or found.temporary:
        found = broker.destinations.find(Address(Kind.TOPIC, name))
    return None if found is None or found.temporary else found


def find_answered(broker: Broker, name: str) -> Destination | None:
    """Return the destination that a replyTo header names, of any name or a topic, or None."""
    return broker.destinations.find(read_address(name))


def names(broker: Broker) -> list[str]:
    """Return the names of all destinations that VibeMQ clients can name, oldest first.

    Temporary destinations are left out.
    """
    found = [
        destination for destination in broker.destinations.values() if not destination.temporary
    ]
    found.sort(key=lambda destination: destination.created)
    listed = dict.fromkeys(destination.name for destination in found)
    listed.update(dict.fromkeys(queue.name for queue in broker.destinations.dead_letter_queues()))
    return list(filter(is_queue_name, listed))


def address(name: str, options: QueueOptions) -> Address:
    """Return the address of a queue with these options."""
    return Address(options.kind, name)


def listed(found: Iterable[str]) -> bytes:
    """Return the JSON payload of ListQueues."""
    return msgspec.json.encode(list(found))


# --- options of CreateQueue ----------------------------------------------------------------------


def read_options(payload: bytes, headers: Mapping[str, str]) -> QueueOptions:
    """Return the effective options of a CreateQueue request.

    Raises ProtocolError with the name of the option that cannot be read.
    """
    return read_written(payload, headers).options()


def origin_of(options: bytes, created: str) -> tuple[Provenance, int]:
    """Return the provenance and the creation time of a queue that a VibeMQ server has stored.

    The time is in ms since the epoch, 0 = not known.

    options  its JSON, as in the payload of CreateQueue
    created  ISO 8601 in UTC, with up to 7 digits after the second

    Raises ProtocolError, as `read_options`.
    """
    ms, ticks = read_creation(created) or (0, 0)
    return read_written(options, {}).provenance(ticks), ms


def read_written(payload: bytes, headers: Mapping[str, str]) -> WrittenOptions:
    """Return the options as they were written. Raises ProtocolError, as `read_options`."""
    given: dict[str, object] = dict(headers)
    if payload:
        try:
            decoded = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"the options are not JSON: {error}") from None
        if decoded is not None:
            if not isinstance(decoded, dict):
                raise ProtocolError("the options of a queue are a JSON object")
            given.update((key, value) for key, value in decoded.items() if value is not None)
            if "mode" not in decoded and "deliveryMode" in decoded:
                given["mode"] = decoded["deliveryMode"]
    if "mode" not in given and "deliveryMode" in given:
        given["mode"] = given["deliveryMode"]
    written = WrittenOptions(
        _choice("mode", given, Mode),
        _number("maxQueueSize", given),
        _span("messageTtl", given),
        _truth("enableDeadLetterQueue", given),
        _odd_name("deadLetterQueueName", given),
        _choice("overflowStrategy", given, Strategy),
        _number("maxRetryAttempts", given),
    )
    name = written.dead_letter_queue
    if written.dead_letter and name and not can_be_queue(name):
        raise _unreadable("deadLetterQueueName", name)
    return written


def _unreadable(name: str, value: object) -> ProtocolError:
    text = str(value)
    return ProtocolError(f"{name}: {text[:80]!r} is no possible value")


def _choice(name: str, given: Mapping[str, object], choices: type[ChoiceT]) -> int | None:
    """Return the number of a choice given by number or name. Unknown numbers are accepted."""
    value = given.get(name)
    if isinstance(value, str):
        text = value.strip().lower()
        for choice in choices:
            if text == spelled(choice).lower():
                return choice.value
    return _number(name, given)


def _number(name: str, given: Mapping[str, object]) -> int | None:
    """Return a 32-bit number, or None if it is not given."""
    value = given.get(name)
    if isinstance(value, str) and _INTEGER.match(value.strip()):
        value = int(value)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not -NO_LIMIT - 1 <= value <= NO_LIMIT
    ):
        raise _unreadable(name, value)
    return value


def _truth(name: str, given: Mapping[str, object]) -> bool | None:
    value = given.get(name)
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if value is not None and not isinstance(value, bool):
        raise _unreadable(name, value)
    return value


def _odd_name(name: str, given: Mapping[str, object]) -> str | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MOST_ODD_NAME:
        raise _unreadable(name, value)
    return value


def _span(name: str, given: Mapping[str, object]) -> int | None:
    """Return a time in ticks of 100 ns, from a number of ms or a time span."""
    value = given.get(name)
    if value is None:
        return None
    ticks = None
    if isinstance(value, str):
        text = value.strip()
        ticks = read_span(text)
        if ticks is None and _INTEGER.match(text):
            ticks = int(text) * TICKS_PER_MS
    elif isinstance(value, int) and not isinstance(value, bool):
        ticks = value * TICKS_PER_MS
    if ticks is None or not LEAST_TICKS <= ticks <= MOST_TICKS:
        raise _unreadable(name, value)
    return ticks


def read_span(text: str) -> int | None:
    """Return `[-][d.]hh:mm[:ss[.fffffff]]` in ticks of 100 ns, or None if it is no time span."""
    found = _SPAN.match(text)
    if found is None:
        return None
    sign, days, hours, minutes, seconds, fraction = found.groups("0")
    if int(hours) > 23 or int(minutes) > 59 or int(seconds) > 59:
        return None
    whole = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    ticks = whole * 1000 * TICKS_PER_MS + int(fraction.ljust(7, "0"))
    return -ticks if sign == "-" else ticks


# --- QueueInfo -----------------------------------------------------------------------------------


def info(destination: Destination, by_name: bool) -> bytes:
    """Return the JSON payload of QueueInfo.

    `by_name` selects mode names, as the protocol page writes them; the .NET client needs numbers.

    Options that were set explicitly are reported as they were written, the rest with the original
    broker's defaults, because a .NET client compares them with its declarations. The options that
    the broker enforces are in the `effective` keys, which the .NET client ignores.
    """
    reported = WrittenOptions.of(destination)
    enforced = QueueOptions.of(destination)
    mode = reported.mode
    dead_letters = enforced.dead_letter_queue or f"{destination.name}.dlq"
    ttl = enforced.message_ttl * TICKS_PER_MS
    fields: dict[str, object] = {
        "name": destination.name,
        "messageCount": min(destination.waiting, NO_LIMIT),
        "subscriberCount": destination.consumers,
        "deliveryMode": mode_name(mode) if by_name and mode in _MODES else mode,
        "maxSize": reported.max_queue_size,
        "createdAt": _creation_text(destination),
        "messageTtl": None if reported.ttl_ticks is None else format_span(reported.ttl_ticks),
        "enableDeadLetterQueue": reported.dead_letter,
        "deadLetterQueueName": reported.dead_letter_queue,
        "overflowStrategy": reported.overflow,
        "maxRetryAttempts": reported.max_retry_attempts,
        "unackedCount": min(destination.unacked, NO_LIMIT),
        "createdBy": destination.provenance.created_by.value,
        "effectiveMode": enforced.mode.value,
        "effectiveMaxSize": enforced.max_queue_size,
        "effectiveMessageTtl": format_span(ttl) if ttl else None,
        "effectiveDeadLetterQueueName": dead_letters if enforced.dead_letter else None,
        "effectiveOverflowStrategy": enforced.overflow.value,
        "effectiveMaxRetryAttempts": enforced.max_retry_attempts,
    }
    return msgspec.json.encode({key: value for key, value in fields.items() if value is not None})


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _creation_text(destination: Destination) -> str:
    """Return the creation time in ISO 8601, with as many digits as are known."""
    whole, ms = divmod(destination.created, 1000)
    reported = (_EPOCH + timedelta(seconds=whole)).strftime("%Y-%m-%dT%H:%M:%S")
    ticks = destination.provenance.created_ticks
    return f"{reported}.{ms:03}{ticks:04}Z" if ticks else f"{reported}.{ms:03}Z"


_INSTANT: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.(\d{1,7}))?(?:Z|\+00:00)?\Z", re.A
)


def read_creation(text: str) -> tuple[int, int] | None:
    """Return the time at which the original broker created a queue, or None.

    The result is in ms since the epoch and ticks of 100 ns beyond them. It is None if the text is
    not ISO 8601 in UTC or the time is before the epoch.
    """
    found = _INSTANT.match(text)
    if found is None:
        return None
    try:
        seconds = (datetime.fromisoformat(text[:19] + "Z") - _EPOCH) // timedelta(seconds=1)
    except ValueError:
        return None
    fraction = int((found.group(1) or "").ljust(7, "0"))
    ms, ticks = divmod(fraction, TICKS_PER_MS)
    return (seconds * 1000 + ms, ticks) if seconds > 0 else None


def mode_name(mode: int | None) -> str:
    """Return the name of a mode, or the number of an unknown one."""
    return spelled(Mode(mode)) if mode in _MODES else str(mode)


def ignored(existing: Destination, written: WrittenOptions) -> str:
    """Return the written options that differ from those of an existing queue, as text for a log.

    Example: "mode='1' instead of '0'"; "" if there are none.
    """
    reported = WrittenOptions.of(existing)._asdict()
    return ", ".join(
        f"{name}={str(value)[:80]!r} instead of {str(reported[name])[:80]!r}"
        for name, value in written._asdict().items()
        if value is not None and value != reported[name]
    )


def spelled(choice: IntEnum) -> str:
    """Return the name as the protocol writes it: RoundRobin."""
    return "".join(word.capitalize() for word in choice.name.split("_"))


def format_span(ticks: int) -> str:
    """Return ticks of 100 ns as `[-][d.]hh:mm:ss[.fffffff]`."""
    seconds, fraction = divmod(abs(ticks), 1000 * TICKS_PER_MS)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    before = "-" if ticks < 0 else ""
    if days:
        before += f"{days}."
    behind = f".{fraction:07}" if fraction else ""
    return f"{before}{hour:02}:{minute:02}:{second:02}{behind}"
