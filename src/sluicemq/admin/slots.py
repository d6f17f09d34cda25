"""Endpoints for the retention slots of journal readers (`sluicemq.journal.slots`).

Changes are serialised, because advancing a slot reads and rewrites its file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.errors import ApiError
from sluicemq.admin.journal import kept
from sluicemq.admin.pagination import Page, PageQuery, page_of
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.journal import Slot, Slots
from sluicemq.journal.lag import records_after
from sluicemq.journal.port import Journal
from sluicemq.journal.slots import is_slot_name
from sluicemq.model.errors import RecordNotFound

MOST_SLOTS: Final = 1000

_Answer = TypeVar("_Answer")


class SlotRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a slot.

    position     sequence number up to which the reader has processed the journal
    limit_bytes  maximum bytes retained for this slot alone; only for a new slot
    """

    position: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    limit_bytes: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | None = None


class SlotView(msgspec.Struct, frozen=True):
    """A slot.

    lag_records    records after the position
    created        time of creation in ms since the epoch
    lost           true if segments that it needs may have been deleted
    idle_expired   true if it was lost because its reader did not advance it
    last_advanced  time of the last advance in ms since the epoch; 0 = never
    """

    name: str
    position: int
    lag_records: int
    limit_bytes: int
    created: int
    lost: bool
    last_advanced: int
    idle_expired: bool


class SlotEndpoints:
    """Handlers of `/journal/slots`, shared by all connections."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = asyncio.Lock()

    async def list(self, call: Call) -> Page[SlotView]:
        """GET /journal/slots"""
        found = await self._carry_out(self._slots.list)
        return page_of([await self._view(name, slot) for name, slot in found.items()], call.query)

    async def show(self, call: Call) -> SlotView:
        """GET /journal/slots/{name}"""
        name = _name(call)
        return await self._view(name, await self._carry_out(self._slots.get, name))

    async def put(self, call: Call) -> SlotView:
        """PUT /journal/slots/{name}: create or advance a slot. Advancing is not written to the
        audit log, because readers do it continuously."""
        name = _name(call)
        slot, created = await self._carry_out(_create_or_advance, self._slots, name, call.body)
        call.audited = created
        return await self._view(name, slot)

    async def delete(self, call: Call) -> None:
        """DELETE /journal/slots/{name}"""
        await self._carry_out(self._slots.drop, _name(call))

    async def _view(self, name: str, slot: Slot) -> SlotView:
        journal = kept(self._journal)
        lag = await asyncio.to_thread(
            records_after, journal.directory, list(journal.segments), slot.position
        )
        return SlotView(
            name,
            slot.position,
            lag,
            slot.limit_bytes,
            slot.created,
            slot.lost,
            slot.moved,
            slot.abandoned,
        )

    @property
    def _slots(self) -> Slots:
        return kept(self._journal).slots

    async def _carry_out(self, call: Callable[..., _Answer], *arguments: Any) -> _Answer:
        """Run `work` on another thread, because it reads and syncs files."""
        async with self._lock:
            try:
                return await asyncio.to_thread(call, *arguments)
            except RecordNotFound as error:
                raise ApiError(404, "slot-not-found", str(error)) from None


def _create_or_advance(slots: Slots, name: str, requested: SlotRequest) -> tuple[Slot, bool]:
    """Create or advance a slot. Return it, and True if it is new."""
    try:
        slot = slots.get(name)
    except RecordNotFound:
        if len(slots.list()) >= MOST_SLOTS:
            message = f"there are {MOST_SLOTS} slots already; delete unused ones"
            raise ApiError(409, "too-many-slots", message) from None
        return slots.create(name, requested.position, requested.limit_bytes), True
    if slot.lost:
        raise ApiError(409, "slot-lost", slot.describe_loss(name))
    if requested.position < slot.position:
        message = f"the slot {name} is at {slot.position} and cannot go back"
        raise ApiError(409, "slot-ahead", message, more={"position": slot.position})
    return slots.advance(name, requested.position), False


def _name(call: Call) -> str:
    name = call.names["name"]
    if not is_slot_name(name):
        raise ApiError(
            400,
            "bad-name",
            "a slot's name has up to 63 characters of a-z 0-9 _ . - and no sign at the start",
        )
    return name


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /journal/slots."""
    handlers = SlotEndpoints(context.broker.journal)
    one = "/journal/slots/{name}"
    need = Need.SUPERUSER
    return [
        Endpoint(
            "GET",
            "/journal/slots",
            "listSlots",
            handlers.list,
            "List the slots",
            need,
            query=PageQuery,
            answer=Page[SlotView],
        ),
        Endpoint("GET", one, "getSlot", handlers.show, "A slot", need, answer=SlotView),
        Endpoint(
            "PUT",
            one,
            "putSlot",
            handlers.put,
            "Create or advance a slot",
            need,
            body=SlotRequest,
            answer=SlotView,
        ),
        Endpoint("DELETE", one, "deleteSlot", handlers.delete, "Delete a slot", need, status=204),
    ]
