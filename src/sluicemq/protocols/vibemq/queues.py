"""VibeMQ queues as destinations: their options, their creation, QueueInfo.

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

Each setting of a new queue is taken from the first of these that sets it:

    option of CreateQueue  >  option of the listener  >  [broker.default_destination]  >  VibeMQ's

A queue created on first use has no options of CreateQueue. As on the original broker it is not
deleted when idle, unless `broker.default_destination.idle_timeout` is set, and it exists again
after a restart.

The dead-letter queue of a new queue, if it has one, is created with it; both count against the
quota of the creator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

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
from sluicemq.protocols.vibemq.mapping import is_encodable, is_queue_name
from sluicemq.protocols.vibemq.wire import NO_LIMIT


class Mode(IntEnum):
    """Delivery mode of a queue."""

    ROUND_ROBIN = 0
    FAN_OUT_WITH_ACK = 1
    FAN_OUT_WITHOUT_ACK = 2
    PRIORITY_BASED = 3


class Strategy(IntEnum):
    """Overflow strategy: the handling of a message for which the queue has no capacity."""

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
_STRATEGIES: Final = {overflow: strategy for strategy, overflow in _OVERFLOW.items()} | {
    Overflow.DROP_LOWEST: Strategy.DROP_OLDEST
}
_MODE_NUMBERS: Final = {mode.value: mode for mode in Mode}
_STRATEGY_NUMBERS: Final = {strategy.value: strategy for strategy in Strategy}
_SPAN: Final = re.compile(
    r"(-)?(?:(\d{1,8})\.)?(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,7}))?)?\Z", re.A
)
_INTEGER: Final = re.compile(r"-?\d{1,18}\Z", re.A)
TICKS_PER_MS: Final = 10_000
"""A tick is 100 ns, the unit of .NET's time spans."""
MAX_TICKS: Final = 2**63 - 1
MIN_TICKS: Final = -(2**63)
MAX_NAME: Final = 1024
"""Maximum length of a dead-letter queue's name, in bytes."""
MAX_UNUSABLE_NAME: Final = 4096
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
    def of(cls, settings: DestinationSettings, *, topic: bool = False) -> QueueOptions:
        """Return the options that the broker enforces for a destination with these settings."""
        if topic:
            mode = Mode.FAN_OUT_WITHOUT_ACK if settings.auto_ack else Mode.FAN_OUT_WITH_ACK
        else:
            mode = Mode.PRIORITY_BASED if settings.priority_ordering else Mode.ROUND_ROBIN
        return cls(
            mode,
            min(settings.max_messages or NO_LIMIT, NO_LIMIT),
            settings.message_ttl,
            settings.dead_letter,
            settings.dead_letter_queue,
            _STRATEGIES[settings.overflow],
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
        """Settings of a destination with these options, and otherwise the broker's defaults."""
        return self.apply_to(DestinationSettings())

    def apply_to(self, settings: DestinationSettings) -> DestinationSettings:
        """Return the settings with these options in place of their own.

        An overflow policy that this strategy stands for stays.
        """
        keeps_policy = _STRATEGIES[settings.overflow] is self.overflow
        return replace(
            settings,
            max_messages=0 if self.max_queue_size == NO_LIMIT else self.max_queue_size,
            overflow=settings.overflow if keeps_policy else _OVERFLOW[self.overflow],
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
    dead_letter_queue   any text of up to MAX_UNUSABLE_NAME characters
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
        enforced = QueueOptions.of(destination.settings, topic=destination.topic).written._asdict()
        as_written = dict(provenance.as_written)
        reported = QueueOptions().written._asdict()
        for name, option in OPTIONS.items():
            if option.setting in as_written:
                reported[name] = as_written[option.setting]
            elif option.setting in provenance.explicit:
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
        values = {
            option.effective: option.use(value)
            for option, value in zip(OPTIONS.values(), self, strict=True)
            if value is not None
        }
        return (defaults or QueueOptions())._replace(**values)

    def provenance(self, created_ticks: int = 0) -> Provenance:
        """Return the provenance to store for a queue that was created with these options."""
        effective = self.options().written._asdict()
        values = {name: value for name, value in self._asdict().items() if value is not None}
        explicit = [OPTIONS[name].setting for name in values]
        as_written = [
            (OPTIONS[name].setting, values[name])
            for name in values
            if values[name] != effective[name]
        ]
        return Provenance(CreatedBy.VIBEMQ, frozenset(explicit), tuple(as_written), created_ticks)


# --- options of CreateQueue ----------------------------------------------------------------------


def read_written(payload: bytes, headers: Mapping[str, object]) -> WrittenOptions:
    """Return the options of a CreateQueue request as they were written.

    Raises ProtocolError with the name of the option that cannot be read.
    """
    try:
        decoded: object = msgspec.json.decode(payload) if payload else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the options are not JSON: {error}") from None
    if decoded is not None and not isinstance(decoded, dict):
        raise ProtocolError("the options of a queue must be a JSON object")
    request_values: dict[str, object] = {}
    for source in (headers, decoded or {}):
        request_values |= {key: value for key, value in source.items() if value is not None}
        if source.get("mode") is None and "deliveryMode" in source:
            request_values["mode"] = source["deliveryMode"]
    values: dict[str, Any] = {}
    for name, option in OPTIONS.items():
        value = request_values.get(option.key)
        if value is not None:
            values[name] = option.read(value)
            if values[name] is None:
                raise _unreadable(option.key, value)
    written = WrittenOptions(**values)
    dlq = written.dead_letter_queue
    if written.dead_letter and dlq and not can_be_queue(dlq):
        raise _unreadable(OPTIONS["dead_letter_queue"].key, dlq)
    return written


def _unreadable(key: str, value: object) -> ProtocolError:
    text = str(value)
    return ProtocolError(f"{key}: {text[:80]!r} is not a valid value")


def _integer(value: object) -> int | None:
    """Return a whole number, also one in text."""
    if isinstance(value, str) and _INTEGER.match(value.strip()):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> int | None:
    """Return a 32-bit number."""
    number = _integer(value)
    return number if number is not None and -NO_LIMIT - 1 <= number <= NO_LIMIT else None


def _choice(choices: type[IntEnum], value: object) -> int | None:
    """Return the number of a choice given by number or name. Unknown numbers are accepted."""
    by_name = {protocol_name(choice).lower(): choice.value for choice in choices}
    number = by_name.get(value.strip().lower()) if isinstance(value, str) else None
    return _number(value) if number is None else number


def _boolean(value: object) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def _limited_name(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= MAX_UNUSABLE_NAME else None


def _ticks(value: object) -> int | None:
    """Return a time in ticks of 100 ns, from a number of ms or a time span."""
    ticks = read_span(value.strip()) if isinstance(value, str) else None
    if ticks is None and (ms := _integer(value)) is not None:
        ticks = ms * TICKS_PER_MS
    return ticks if ticks is not None and MIN_TICKS <= ticks <= MAX_TICKS else None


def read_span(text: str) -> int | None:
    """Return `[-][d.]hh:mm[:ss[.fffffff]]` in ticks of 100 ns, or None if it is no time span."""
    match = _SPAN.match(text)
    if match is None:
        return None
    sign, days, hours, minutes, seconds, fraction = match.groups("0")
    if int(hours) > 23 or int(minutes) > 59 or int(seconds) > 59:
        return None
    total_seconds = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    ticks = total_seconds * 1000 * TICKS_PER_MS + int(fraction.ljust(7, "0"))
    return -ticks if sign == "-" else ticks


def can_be_queue(name: str) -> bool:
    """Return whether a dead-letter queue may have this name: a valid name in any protocol."""
    return is_encodable(name, MAX_NAME) and name.isprintable() and not is_temporary(name)


class _Option(NamedTuple):
    """Option of CreateQueue.

    key        name in the request
    setting    setting of the destination
    effective  name in `QueueOptions`
    read       returns the written value of a JSON value or a header; None if it is not possible
    use        returns the effective value of a written one
    """

    key: str
    setting: str
    effective: str
    read: Callable[[object], Any]
    use: Callable[[Any], Any]


OPTIONS: Final = {
    "mode": _Option(
        "mode",
        "priority_ordering",
        "mode",
        partial(_choice, Mode),
        lambda mode: _MODE_NUMBERS.get(mode, Mode.ROUND_ROBIN),
    ),
    "max_queue_size": _Option(
        "maxQueueSize", "max_messages", "max_queue_size", _number, partial(max, 1)
    ),
    "ttl_ticks": _Option(
        "messageTtl",
        "message_ttl",
        "message_ttl",
        _ticks,
        lambda ticks: max(0, -(-ticks // TICKS_PER_MS)),
    ),
    "dead_letter": _Option("enableDeadLetterQueue", "dead_letter", "dead_letter", _boolean, bool),
    "dead_letter_queue": _Option(
        "deadLetterQueueName",
        "dead_letter_queue",
        "dead_letter_queue",
        _limited_name,
        lambda name: name if can_be_queue(name) else "",
    ),
    "overflow": _Option(
        "overflowStrategy",
        "overflow",
        "overflow",
        partial(_choice, Strategy),
        lambda number: _STRATEGY_NUMBERS.get(number, Strategy.DROP_NEWEST),
    ),
    "max_retry_attempts": _Option(
        "maxRetryAttempts", "max_attempts", "max_retry_attempts", _number, partial(max, 1)
    ),
}
"""Options of CreateQueue by their names in `WrittenOptions`, in the same order."""


# --- names and creation --------------------------------------------------------------------------


def find(broker: Broker, name: str) -> Destination | None:
    """Return the destination of this name, or None. A dead-letter queue exists as soon as a queue
    has it.

    Temporary destinations of other protocols' clients are not returned: VibeMQ clients can only
    publish replies to them.
    """
    queue = Address(Kind.QUEUE, name)
    existing = broker.destinations.find(queue) or broker.destinations.find_dead_letter_queue(queue)
    if existing is None or existing.temporary:
        existing = broker.destinations.find(Address(Kind.TOPIC, name))
    return None if existing is None or existing.temporary else existing


def names(broker: Broker) -> list[str]:
    """Return the names of all destinations that VibeMQ clients can name, oldest first.

    Temporary destinations are left out.
    """
    by_age = sorted(broker.destinations.values(), key=lambda destination: destination.created)
    queue_names = [destination.name for destination in by_age if not destination.temporary]
    queue_names += [queue.name for queue in broker.destinations.dead_letter_queues()]
    return list(filter(is_queue_name, dict.fromkeys(queue_names)))


class QueueCreation:
    """Creates the queues of the clients of one listener.

    options  effective options of a CreateQueue without options
    """

    __slots__ = ("_broker", "_defaults", "_explicit", "_idle_timeout", "options")

    def __init__(self, broker: Broker, listener: WrittenOptions) -> None:
        """`listener` has the listener's options for queues for which a client gives none."""
        self._broker = broker
        given_defaults = broker.settings.given_defaults
        enforced = QueueOptions.of(DestinationSettings(**given_defaults))._asdict()
        configured = [
            option.effective for option in OPTIONS.values() if option.setting in given_defaults
        ]
        defaults = QueueOptions()._replace(**{name: enforced[name] for name in configured})
        self.options = listener.options(defaults)
        self._explicit = frozenset(given_defaults) | listener.provenance().explicit
        """Names of the settings that the listener or the broker's configuration sets."""
        others = dict(given_defaults)
        self._idle_timeout: int | None = others.pop("idle_timeout", 0)
        if listener.overflow is not None:
            others.pop("overflow", None)
        self._defaults = DestinationSettings(**others)

    def find_or_create(self, name: str, creator: str | None) -> Destination:
        """Return the destination of this name, created if necessary.

        A new one counts against the quota of `creator` (Identity.creator). Raises
        DestinationNotFound, LimitExceeded.
        """
        broker = self._broker
        destination = find(broker, name)
        if destination is not None:
            return destination
        address = Address(self.options.kind, name)
        settings = replace(self.options.apply_to(self._defaults), idle_timeout=self._idle_timeout)
        broker.destinations.expect_creation(address, creator)
        broker.destinations.expect_pair(address, settings, creator)
        provenance = Provenance(CreatedBy.VIBEMQ, self._explicit)
        destination = broker.destinations.resolve(
            address, creator=creator, settings=settings, provenance=provenance
        )
        # so that the journal records it even without messages
        broker.destinations.assign_number(destination)
        self._create_dead_letter_queue(destination)
        return destination

    def declare(
        self,
        name: str,
        written: WrittenOptions,
        creator: str | None,
        existing: Destination | None,
    ) -> None:
        """Create a queue with these options, or change those of an existing one.

        An existing one of another kind is replaced by one with its time of creation. `creator` is
        as above. Raises LimitExceeded, DestinationConflict.
        """
        options = written.options(self.options)
        address = Address(options.kind, name)
        settings = options.apply_to(self._defaults)
        provenance = written.provenance()
        provenance = provenance._replace(explicit=provenance.explicit | self._explicit)
        replaced = None if existing is None or existing.address == address else existing
        self._broker.destinations.expect_pair(address, settings, creator, replaced)
        if replaced is not None:
            self._broker.remove(replaced)
        declared = self._broker.destinations.declare(
            address,
            settings,
            creator=creator,
            provenance=provenance,
            created=0 if replaced is None else replaced.created,
        )
        self._create_dead_letter_queue(declared)

    def _create_dead_letter_queue(self, destination: Destination) -> None:
        """Create the dead-letter queue of a destination, if it has one."""
        if destination.dead_letters is not None:
            self._broker.destinations.dead_letter_queue(destination)


# --- QueueInfo -----------------------------------------------------------------------------------


def info(destination: Destination, with_mode_name: bool) -> bytes:
    """Return the JSON payload of QueueInfo.

    `with_mode_name`: the mode is a name, as the protocol page writes it; the .NET client needs its
    number.

    Options that were set explicitly are reported as they were written, the rest with the original
    broker's defaults, because a .NET client compares them with its declarations. The options that
    the broker enforces are in the `effective` keys, which the .NET client ignores.
    """
    reported = WrittenOptions.of(destination)
    enforced = QueueOptions.of(destination.settings, topic=destination.topic)
    mode = reported.mode
    dead_letters = enforced.dead_letter_queue or f"{destination.name}.dlq"
    ttl = enforced.message_ttl * TICKS_PER_MS
    fields: dict[str, object] = {
        "name": destination.name,
        "messageCount": min(destination.waiting, NO_LIMIT),
        "subscriberCount": destination.consumers,
        "deliveryMode": mode_name(mode) if with_mode_name and mode in _MODE_NUMBERS else mode,
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
    creation_time = _EPOCH + timedelta(milliseconds=destination.created)
    text = creation_time.isoformat(timespec="milliseconds").removesuffix("+00:00")
    ticks = destination.provenance.created_ticks
    return f"{text}{ticks:04}Z" if ticks else f"{text}Z"


_INSTANT: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.(\d{1,7}))?(?:Z|\+00:00)?\Z", re.A
)


def origin_of(options: bytes, created: str) -> tuple[Provenance, int]:
    """Return the provenance and the creation time of a queue that a VibeMQ server has stored.

    The time is in ms since the epoch, 0 = not known.

    options  its JSON, as in the payload of CreateQueue
    created  ISO 8601 in UTC, with up to 7 digits after the second

    Raises ProtocolError, as `read_written`.
    """
    ms, ticks = read_creation(created) or (0, 0)
    return read_written(options, {}).provenance(ticks), ms


def read_creation(text: str) -> tuple[int, int] | None:
    """Return the time at which the original broker created a queue, or None.

    The result is in ms since the epoch and ticks of 100 ns beyond them. It is None if the text is
    not ISO 8601 in UTC or the time is before the epoch.
    """
    match = _INSTANT.match(text)
    if match is None:
        return None
    try:
        seconds = (datetime.fromisoformat(text[:19] + "Z") - _EPOCH) // timedelta(seconds=1)
    except ValueError:
        return None
    fraction = int((match.group(1) or "").ljust(7, "0"))
    ms, ticks = divmod(fraction, TICKS_PER_MS)
    return (seconds * 1000 + ms, ticks) if seconds > 0 else None


def mode_name(mode: int | None) -> str:
    """Return the name of a mode, or the number of an unknown one."""
    return protocol_name(Mode(mode)) if mode in _MODE_NUMBERS else str(mode)


def ignored_options(existing: Destination, written: WrittenOptions) -> str:
    """Return the written options that differ from those of an existing queue, as text for a log.

    Example: "mode='1' instead of '0'"; "" if there are none.
    """
    reported = WrittenOptions.of(existing)._asdict()
    return ", ".join(
        f"{name}={str(value)[:80]!r} instead of {str(reported[name])[:80]!r}"
        for name, value in written._asdict().items()
        if value is not None and value != reported[name]
    )


def protocol_name(choice: IntEnum) -> str:
    """Return the name as the protocol writes it: RoundRobin."""
    return "".join(word.capitalize() for word in choice.name.split("_"))


def format_span(ticks: int) -> str:
    """Return ticks of 100 ns as `[-][d.]hh:mm:ss[.fffffff]`."""
    seconds, fraction = divmod(abs(ticks), 1000 * TICKS_PER_MS)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    prefix = "-" if ticks < 0 else ""
    if days:
        prefix += f"{days}."
    suffix = f".{fraction:07}" if fraction else ""
    return f"{prefix}{hour:02}:{minute:02}:{second:02}{suffix}"
