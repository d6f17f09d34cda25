"""The authorization matrix: rows are commands, columns are the actors that issue them.

A row states which actors may execute the command, and issues it against a resource of the owner.
`check_cell` compares one cell, which is a row and an actor, with the behaviour of the broker:

    denied    the response is an error of the protocol, the state of the broker is unchanged, and
              no data sent to the client contains the marker
    allowed   the response is a success; the state has changed if the row has `changes`, and is
              unchanged otherwise; only the actors in `reveals` have received the marker

The tables of the protocols are in the test modules. Each module compares its rows with the
commands of the code, so that the test of a new command fails until it has a row.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

import pytest

from sluicemq.model.access import Operation

SECRET: Final = "the-secret-of-the-owner"
"""Body of the owner's messages. Actors without permission must not receive it."""


class Actor(StrEnum):
    """A kind of client that issues a command.

    ANONYMOUS       has not logged in; for protocols without logins: a listener without a user
    REJECTED        a login has failed; for protocols without logins: a certificate of no user
    NO_PERMISSIONS  a user without permissions
    OTHER           a user with all permissions on `other.*`
    OWNER           a user with all permissions on `own.*`, who owns the resources
    ROOT            a superuser

    For rows that require one permission on the owner's destinations, also:

    ONLY_PERMISSION    a user with this permission on `own.*`, and no other
    OTHER_PERMISSIONS  a user with all permissions on `own.*` except this one
    """

    ANONYMOUS = "not logged in"
    REJECTED = "login failed"
    NO_PERMISSIONS = "no permissions"
    OTHER = "permissions on another name"
    OWNER = "owner"
    ROOT = "superuser"
    ONLY_PERMISSION = "only the permission"
    OTHER_PERMISSIONS = "all other permissions"


ALL_ACTORS: Final = frozenset(Actor)
LOGGED_IN: Final = ALL_ACTORS - {Actor.ANONYMOUS, Actor.REJECTED}
PERMITTED: Final = frozenset({Actor.OWNER, Actor.ROOT})
"""Actors that own the resource or have the permission on the owner's destinations."""
OWNER_ONLY: Final = frozenset({Actor.OWNER})
"""For resources of one connection of the owner."""
SUPERUSER_ONLY: Final = frozenset({Actor.ROOT})
NO_ACTOR: Final[frozenset[Actor]] = frozenset()

ALLOWED: Final = "allowed"
DENIED: Final = "denied"


class Cell:
    """One command of one actor, and its result.

    outcome        ALLOWED, DENIED or another response
    before, after  snapshots of the broker's state before and after the command
    received       all bytes that the actor has received since the command
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

    command       the command, as the code of the protocol enumerates it
    target        description of the resource; unique among the rows of a command
    issue         prepares the resource and issues the command
    allowed       actors that may execute the command
    permission    the required permission on the owner's destinations, if it is a single one
    changes       whether the command changes the state of the broker, or the allowed actors whose
                  command changes it
    has_response  whether a response reports the outcome; if not, only the state is compared
    reveals       allowed actors that receive the marker; None: not checked
    marker        text that other actors must not receive
    """

    command: Hashable
    target: str
    issue: Callable[[CellT], None]
    allowed: frozenset[Actor]
    permission: Operation | None = None
    changes: bool | frozenset[Actor] = False
    has_response: bool = True
    reveals: frozenset[Actor] | None = None
    marker: str = SECRET

    @property
    def name(self) -> str:
        """Return the name for the id of the test."""
        command = getattr(self.command, "name", self.command)
        return f"{command} {self.target}".strip().replace(" ", "-")


class Table(Generic[CellT]):
    """The rows of a protocol."""

    def __init__(self) -> None:
        self.rows: list[Row[CellT]] = []

    def row(
        self, command: Hashable, target: str, allowed: frozenset[Actor], **fields: Any
    ) -> Callable[[Callable[[CellT], None]], Callable[[CellT], None]]:
        """Return a decorator that adds a row, for the function that issues the command.

        `fields` are other fields of Row.
        """

        def add(issue: Callable[[CellT], None]) -> Callable[[CellT], None]:
            self.rows.append(
                Row(command=command, target=target, issue=issue, allowed=allowed, **fields)
            )
            return issue

        return add


def check_cell(row: Row[Any], cell: Cell) -> None:
    """Raise AssertionError if the result of the cell differs from the row."""
    # an actor with the required permission is allowed the same as the owner
    actor = Actor.OWNER if cell.actor is Actor.ONLY_PERMISSION else cell.actor
    allowed = actor in row.allowed and actor is not Actor.OTHER_PERMISSIONS
    if row.has_response:
        expected = ALLOWED if allowed else DENIED
        assert cell.outcome == expected, f"expected {expected}, was {cell.outcome}"
    changes = row.changes if isinstance(row.changes, bool) else actor in row.changes
    if allowed and changes:
        assert cell.after != cell.before, "the command had no effect, or the snapshot lacks it"
    else:
        assert cell.after == cell.before, "the command changed the state"
    revealed = row.marker.encode() in cell.received
    if not allowed:
        assert not revealed, "the error reveals the owner's data"
    elif row.reveals is not None:
        assert revealed == (actor in row.reveals), f"the response contains the marker: {revealed}"


def parametrize_cells(rows: Sequence[Row[Any]]) -> pytest.MarkDecorator:
    """Parametrize a test with `row` and `actor`, for every row and every actor."""
    return pytest.mark.parametrize(
        ("row", "actor"),
        [
            pytest.param(row, actor, id=f"{row.name}-{actor.name.lower()}")
            for row in rows
            for actor in Actor
            if row.permission is not None
            or actor not in (Actor.ONLY_PERMISSION, Actor.OTHER_PERMISSIONS)
        ],
    )


def check_complete(rows: Sequence[Row[Any]], commands: Iterable[Hashable]) -> None:
    """Raise AssertionError if a command has no row, a row no command, or two rows the same name."""
    row_commands = {row.command for row in rows}
    expected = set(commands)
    missing = sorted(map(str, expected - row_commands))
    assert not missing, f"commands without a row in the authorization matrix: {missing}"
    assert not row_commands - expected, "rows of commands that do not exist"
    names = [row.name for row in rows]
    assert len(names) == len(set(names)), "two rows have the same name"
