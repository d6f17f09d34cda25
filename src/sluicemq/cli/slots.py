"""`sluicemq slots …`: retention slots of a running broker.

`sluicemq journal slots` manages the slots of a stopped broker's journal.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from sluicemq.cli.api import Api
from sluicemq.cli.command_helpers import (
    ActionResult,
    QueryResult,
    YesFlag,
    action_command,
    confirm,
    listing,
    query_command,
)
from sluicemq.cli.console import Column, UsageError, moment, number, pairs, quantity, size
from sluicemq.cli.destinations import Listing
from sluicemq.management.journal import (
    DELETE_SLOT,
    GET_SLOT,
    LIST_SLOTS,
    PUT_SLOT,
    PutSlot,
    SlotRequest,
    SlotView,
)
from sluicemq.management.operation import NamePath, PageQuery
from sluicemq.server.settings import Unit

app = typer.Typer(
    cls=Listing,
    help="List, create, advance and remove retention slots. Default: list.",
    pretty_exceptions_enable=False,
)

COLUMNS: Final[tuple[Column[SlotView], ...]] = (
    Column("Slot", lambda item: str(item.name)),
    Column("Position", lambda item: str(item.position), right=True),
    Column("Lag", lambda item: number(item.lag_records), right=True),
    Column("Limit", lambda item: size(item.limit_bytes), right=True),
    Column("Created", lambda item: moment(item.created), whole=True, optional=True),
    Column(
        "Moved",
        lambda item: moment(item.last_advanced) if item.last_advanced else "never",
        whole=True,
    ),
    Column("State", lambda item: _state(item), whole=True),
)


def _state(item: SlotView) -> str:
    if item.idle_expired:
        return "lost (idle)"
    return "lost" if item.lost else "held"


NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
PositionOption = Annotated[
    int,
    typer.Option("--position", min=0, help="Last sequence number that the reader has processed."),
]


@query_command(app, "list")
def list_slots(api: Api) -> QueryResult:
    """List the slots."""
    empty = "There are no slots. A pipeline's first run creates one."
    return listing(api.items(LIST_SLOTS, PageQuery()), COLUMNS, empty)


@query_command(app, "show")
def show(api: Api, name: NameArgument) -> QueryResult:
    """Show one slot, and the number of records that its reader has not processed (lag)."""
    slot = api.call(GET_SLOT, NamePath(name=name))
    return QueryResult(
        slot, pairs([(column.title.lower(), str(column.of(slot))) for column in COLUMNS])
    )


@action_command(app, "create")
def create(
    api: Api,
    name: NameArgument,
    position: PositionOption = 0,
    limit: Annotated[
        str | None,
        typer.Option(
            "--limit", metavar="SIZE", help="Maximum journal retained for it, such as 5GiB."
        ),
    ] = None,
) -> ActionResult:
    """Create a slot: the journal is retained from its position on."""
    body = SlotRequest(
        position, int(quantity("--limit", limit, Unit.BYTES)) if limit is not None else None
    )
    slot = api.call(PUT_SLOT, PutSlot(name=name, body=body))
    return ActionResult(slot, f"The slot {name} is at {slot.position}.")


@action_command(app, "advance")
def advance(api: Api, name: NameArgument, position: PositionOption) -> ActionResult:
    """Advance a slot; the journal before its position may be deleted."""
    slot = api.call(GET_SLOT, NamePath(name=name))
    if position < slot.position:
        raise UsageError(f"the slot {name} is at {slot.position} and cannot go back to {position}")
    slot = api.call(PUT_SLOT, PutSlot(name=name, body=SlotRequest(position)))
    return ActionResult(slot, f"The slot {name} is at {slot.position}.")


@action_command(app, "delete")
def delete(api: Api, name: NameArgument, yes: YesFlag = False) -> ActionResult:
    """Remove a slot; its reader has to start over."""
    confirm(f"Remove the slot {name}?", yes)
    api.call(DELETE_SLOT, NamePath(name=name))
    return ActionResult({"deleted": name}, f"Removed the slot {name}.")
