"""Endpoint for actions on messages: delete, move, copy, redeliver, and return to the origin.

A request selects messages by id, by a selector, or all of them. The broker handles each message as
one unit of the journal (broker/operations.py) and responds when all units are on disk. If the
broker ends meanwhile, each message is in exactly one place, and the client can repeat the request.
Large sets are handled in time slices until a limit is reached; `next_cursor` in the response
continues the action. Messages that arrive after the first request are not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.destinations import found, not_found
from sluicemq.admin.durability import wait_until_durable
from sluicemq.admin.errors import ApiError
from sluicemq.admin.messages import (
    by_id,
    compiled,
    encode_cursor,
    id_of,
    read_cursor,
    selects,
    subscription_of,
)
from sluicemq.admin.printable_names import printable
from sluicemq.admin.publishing import MessageTarget
from sluicemq.admin.routing import Call, Endpoint
from sluicemq.admin.time_slices import TimeSlices
from sluicemq.broker import Broker, Delivery, Destination, Selector, Subscription
from sluicemq.model.access import Operation
from sluicemq.model.dead_letters import origin_of
from sluicemq.model.destination import CreatedBy, is_temporary
from sluicemq.model.errors import (
    ActionRefused,
    DestinationNotFound,
    JournalDamaged,
    LimitExceeded,
    RecordNotFound,
)

MOST_IDS: Final = 1000
MOST_FAILURES: Final = 100
"""Maximum number of failures in a response; the action stops when it reaches this number."""
STEP: Final = 50
"""Messages scanned per step."""
_ENDING: Final = frozenset({"low-disk-space", "target-full", "target-refused"})
"""Failure reasons that end the action, because they apply to all other messages too."""

Action = Literal["delete", "move", "copy", "redeliver", "redrive"]


class MessageActionRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """An action, and its messages: given by `ids`, `selector` or `all`.

    target  destination of move and copy
    state   with `selector` or `all`: only ready messages, or only scheduled ones
    cursor  `next_cursor` of the previous response
    limit   maximum number of messages; 0 = all
    """

    action: Action
    ids: Annotated[list[str], Meta(max_length=MOST_IDS)] | None = None
    selector: str = ""
    all: bool = False
    target: MessageTarget | None = None
    subscription: str = ""
    state: Literal["ready", "scheduled"] = "ready"
    cursor: str = ""
    limit: Annotated[int, Meta(ge=0)] = 0


class MessageActionFailure(msgspec.Struct, kw_only=True, frozen=True):
    """A message that the action could not be applied to, and the reason."""

    id: str
    reason: str


class MessageActionResult(msgspec.Struct, kw_only=True, frozen=True):
    """Result of an action.

    processed    number of messages that the action was applied to
    scanned      number of messages examined
    next_cursor  cursor to send to continue; null if there are no more messages
    """

    processed: int
    failed: list[MessageActionFailure]
    scanned: int
    next_cursor: str | None


class MessageSkipped(Exception):
    """Raised if an action cannot be applied to a message; the message stays unchanged."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class MessageActionRun:
    """Progress of one action request."""

    def __init__(self, context: ApiContext, call: Call, subscription: Subscription) -> None:
        body: MessageActionRequest = call.body
        self.broker: Broker = context.broker
        self.call = call
        self.subscription = subscription
        self.slices = TimeSlices(self.broker)
        self.done = 0
        self.scanned = 0
        self.failed: list[MessageActionFailure] = []
        self._until = perf_counter() + context.limits.action_seconds
        self._limit = body.limit
        self._ended = False

    def over(self) -> bool:
        """True if the request must not handle more messages."""
        return (
            self._ended
            or self.remaining == 0
            or len(self.failed) >= MOST_FAILURES
            or self.call.caller.gone
            or perf_counter() > self._until
        )

    @property
    def refused(self) -> bool:
        """True if a failure ended the action."""
        return self._ended

    @property
    def remaining(self) -> int:
        """Number of messages that may still be handled; -1 = unlimited."""
        return self._limit - self.done if self._limit else -1

    def fail(self, id: str, reason: str) -> None:
        """Record a message that the action left unchanged."""
        self.failed.append(MessageActionFailure(id=id, reason=reason))
        self._ended = self._ended or reason in _ENDING

    async def rest(self) -> None:
        """Yield to the event loop if the time slice is used up."""
        if self.slices.due:
            await self.slices.rest()

    def answer(self, next_cursor: str | None) -> MessageActionResult:
        """Return the response for the progress made so far."""
        return MessageActionResult(
            processed=self.done, failed=self.failed, scanned=self.scanned, next_cursor=next_cursor
        )


