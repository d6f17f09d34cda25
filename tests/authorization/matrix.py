"""The authorization matrix: rows are commands, columns are the actors that issue them.

A row says which actors may carry the command out, and how it is issued against a resource of the
owner. `check` compares one cell, which is a row and an actor, with what the broker did:

    denied    the answer is a refusal in the protocol's terms, the broker's state is what it was,
              and nothing that was sent to the client contains the marker
    allowed   the answer is a success; the state changed if the row says `changes`, and is what it
              was otherwise; the marker was sent only to the actors in `reveals`

The tables of the protocols are in the test modules. Each compares its rows with the commands that
the code knows, so that a new command fails until it has a row.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

import pytest

from sluicemq.model.access import Operation

SECRET: Final = "the-secret-of-the-owner"
"""Body of the owner's messages. Actors without rights on them must not receive it."""


class Actor(StrEnum):
    """A kind of client that issues a command.

    ANONYMOUS  has not logged in; of protocols without logins: acts as no user
    REJECTED   a login has failed; of protocols without logins: shows the certificate of no user
    NO_RIGHTS  a user without permissions
    OTHER      a user with all rights on `other.*`
    OWNER      a user with all rights on `own.*`, whose resources they are
    ROOT       a superuser

    Of rows that take one right on the owner's destinations, also:

    THAT_RIGHT    a user with that right on `own.*`, and no other
    OTHER_RIGHTS  a user with all rights on `own.*` but that one
    """

    ANONYMOUS = "not logged in"
    REJECTED = "login failed"
    NO_RIGHTS = "no rights"
    OTHER = "rights on another name"
    OWNER = "owner"
    ROOT = "superuser"
    THAT_RIGHT = "only that right"
    OTHER_RIGHTS = "all rights but that"


EVERYBODY: Final = frozenset(Actor)
LOGGED_IN: Final = EVERYBODY - {Actor.ANONYMOUS, Actor.REJECTED}
RIGHTS: Final = frozenset({Actor.OWNER, Actor.ROOT})
"""Actors with the right on the owner's destinations, or that own the resource."""
OWNER_ONLY: Final = frozenset({Actor.OWNER})
"""For resources of one connection, here one of the owner."""
ROOT_ONLY: Final = frozenset({Actor.ROOT})
NO_ACTOR: Final[frozenset[Actor]] = frozenset()

ALLOWED: Final = "allowed"
DENIED: Final = "denied"


class Cell:
    """One command of one actor, and what came of it.

    outcome        ALLOWED, DENIED, or what else the answer was
    before, after  snapshots of the broker's state around the command
    received       all bytes that the actor was sent since the command
    """

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.outcome = "not issued"
        self.before: Any = None
        self.after: Any = None
        self.received = b""


CellT = TypeVar("CellT", bound=Cell)


@dataclass(frozen=True, kw_only=True)
class Row(Generic[CellT]):
    """A command against one resource.

    command   as the code of the protocol enumerates it
    target    against which resource, in words; rows of one command differ in it
    issue     prepares what only this command needs, and issues it
    allowed   who may carry it out
    right     the right on the owner's destinations that it takes, if it is one; see Actor
    changes   it changes the broker's state when it is carried out, or who of those who may carry it
              out changes something
    answered  the outcome shows in the answer; of others only the state tells it
    reveals   who is sent the marker, of those who are allowed; None = not looked at
    marker    what the answer must not reveal to others
    """

    command: Hashable
    target: str
    issue: Callable[[CellT], None]
    allowed: frozenset[Actor]
    right: Operation | None = None
    changes: bool | frozenset[Actor] = False
    answered: bool = True
    reveals: frozenset[Actor] | None = None
    marker: str = SECRET

    @property
    def name(self) -> str:
        """For the test's id."""
        command = getattr(self.command, "name", self.command)
        return f"{command} {self.target}".strip().replace(" ", "-")


class Table(Generic[CellT]):
    """The rows of a protocol."""

    def __init__(self) -> None:
        self.rows: list[Row[CellT]] = []

    def row(
        self, command: Hashable, target: str, allowed: frozenset[Actor], **more: Any
    ) -> Callable[[Callable[[CellT], None]], Callable[[CellT], None]]:
        """Decorate a function that issues a command: add a row. `more` are other fields of Row."""

        def add(issue: Callable[[CellT], None]) -> Callable[[CellT], None]:
            self.rows.append(
                Row(command=command, target=target, issue=issue, allowed=allowed, **more)
            )
            return issue

        return add


def check(row: Row[Any], cell: Cell) -> None:
    """Raise AssertionError unless the cell came out as the row says."""
    # an actor with the required right is allowed what the owner is
    actor = Actor.OWNER if cell.actor is Actor.THAT_RIGHT else cell.actor
    allowed = actor in row.allowed and actor is not Actor.OTHER_RIGHTS
    if row.answered:
        expected = ALLOWED if allowed else DENIED
        assert cell.outcome == expected, f"expected {expected}, was {cell.outcome}"
    changes = row.changes if isinstance(row.changes, bool) else actor in row.changes
    if allowed and changes:
        assert cell.after != cell.before, "the command had no effect, or the snapshot lacks it"
    else:
        assert cell.after == cell.before, "the command changed the state"
    revealed = row.marker.encode() in cell.received
    if not allowed:
        assert not revealed, "the refusal reveals the owner's data"
    elif row.reveals is not None:
        assert revealed == (actor in row.reveals), f"the answer has the marker: {revealed}"


def cells(rows: Sequence[Row[Any]]) -> pytest.MarkDecorator:
    """Parametrize a test with `row` and `actor`: every row with every actor."""
    return pytest.mark.parametrize(
        ("row", "actor"),
        [
            pytest.param(row, actor, id=f"{row.name}-{actor.name.lower()}")
            for row in rows
            for actor in Actor
            if row.right is not None or actor not in (Actor.THAT_RIGHT, Actor.OTHER_RIGHTS)
        ],
    )


def check_complete(rows: Sequence[Row[Any]], commands: Iterable[Hashable]) -> None:
    """Raise AssertionError if a command has no row, a row no command, or two rows one name."""
    row_commands = {row.command for row in rows}
    expected = set(commands)
    missing = sorted(map(str, expected - row_commands))
    assert not missing, f"commands without a row in the authorization matrix: {missing}"
    assert not row_commands - expected, "rows of commands that do not exist"
    names = [row.name for row in rows]
    assert len(names) == len(set(names)), "two rows have the same name"
