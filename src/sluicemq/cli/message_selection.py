"""Selection of a destination's messages by ids, by a selector, or all, and operations on them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from sluicemq.cli.api import Api, destination, named
from sluicemq.cli.command_helpers import ActionResult
from sluicemq.cli.console import Exit, UsageError, complain, err, no_such
from sluicemq.cli.destination_names import display_name
from sluicemq.cli.tables import number
from sluicemq.model.destination import Address

STATES: Final = ("ready", "unacked", "scheduled")
MOST_LISTED_FAILURES: Final = 10
"""Number of failed messages that are reported individually."""

IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="Message ids, as listed.", show_default=False),
]
SelectorOption = Annotated[
    str | None,
    typer.Option("--selector", metavar="TEXT", help="Messages that match: \"colour = 'red'\"."),
]
StateOption = Annotated[
    str | None,
    typer.Option(
        "--state", metavar="STATE", help=f"Messages in state {', '.join(STATES)}; default: waiting."
    ),
]
AllFlag = Annotated[bool, typer.Option("--all", help="All messages.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=0, help="Maximum number; 0 = all.")]
SubscriptionOption = Annotated[
    str | None,
    typer.Option(
        "--subscription", metavar="NAME", help="For a topic: this subscription's messages."
    ),
]


def select(ids: list[str] | None, selector: str | None, everything: bool) -> dict[str, Any]:
    """Return the selection as an API request. Raises UsageError unless exactly one form is
    given."""
    if bool(ids) + (selector is not None) + everything != 1:
        raise UsageError("say which messages: ids, or --selector, or --all")
    if ids:
        return {"ids": ids}
    return {"all": True} if everything else {"selector": selector}


def check_state(state: str | None) -> str | None:
    """Check a state name. Raises UsageError if it is unknown."""
    if state is not None and state not in STATES:
        raise no_such("--state", "state", state, STATES)
    return state


def describe(selection: dict[str, Any]) -> str:
    """Return the selection as part of a sentence."""
    if "ids" in selection:
        count = len(selection["ids"])
        return f"message {selection['ids'][0]}" if count == 1 else f"{count} messages"
    return "all messages" if "all" in selection else f"the messages with {selection['selector']}"


def run_action(
    api: Api,
    address: Address,
    action: str,
    selection: dict[str, Any],
    verb: str,
    *,
    target: Address | None = None,
    subscription: str | None = None,
    state: str | None = None,
    limit: int = 0,
) -> ActionResult:
    """Run an operation on the selection; exit code 1 if it failed for some messages. `verb` is its
    past participle, such as "moved".

    The broker processes one batch per request so that clients are not blocked; the command repeats
    the request until all messages that were there at its start are processed.
    """
    body: dict[str, Any] = {"action": action, **selection}
    if target is not None:
        body["target"] = named(target)
    if subscription is not None:
        body["subscription"] = subscription
    if state is not None:
        body["state"] = state
    done = 0
    failed: list[dict[str, Any]] = []
    at = destination(address) / "messages" / "actions"
    with err().status(f"{number(done)} {verb}") as status:
        while True:
            if limit:
                body["limit"] = limit - done
            answer = api.post(at, body)
            done += answer["processed"]
            failed += answer.get("failed") or []
            status.update(f"{number(done)} {verb}")
            body["cursor"] = answer.get("next_cursor")
            if body["cursor"] is None or (limit and done >= limit):
                break
    for each in failed[:MOST_LISTED_FAILURES]:
        complain(f"message {each['id']}: {_REASONS.get(each['reason'], each['reason'])}")
    if len(failed) > MOST_LISTED_FAILURES:
        err().print(f"… and {number(len(failed) - MOST_LISTED_FAILURES)} more")
    text = f"{number(done)} {verb}"
    if failed:
        text += f", {number(len(failed))} not"
    document = {"processed": done, "failed": failed}
    return ActionResult(
        document, f"{text} ({display_name(address)}).", Exit.REFUSED if failed else Exit.OK
    )


_REASONS: Final = {
    "not-found": "it no longer exists",
    "in-flight": "a consumer holds it unacked; redeliver requeues it",
    "in-transaction": "it belongs to a transaction; see sluicemq transactions",
    "no-origin": "its original destination is unknown; name a destination with --to",
    "origin-gone": "its original destination does not exist; name a destination with --to",
    "forbidden": "you may not publish to its original destination",
    "low-disk-space": "the broker's disk is nearly full",
    "target-full": "the target is full",
    "target-refused": "the target rejected it",
    "too-large": "it is larger than the target permits",
}
