"""What VibeMQ calls a queue, and the destination it is here.

| mode                  | destination                                                       |
|-----------------------|-------------------------------------------------------------------|
| 0 RoundRobin          | queue without priorities                                          |
| 1 FanOutWithAck       | topic that holds messages while no VibeMQ client subscribes       |
| 2 FanOutWithoutAck    | the same; what has been sent is settled                           |
| 3 PriorityBased       | queue with priorities                                             |

A VibeMQ name stands for the queue of that name, or else for the topic; the broker's queues and
topics have separate names, VibeMQ's have not.

Options of CreateQueue are read from its JSON payload, as .NET clients send them, and from its
headers, as the protocol page has them; what stands in both is taken from the payload. Numbers may
be written as text, modes and strategies as number or name, in any letter case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

import msgspec

from sluicemq.broker import Broker, Destination
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.vibemq.mapping import is_queue_name, read_address

ChoiceT = TypeVar("ChoiceT", bound=IntEnum)

NO_LIMIT: Final = 2**31 - 1
"""The largest number a .NET client reads; here it means that there is no limit."""


class Mode(IntEnum):
    """Who gets a message."""

    ROUND_ROBIN = 0
    FAN_OUT_WITH_ACK = 1
    FAN_OUT_WITHOUT_ACK = 2
    PRIORITY_BASED = 3


class Strategy(IntEnum):
    """What happens to a message for which there is no room."""

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

_SPAN: Final = re.compile(r"(?:(\d{1,8})\.)?(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,7}))?\Z", re.A)
_DIGITS: Final = re.compile(r"\d{1,18}\Z", re.A)
_MOST_MILLISECONDS: Final = 922_337_203_685_477
"""The longest time span of .NET."""


class Options(NamedTuple):
    """What CreateQueue can say; the defaults are the original's.

    max_queue_size        messages waiting, 1 to NO_LIMIT
    message_ttl           ms; 0 = none
    dead_letter_queue     its name; "" means <queue>.dlq
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
    def of(cls, destination: Destination) -> Options:
        """What CreateQueue would have to say for this destination."""
        settings = destination.settings
        if destination.topic:
            mode = Mode.FAN_OUT_WITHOUT_ACK if settings.settle_on_send else Mode.FAN_OUT_WITH_ACK
        else:
            mode = Mode.PRIORITY_BASED if settings.by_priority else Mode.ROUND_ROBIN
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
    def kind(self) -> Kind:
        """What it is to be here."""
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
            hold=self.kind is Kind.TOPIC,
            by_priority=self.mode is Mode.PRIORITY_BASED,
            settle_on_send=self.mode is Mode.FAN_OUT_WITHOUT_ACK,
        )


# --- names ---------------------------------------------------------------------------------------


def find(broker: Broker, name: str) -> Destination | None:
    """Return the destination that the name stands for, if it exists. A dead-letter queue exists as
    soon as there is a queue that has it.

    Temporary ones of clients of other protocols are not looked at or subscribed to: they can only
    be answered (`find_answered`).
    """
    queue = Address(Kind.QUEUE, name)
    found = broker.find(queue) or broker.find_dead_letter_queue(queue)
    if found is None or found.temporary:
        found = broker.find(Address(Kind.TOPIC, name))
    return None if found is None or found.temporary else found


def find_answered(broker: Broker, name: str) -> Destination | None:
    """The destination that a replyTo header names, if it exists: of whatever name, or a topic."""
    return broker.find(read_address(name))


def names(broker: Broker) -> list[str]:
    """Everything that a VibeMQ client can name and that is nobody's own, oldest first."""
    found = [each for each in broker.destinations.values() if not each.temporary]
    found.sort(key=lambda destination: destination.created)
    listed = dict.fromkeys(each.name for each in found)
    listed.update(dict.fromkeys(queue.name for queue in broker.core.dead_letter_queues))
    return list(filter(is_queue_name, listed))


def address(name: str, options: Options) -> Address:
    """Which destination a queue of these options is."""
    return Address(options.kind, name)


def listed(found: Iterable[str]) -> bytes:
    """The JSON payload of ListQueues."""
    return msgspec.json.encode(list(found))


# --- options of CreateQueue ----------------------------------------------------------------------


