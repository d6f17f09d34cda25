"""Retention slots of readers elsewhere; see `sluicemq.journal.slots`.

Changes are made one at a time: to advance a slot is to read it and to write it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from sluicemq.admin.bodies import read_small
from sluicemq.admin.errors import Problem, answer
from sluicemq.admin.identity import demand_superuser
from sluicemq.admin.journal import kept
from sluicemq.journal import Slot, Slots
from sluicemq.journal.port import Journal
from sluicemq.journal.slots import is_slot_name
from sluicemq.model.errors import RecordNotFound

MOST_SLOTS: Final = 1000

_Answer = TypeVar("_Answer")


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a slot is to be.

    position     everything up to this sequence number has been done
    limit_bytes  what may be kept for it alone; only of one that is created
    """

    position: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    limit_bytes: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | None = None


class SlotPages:
    """`/journal/slots`. One for all connections."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = asyncio.Lock()

    METHODS: Final = ("GET", "PUT", "DELETE")

    async def list(self, request: Request) -> Response:
        """GET /journal/slots"""
        slots = await self._slots(request)
        found = await self._carry_out(slots.list)
        return answer({"slots": [_described(name, slot) for name, slot in found.items()]})

    async def serve(self, request: Request) -> Response:
        """GET, PUT, DELETE /journal/slots/{name}"""
        if request.method == "PUT":
            return await self._put(request)
        if request.method == "DELETE":
            return await self._delete(request)
        return await self._show(request)

    async def _show(self, request: Request) -> Response:
        slots = await self._slots(request)
        name = _name(request)
        return answer(_described(name, await self._carry_out(slots.get, name)))

    async def _put(self, request: Request) -> Response:
        """Create or advance."""
        slots = await self._slots(request)
        name = _name(request)
        body = await read_small(request)
        try:
            wanted = _decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise Problem(400, "bad-slot", f"that is no slot: {error}") from None
        return answer(
            _described(name, await self._carry_out(_create_or_advance, slots, name, wanted))
        )

    async def _delete(self, request: Request) -> Response:
        slots = await self._slots(request)
        await self._carry_out(slots.drop, _name(request))
        return Response(status_code=204)

    async def _slots(self, request: Request) -> Slots:
        await demand_superuser(request, "use slots of the journal")
        return kept(self._journal).slots

    async def _carry_out(self, call: Callable[..., _Answer], *arguments: Any) -> _Answer:
        """Off the loop: files are read, and written with a sync."""
        async with self._lock:
            try:
                return await asyncio.to_thread(call, *arguments)
            except RecordNotFound as error:
                raise Problem(404, "slot-not-found", str(error)) from None


def _create_or_advance(slots: Slots, name: str, wanted: Wanted) -> Slot:
    try:
        slot = slots.get(name)
    except RecordNotFound:
        if len(slots.list()) >= MOST_SLOTS:
            said = f"there are {MOST_SLOTS} slots already; drop some that nobody uses"
            raise Problem(409, "too-many-slots", said) from None
        return slots.create(name, wanted.position, wanted.limit_bytes)
    if slot.lost:
        raise Problem(
            409,
            "slot-lost",
            f"more than {slot.limit_bytes} bytes were waiting for the slot {name}, and some of "
            "them are gone. Drop it, and begin again with the earliest that is there",
        )
    if wanted.position < slot.position:
        said = f"the slot {name} is at {slot.position} and cannot go back"
        raise Problem(409, "slot-ahead", said, more={"position": slot.position})
    if wanted.position == slot.position:
        return slot
    return slots.advance(name, wanted.position)


def _name(request: Request) -> str:
    name: str = request.path_params["name"]
    if not is_slot_name(name):
        raise Problem(
            400,
            "bad-name",
            "a slot's name has up to 63 characters of a-z 0-9 _ . - and no sign at the start",
        )
    return name


def _described(name: str, slot: Slot) -> dict[str, Any]:
    return {"name": name, **msgspec.to_builtins(slot)}


_decoder: Final = msgspec.json.Decoder(Wanted)
