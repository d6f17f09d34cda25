"""Endpoint for actions on messages: delete, move, copy, redeliver, and return to the origin.

A request selects messages by id, by a selector, or all of them. The broker handles each message as
one unit of the journal (broker/operations.py) and responds when all units are on disk. If the
broker ends meanwhile, each message is in exactly one place, and the client can repeat the request.
Large sets are handled in time slices until a limit is reached; `next_cursor` in the response
continues the action. Messages that arrive after the first request are not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from time import perf_counter
from typing import Any, Final

import msgspec
from msgspec import UNSET

from sluicemq.admin.batches import body_problem
from sluicemq.admin.clients import is_private
from sluicemq.admin.destinations import check_length, find_destination, not_found
from sluicemq.admin.endpoints import (
    ApiContext,
    Call,
    Service,
    destination_name,
    from_base64,
    handles,
)
from sluicemq.admin.errors import ApiError, printable
from sluicemq.admin.messages import (
    compile_selector,
    encode_cursor,
    find_delivery,
    id_of,
    matches_selector,
    read_cursor,
    subscription_of,
)
from sluicemq.admin.time_slices import TimeSlices, wait_until_durable
from sluicemq.broker import Broker, Delivery, Destination, Selector, Subscription
from sluicemq.management.destinations import DestinationBody
from sluicemq.management.messages import (
    APPLY_MESSAGE_ACTION,
    PUBLISH_MESSAGE,
    Action,
    MessageActionFailure,
    MessageActionRequest,
    MessageActionResult,
    MessageTarget,
    PropertyInput,
    PublishRequest,
    PublishResult,
    TypedProperty,
)
from sluicemq.management.operation import KINDS
from sluicemq.model.access import Operation
from sluicemq.model.dead_letters import DeadLetterOrigin, origin_of
from sluicemq.model.destination import Address, CreatedBy, encode_name
from sluicemq.model.errors import (
    AccessDenied,
    ActionRefused,
    DestinationNotFound,
    JournalDamaged,
    LimitExceeded,
    RecordNotFound,
)
from sluicemq.model.message import BodyKind, Durability, Message, Origin, Property
from sluicemq.protocols.jmq.destinations import is_wildcard

# --- Publishing -----------------------------------------------------------------------------------
#
# Endpoint that publishes one message, for tests and for users of the console.
#
# The response is sent when the message is as durable as requested. `ttl_ms` and `delay_ms` count
# from the time of the request.

_TYPES: Final[dict[str, Any]] = {
    "boolean": bool,
    "int": int,
    "float": float,
    "string": str,
    "bytes": bytes,
    "null": None,
}


def address_of(target: MessageTarget, max_name_bytes: int) -> Address:
    """Return the address of a destination in a request. Raises ApiError for a missing name, or one
    of more than `max_name_bytes`."""
    name = destination_name(target.name, "name_base64", target.name_base64)
    check_length(name, max_name_bytes, "bad-body")
    return Address(KINDS[target.kind], name)


def resolve_destination(broker: Broker, call: Call, address: Address) -> Destination:
    """Return a destination; the caller creates it by use if automatic creation permits it. Raises
    ApiError, LimitExceeded."""
    if is_wildcard(address):
        raise not_found(address)
    try:
        return broker.destinations.resolve(
            address, creator=call.identity.creator, by=CreatedBy.MANAGEMENT
        )
    except DestinationNotFound:
        raise not_found(address) from None


class PublishingService(Service):
    """Handler of POST /destinations/{kind}/{name}/messages."""

    @handles(PUBLISH_MESSAGE)
    async def post(self, call: Call, parameters: DestinationBody[PublishRequest]) -> PublishResult:
        """Publish one message."""
        broker = self._broker
        address = parameters.address
        check_length(address.name, self._context.limits.name, "bad-name")
        message = self._message(address, parameters.body)
        broker.schedule_flush()
        destination = resolve_destination(broker, call, address)
        destination.restart_idle_time()
        broker.publish(destination, message)
        broker.traffic_of("http").published += 1
        if message.durability is Durability.SYNC:
            await wait_until_durable(broker, message.sequence)
        prefix = "" if message.durability else "m"
        return PublishResult(id=f"{prefix}{message.sequence}")

    def _message(self, address: Address, publication: PublishRequest) -> Message:
        """Return the message. Raises ApiError for an invalid request."""
        kind, body = _body(publication)
        limits = self._context.limits
        limit = limits.publish
        if len(body) > limit:
            raise ApiError(
                413, "too-large", f"the body has more than {limit} bytes", more={"limit": limit}
            )
        wall = self._context.broker.clock.wall
        reply_to = publication.reply_to
        return Message(
            address,
            body,
            kind,
            Origin.INTERNAL,
            Durability[publication.durability.upper()],
            wall,
            wall + publication.ttl_ms if publication.ttl_ms else 0,
            publication.priority,
            wall + publication.delay_ms if publication.delay_ms else 0,
            publication.message_id,
            publication.correlation_id,
            address_of(reply_to, limits.name) if reply_to is not None else None,
            publication.type,
            {name: _property(name, value) for name, value in publication.properties.items()}
            or None,
        )


def _body(publication: PublishRequest) -> tuple[BodyKind, bytes]:
    bodies = [
        value
        for value in (publication.body, publication.body_base64, publication.body_json)
        if value != UNSET
    ]
    if len(bodies) > 1:
        raise ApiError(400, "bad-body", "give one of body, body_base64 and body_json")
    kind, body = BodyKind.NONE, b""
    if isinstance(publication.body, str):
        kind, body = BodyKind.TEXT, publication.body.encode()
    elif isinstance(publication.body_base64, str):
        kind, body = BodyKind.BYTES, from_base64("body_base64", publication.body_base64)
    elif isinstance(publication.body_json, msgspec.Raw):
        kind, body = BodyKind.JSON, bytes(publication.body_json)
    if isinstance(publication.body_kind, str):
        kind = BodyKind[publication.body_kind.upper()]
    if problem := body_problem(kind, body):
        raise ApiError(400, "bad-body", problem)
    return kind, body


def _property(name: str, requested: PropertyInput) -> Property:
    """Return the value of a property. Raises ApiError if it is invalid."""
    value: Property
    if isinstance(requested, TypedProperty):
        # numbers that not every JSON reader can represent are written as text
        is_number = requested.type in ("int", "float") and isinstance(requested.value, str)
        try:
            value = msgspec.convert(requested.value, _TYPES[requested.type], strict=not is_number)
        except msgspec.ValidationError as error:
            raise ApiError(
                400, "bad-body", f"the property {name!r} is not of type {requested.type}: {error}"
            ) from None
    else:
        value = requested
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise ApiError(400, "bad-body", f"the property {name!r} has more than 64 bits")
    return value


MAX_FAILURES: Final = 100
"""Maximum number of failures in a response; the action stops when it reaches this number."""
STEP: Final = 50
"""Messages scanned per step."""
_FATAL_REASONS: Final = frozenset({"low-disk-space", "target-full", "target-refused"})
"""Failure reasons that end the action, because they apply to all other messages too."""


class MessageActionRun:
    """Progress of one action request."""

    def __init__(
        self,
        context: ApiContext,
        call: Call,
        body: MessageActionRequest,
        subscription: Subscription,
    ) -> None:
        self.broker: Broker = context.broker
        self.call = call
        self.body = body
        self.subscription = subscription
        self.slices = TimeSlices(self.broker, turns=call.slices.turns)
        self.processed = 0
        self.scanned = 0
        self.failed: list[MessageActionFailure] = []
        self._until = perf_counter() + (context.http.max_action_time or inf)
        self.refused = False

    def must_stop(self) -> bool:
        """True if the request must not handle more messages."""
        return (
            self.refused
            or self.remaining == 0
            or len(self.failed) >= MAX_FAILURES
            or self.call.caller.is_closed
            or perf_counter() > self._until
        )

    @property
    def remaining(self) -> int:
        """Number of messages that may still be handled; -1 = unlimited."""
        return self.body.limit - self.processed if self.body.limit else -1

    def fail(self, id: str, reason: str) -> None:
        """Record a message that the action left unchanged."""
        self.failed.append(MessageActionFailure(id=id, reason=reason))
        self.refused = self.refused or reason in _FATAL_REASONS


MessageHandler = Callable[[Delivery], object]


class ActionService(Service):
    """Handler of POST /destinations/{kind}/{name}/messages/actions."""

    @handles(APPLY_MESSAGE_ACTION)
    async def post(
        self, call: Call, parameters: DestinationBody[MessageActionRequest]
    ) -> MessageActionResult:
        """Apply an action to the selected messages."""
        body = parameters.body
        selection_count = (body.ids is not None) + bool(body.selector.strip()) + body.all
        if selection_count != 1:
            raise ApiError(
                400, "bad-body", "give one of ids, selector and all: with which messages?"
            )
        limit = self._context.limits.name
        target = None if body.target is None else address_of(body.target, limit)
        target_text = f" to {printable(str(target))}" if target is not None else ""
        call.note = f"{body.action}{target_text}"
        self._check_permissions(call, parameters, target)
        subscription = subscription_of(
            call, find_destination(self._context, call, parameters.address), body.subscription
        )
        if body.action != "copy" and is_private(subscription):
            call.demand(Operation.MANAGE, parameters.address.name)
        selector = await compile_selector(self._broker, body.selector)
        handle = self._handler_of(call, body.action, target)
        run = MessageActionRun(self._context, call, body, subscription)
        next_cursor = None
        if body.ids is not None:
            await self._handle_ids(run, body.ids, handle)
        elif body.state == "scheduled":
            next_cursor = await self._handle_scheduled(run, selector, handle)
        else:
            next_cursor = await self._handle_ready(run, selector, handle)
        await wait_until_durable(self._broker, self._broker.journal.next_sequence())
        call.note += f": done {run.processed}, failed {len(run.failed)}"
        return MessageActionResult(
            processed=run.processed, failed=run.failed, scanned=run.scanned, next_cursor=next_cursor
        )

    def _check_permissions(
        self, call: Call, parameters: DestinationBody[MessageActionRequest], target: Address | None
    ) -> None:
        """Check the permissions that the action needs. Raises AccessDenied."""
        body, name = parameters.body, parameters.address.name
        if body.action == "copy":
            call.demand(Operation.BROWSE, name)
        elif body.action == "delete" and body.all:
            call.demand(Operation.MANAGE, name)
        else:
            call.demand(Operation.CONSUME, name)
        if target is not None:
            call.demand(Operation.PRODUCE, target.name)

    def _handler_of(self, call: Call, action: Action, target: Address | None) -> MessageHandler:
        """Return the function that applies the action to one message. Creates the target if
        automatic creation permits it. Raises ApiError."""
        if target is None and action in ("move", "copy"):
            raise ApiError(400, "bad-body", f"{action} requires a target")
        if target is not None and action in ("delete", "redeliver"):
            raise ApiError(400, "bad-body", f"{action} has no target")
        operations = self._broker.operations
        if target is None:
            handlers: dict[Action, MessageHandler] = {
                "delete": lambda delivery: operations.delete(
                    delivery.subscription, [_manageable(call, delivery)]
                ),
                "redeliver": lambda delivery: operations.redeliver(_manageable(call, delivery)),
                "redrive": lambda delivery: self._redrive(call, delivery),
            }
            return handlers[action]
        # looked up for each message: it may be deleted and created again meanwhile
        resolve = partial(resolve_destination, self._broker, call, target)
        resolve()
        if action == "redrive":
            return lambda delivery: operations.redrive(
                delivery, DeadLetterOrigin(resolve().address, "")
            )
        transfer = operations.move if action == "move" else operations.copy
        return lambda delivery: transfer(delivery, resolve())

    def _redrive(self, call: Call, delivery: Delivery) -> None:
        origin = origin_of(self._broker.read_head(delivery))
        if origin is None:
            raise ActionRefused("no-origin", "the message has no origin")
        name = origin.address.name
        call.demand(Operation.PRODUCE, name)
        is_new = origin.address not in self._broker.destinations
        if is_new and len(encode_name(name)) > self._context.limits.name:
            # a client may have published the properties of a dead letter
            raise ActionRefused("origin-gone", "the name of the original queue is too long")
        self._broker.operations.redrive(delivery, origin, call.identity.creator)

    async def _handle_ids(
        self, run: MessageActionRun, ids: list[str], handle: MessageHandler
    ) -> None:
        for id in dict.fromkeys(ids):
            if run.must_stop():
                run.fail(id, "not-tried")
                continue
            run.scanned += 1
            delivery = None
            if not run.subscription.closed:
                delivery = find_delivery(run.broker, run.subscription, id)
            if delivery is None:
                run.fail(id[:100], "not-found")
            else:
                _handle_message(run, delivery, handle)
            await run.slices.wait_if_due()

    async def _handle_ready(
        self, run: MessageActionRun, selector: Selector | None, handle: MessageHandler
    ) -> str | None:
        """Act on ready messages in queue order, as they were at the first request."""
        body = run.body
        if body.cursor:
            priority, last, end_sequence = read_cursor(body.cursor)
            cursor = run.subscription.cursor(end_sequence, priority, last)
        else:
            end_sequence = run.broker.journal.next_sequence()
            cursor = run.subscription.cursor(end_sequence)
        while cursor.priority >= 0 and not run.must_stop() and not run.subscription.closed:
            deletions: list[Delivery] = []
            for delivery in cursor.examine(STEP if run.remaining < 0 else min(STEP, run.remaining)):
                run.scanned += 1
                if selector is None or matches_selector(run.broker, selector, delivery):
                    if body.action == "delete":
                        deletions.append(delivery)
                    # an action on an earlier message may have displaced it
                    elif (current := run.broker.operations.refind_ready(delivery)) is not None:
                        _handle_message(run, current, handle)
                if run.slices.due or run.refused:
                    cursor.rewind_to(delivery)
                    break
            run.broker.operations.delete(run.subscription, deletions)
            run.processed += len(deletions)
            await run.slices.wait_if_due()
        ended = cursor.priority < 0 or run.refused or run.subscription.closed
        return None if ended else encode_cursor(cursor.priority, cursor.last, end_sequence)

    async def _handle_scheduled(
        self, run: MessageActionRun, selector: Selector | None, handle: MessageHandler
    ) -> str | None:
        """Act on messages in ascending sequence number, so that a cursor can refer to one."""
        body = run.body
        last, end_sequence = 0, run.broker.journal.next_sequence()
        if body.cursor:
            _, last, end_sequence = read_cursor(body.cursor)
        scheduled = run.subscription.scheduled
        sequences = [
            sequence
            async for sequence in run.slices.iterate(list(scheduled), 16)
            if last < sequence <= end_sequence
        ]
        for sequence in sorted(sequences):
            if run.subscription.closed:  # its messages end, in slices
                return None
            if run.must_stop():
                return None if run.refused else encode_cursor(0, last, end_sequence)
            run.scanned += 1
            delivery = scheduled.get(sequence)
            if delivery is not None and (
                selector is None or matches_selector(run.broker, selector, delivery)
            ):
                _handle_message(run, delivery, handle)
            last = sequence
            await run.slices.wait_if_due()
        return None


def _manageable(call: Call, delivery: Delivery) -> Delivery:
    """Return the delivery. Raises AccessDenied if it is unacked at a consumer of a queue, which may
    be another user's, and the caller may not manage the queue."""
    if delivery.unacked and not delivery.subscription.name:
        call.demand(Operation.MANAGE, delivery.subscription.destination.name)
    return delivery


def _handle_message(run: MessageActionRun, delivery: Delivery, handle: MessageHandler) -> None:
    id = id_of(delivery)
    try:
        handle(delivery)
    except ActionRefused as error:
        run.fail(id, error.reason)
    except AccessDenied:
        run.fail(id, "forbidden")
    except (ApiError, DestinationNotFound, LimitExceeded):
        run.fail(id, "target-refused")
    except (JournalDamaged, RecordNotFound):
        run.fail(id, "damaged")
    else:
        run.processed += 1