def read_options(
    payload: bytes, headers: Mapping[str, str], usual: Options | None = None
) -> Options:
    """Return the options of a queue; what is not given is as in `usual`, None = the original's.
    Raises ProtocolError, which names the option that cannot be read."""
    given: dict[str, object] = dict(headers)
    if payload:
        try:
            said = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"the options are not JSON: {error}") from None
        if said is not None:
            if not isinstance(said, dict):
                raise ProtocolError("the options of a queue are a JSON object")
            given.update((key, value) for key, value in said.items() if value is not None)
            if "mode" not in said and "deliveryMode" in said:
                given["mode"] = said["deliveryMode"]
    usual = Options() if usual is None else usual
    mode = given.get("mode", given.get("deliveryMode"))
    dead_letter_queue = given.get("deadLetterQueueName", usual.dead_letter_queue)
    if dead_letter_queue and not (
        isinstance(dead_letter_queue, str) and is_queue_name(dead_letter_queue)
    ):
        raise _unreadable("deadLetterQueueName", dead_letter_queue)
    return Options(
        usual.mode if mode is None else _choice("mode", mode, Mode),
        _number("maxQueueSize", given, usual.max_queue_size, 1),
        _span("messageTtl", given.get("messageTtl", usual.message_ttl)),
        _truth("enableDeadLetterQueue", given.get("enableDeadLetterQueue", usual.dead_letter)),
        str(dead_letter_queue),
        _choice("overflowStrategy", given.get("overflowStrategy", usual.overflow), Strategy),
        # 0 is as good as 1 to the original: it delivers before it asks
        max(1, _number("maxRetryAttempts", given, usual.max_retry_attempts, 0)),
    )


def _unreadable(name: str, value: object) -> ProtocolError:
    shown = str(value)
    return ProtocolError(f"{name}: {shown[:80]!r} is no possible value")


def _choice(name: str, value: object, choices: type[ChoiceT]) -> ChoiceT:
    text = str(value).strip().lower()
    if not isinstance(value, bool):
        for choice in choices:
            if text in (spelled(choice).lower(), str(choice.value)):
                return choice
    raise _unreadable(name, value)


def _number(name: str, given: Mapping[str, object], usual: int, least: int) -> int:
    value = given.get(name, usual)
    if isinstance(value, str) and _DIGITS.match(value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= NO_LIMIT:
        raise _unreadable(name, value)
    return value


def _truth(name: str, value: object) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise _unreadable(name, value)
    return value


def _span(name: str, value: object) -> int:
    """ms; a part of one counts as a whole. Numbers are ms, text is that or a time span."""
    if isinstance(value, str):
        text = value.strip()
        if found := _SPAN.match(text):
            days, hours, minutes, seconds, fraction = found.groups("0")
            if int(hours) > 23 or int(minutes) > 59 or int(seconds) > 59:
                raise _unreadable(name, value)
            whole = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
            value = whole * 1000 - -int(fraction.ljust(7, "0")) // 10_000
        elif _DIGITS.match(text):
            value = int(text)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unreadable(name, value)
    if not 0 <= value <= _MOST_MILLISECONDS:
        raise _unreadable(name, value)
    return value


# --- QueueInfo -----------------------------------------------------------------------------------


def info(destination: Destination, by_name: bool) -> bytes:
    """The JSON payload of QueueInfo. `by_name`: modes as the protocol page writes them, not as the
    number without which the .NET client cannot read it."""
    options = Options.of(destination)
    fields: dict[str, object] = {
        "name": destination.name,
        "messageCount": min(destination.waiting, NO_LIMIT),
        "subscriberCount": destination.consumers,
        "deliveryMode": spelled(options.mode) if by_name else options.mode.value,
        "maxSize": options.max_queue_size,
        "createdAt": datetime.fromtimestamp(destination.created / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z"),
        "enableDeadLetterQueue": options.dead_letter,
        "overflowStrategy": options.overflow.value,
        "maxRetryAttempts": options.max_retry_attempts,
        "unackedCount": min(destination.unacked, NO_LIMIT),
    }
    if options.message_ttl:
        fields["messageTtl"] = shown_span(options.message_ttl)
    if options.dead_letter_queue:
        fields["deadLetterQueueName"] = options.dead_letter_queue
    return msgspec.json.encode(fields)


def spelled(choice: IntEnum) -> str:
    """Its name as the protocol writes it: RoundRobin."""
    return "".join(word.capitalize() for word in choice.name.split("_"))


def shown_span(milliseconds: int) -> str:
    """`[d.]hh:mm:ss[.fffffff]`"""
    seconds, fraction = divmod(milliseconds, 1000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    before = f"{days}." if days else ""
    behind = f".{fraction:03}0000" if fraction else ""
    return f"{before}{hour:02}:{minute:02}:{second:02}{behind}"