Act = Callable[[Delivery], object]


class ActionEndpoints:
    """POST /destinations/{kind}/{name}/messages/actions"""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._broker = context.broker

    async def post(self, call: Call) -> MessageActionResult:
        """Act on messages."""
        body: MessageActionRequest = call.body
        chosen_by = (body.ids is not None) + bool(body.selector.strip()) + body.all
        if chosen_by != 1:
            raise ApiError(
                400, "bad-body", "give one of ids, selector and all: with which messages?"
            )
        self._permit(call)
        subscription = subscription_of(call, found(self._context, call), body.subscription)
        selector = await compiled(self._broker, body.selector)
        act = self._act(call, self._target(call, body))
        work = MessageActionRun(self._context, call, subscription)
        next_cursor = None
        if body.ids is not None:
            await self._by_id(work, body.ids, act)
        elif body.state == "scheduled":
            next_cursor = await self._delayed(work, selector, act)
        else:
            next_cursor = await self._waiting(work, selector, act)
        await wait_until_durable(self._broker, self._broker.journal.next_sequence())
        where = f" to {printable(str(body.target.address))}" if body.target is not None else ""
        call.note = f"{body.action}{where}: done {work.done}, failed {len(work.failed)}"
        return work.answer(next_cursor)

    def _permit(self, call: Call) -> None:
        """Check the permissions that the action needs. Raises AccessDenied."""
        body: MessageActionRequest = call.body
        name = call.address.name
        if body.action == "copy":
            call.demand(Operation.BROWSE, name)
        elif body.action == "delete" and body.all:
            call.demand(Operation.MANAGE, name)
        else:
            call.demand(Operation.CONSUME, name)
        if body.target is not None:
            call.demand(Operation.PRODUCE, body.target.address.name)

    def _target(self, call: Call, body: MessageActionRequest) -> Destination | None:
        """Return the target of a move or copy, None for other actions. Creates the target if
        automatic creation permits it. Raises ApiError."""
        if (body.target is not None) != (body.action in ("move", "copy")):
            raise ApiError(400, "bad-body", "move and copy have a target, the others have none")
        if body.target is None:
            return None
        address = body.target.address
        try:
            return self._broker.destinations.resolve(
                address, creator=call.identity.creator, by=CreatedBy.MANAGEMENT
            )
        except DestinationNotFound:
            raise not_found(address) from None

    def _act(self, call: Call, target: Destination | None) -> Act:
        """Return the function that applies the action to one message."""
        broker = self._broker
        body: MessageActionRequest = call.body

        def there() -> Destination:
            """Return the target, which may have been deleted and created again."""
            assert target is not None
            if not target.removed:
                return target
            return broker.destinations.resolve(
                target.address, creator=target.creator, by=target.provenance.created_by
            )

        operations = broker.operations
        acts: dict[Action, Act] = {
            "delete": lambda delivery: operations.delete(delivery.subscription, [delivery]),
            "move": lambda delivery: operations.move(delivery, there()),
            "copy": lambda delivery: operations.copy(delivery, there()),
            "redeliver": operations.redeliver,
            "redrive": lambda delivery: self._redrive(call, delivery),
        }
        return acts[body.action]

    def _redrive(self, call: Call, delivery: Delivery) -> None:
        origin = origin_of(self._broker.glance(delivery))
        if origin is None:
            raise MessageSkipped("no-origin")
        name = origin.address.name
        if not call.identity.may(Operation.PRODUCE, name):
            call.denied(f"{Operation.PRODUCE} {name}")
            raise MessageSkipped("forbidden")
        if is_temporary(name) and self._broker.destinations.find(origin.address) is None:
            raise MessageSkipped("origin-gone")
        self._broker.operations.redrive(delivery, origin, call.identity.creator)

    async def _by_id(self, work: MessageActionRun, ids: list[str], act: Act) -> None:
        for id in dict.fromkeys(ids):
            if work.over():
                work.fail(id, "not-tried")
                continue
            work.scanned += 1
            delivery = None
            if not work.subscription.closed:
                delivery = by_id(work.broker, work.subscription, id)
            if delivery is None:
                work.fail(id[:100], "not-found")
            else:
                _try(work, delivery, act)
            await work.rest()

    async def _waiting(
        self, work: MessageActionRun, selector: Selector | None, act: Act
    ) -> str | None:
        """Act on ready messages in queue order, as they were at the first request."""
        body: MessageActionRequest = work.call.body
        if body.cursor:
            priority, last, until = read_cursor(body.cursor)
            cursor = work.subscription.cursor(until, priority, last)
        else:
            until = work.broker.journal.next_sequence()
            cursor = work.subscription.cursor(until)
        while cursor.priority >= 0 and not work.over() and not work.subscription.closed:
            chosen: list[Delivery] = []
            for delivery in cursor.look(STEP if work.remaining < 0 else min(STEP, work.remaining)):
                work.scanned += 1
                if selector is None or selects(work.broker, selector, delivery):
                    if body.action == "delete":
                        chosen.append(delivery)
                    else:
                        _try_waiting(work, delivery, act)
                if work.slices.due or work.refused:
                    cursor.back_to(delivery)
                    break
            work.broker.operations.delete(work.subscription, chosen)
            work.done += len(chosen)
            await work.rest()
        ended = cursor.priority < 0 or work.refused or work.subscription.closed
        return None if ended else encode_cursor(cursor.priority, cursor.last, until)

    async def _delayed(
        self, work: MessageActionRun, selector: Selector | None, act: Act
    ) -> str | None:
        """Act on messages in ascending sequence number, so that a cursor can refer to one."""
        body: MessageActionRequest = work.call.body
        last, until = 0, work.broker.journal.next_sequence()
        if body.cursor:
            _, last, until = read_cursor(body.cursor)
        delayed = work.subscription.delayed
        for sequence in sorted(each for each in delayed if last < each <= until):
            if work.over():
                return None if work.refused else encode_cursor(0, last, until)
            work.scanned += 1
            delivery = delayed.get(sequence)
            if delivery is not None and (
                selector is None or selects(work.broker, selector, delivery)
            ):
                _try(work, delivery, act)
            last = sequence
            await work.rest()
        return None


def _try_waiting(work: MessageActionRun, delivery: Delivery, act: Act) -> None:
    """Act on `delivery` if an action on an earlier message has not displaced it."""
    still = work.broker.operations.still_ready(delivery)
    if still is not None:
        _try(work, still, act)


def _try(work: MessageActionRun, delivery: Delivery, act: Act) -> None:
    id = id_of(delivery)
    try:
        act(delivery)
    except (ActionRefused, MessageSkipped) as error:
        work.fail(id, error.reason)
    except (DestinationNotFound, LimitExceeded):
        work.fail(id, "target-refused")
    except (JournalDamaged, RecordNotFound):
        work.fail(id, "damaged")
    else:
        work.done += 1


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoint of message actions."""
    handlers = ActionEndpoints(context)
    return [
        Endpoint(
            "POST",
            "/destinations/{kind}/{name}/messages/actions",
            "applyMessageAction",
            handlers.post,
            "Delete, move, copy, redeliver or redrive messages",
            (Operation.BROWSE, Operation.CONSUME, Operation.MANAGE),
            body=MessageActionRequest,
            answer=MessageActionResult,
        )
    ]
