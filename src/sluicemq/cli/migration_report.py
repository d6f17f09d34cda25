"""Report of a migration or dry run, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from sluicemq.cli.console import printable
from sluicemq.migrate.plan import ASIDE, Plan
from sluicemq.migrate.transfer import MigrationOutcome
from sluicemq.model.destination import Address
from sluicemq.security.passwords import scheme_of

MAX_LINES = 40
"""Maximum number of lines of one type in text output; `--json` lists all."""


class MigrationReport(msgspec.Struct, kw_only=True):
    """The whole report. `written`: the configuration file was written; `problems`: reasons for
    which a broker would not start with it."""

    plan: Plan
    data_dir: Path
    config: Path
    text: str
    written: bool
    problems: list[str]
    outcome: MigrationOutcome | None
    before: int


def as_data(report: MigrationReport) -> dict[str, object]:
    """Return the report for `--json`."""
    plan = report.plan
    outcome = report.outcome
    return {
        "source": {"kind": plan.kind, "place": str(plan.place)},
        "dry_run": outcome is None,
        "data_dir": str(report.data_dir),
        "config": {
            "file": str(report.config),
            "written": report.written,
            "text": report.text,
            "problems": report.problems,
        },
        "destinations": [
            {
                "kind": address.kind.name.lower(),
                "name": printable(address.name),
                "waiting": plan.counts.get(address, 0),
                "imported": outcome.imported.get(address, 0) if outcome else 0,
                "declared": address in plan.destinations,
                "kept": outcome is not None and address in outcome.kept,
            }
            for address in _addresses(plan)
        ],
        "subscriptions": [
            {"topic": s.topic, "name": s.name, "selector": s.selector} for s in plan.subscriptions
        ],
        "users": [
            {
                "name": user.name,
                "login": _login(user.record.password, user.record.digest, user.record.tokens),
                "added": outcome is not None and user.name in outcome.users,
            }
            for user in plan.users
        ],
        "transactions": [branch.xid.hex() for branch in plan.branches],
        "messages": {
            "waiting": sum(plan.counts.values()),
            "imported": sum(outcome.imported.values()) if outcome else 0,
            "imported_before": outcome.before if outcome else report.before,
            "unwanted": outcome.unwanted if outcome else 0,
            "older_than_ttl": plan.late,
        },
        "set_aside": {
            "file": str(outcome.aside) if outcome and outcome.aside else None,
            "rows": dict(plan.set_aside),
        },
        "left": [left._asdict() for left in plan.left],
        "notes": plan.notes,
    }


def as_text(report: MigrationReport) -> Iterator[str]:
    """Return the lines of the text output."""
    plan = report.plan
    outcome = report.outcome
    yield f"{plan.kind}: {plan.place}" + ("" if outcome else "  (dry run: nothing is changed)")
    yield ""
    yield from _about_config(report)
    yield from _about_destinations(plan, outcome)
    if plan.subscriptions:
        yield f"durable subscriptions: {len(plan.subscriptions)}"
        yield from _some([f"  {s.name} of topic {s.topic}" for s in plan.subscriptions])
    if plan.branches:
        yield f"prepared transactions: {len(plan.branches)}; their managers will find them"
    if plan.users:
        yield f"users: {len(plan.users)}"
        lines = []
        for user in plan.users:
            record = user.record
            how = _login(record.password, record.digest, record.tokens)
            there = (
                " (there already: not changed)" if outcome and user.name in outcome.known else ""
            )
            lines.append(f"  {user.name}: {how}{there}")
        yield from _some(lines)
    total = sum(plan.counts.values())
    if outcome is None:
        yield f"messages: {total} waiting, {report.before} of any source imported before"
    else:
        done = sum(outcome.imported.values())
        yield f"messages: {done} imported, {outcome.before} had been imported before"
        if outcome.unwanted:
            yield f"  {outcome.unwanted} of topics are for no subscription that could be made here"
    if plan.late:
        yield f"  {plan.late} were older than their queue's messageTtl, which starts again"
    yield from _about_aside(plan, outcome)
    if plan.notes:
        yield ""
        yield from (f"note: {note}" for note in plan.notes)
    if plan.left:
        yield ""
        yield f"not carried over: {len(plan.left)}"
        yield from _some([f"  {left.what} {left.name}: {left.reason}" for left in plan.left])


def _about_config(report: MigrationReport) -> Iterator[str]:
    if report.outcome is None:
        yield f"configuration, for {report.config}:"
        yield from (f"  {line}" for line in report.text.splitlines())
    elif report.written:
        yield f"configuration: {report.config}"
    else:
        yield f"configuration: {report.config} is there already and stays as it is"
    for problem in report.problems:
        yield f"  to be mended before the start: {problem}"


def _about_destinations(plan: Plan, outcome: MigrationOutcome | None) -> Iterator[str]:
    addresses = _addresses(plan)
    yield f"destinations: {len(addresses)}"
    lines = []
    for address in addresses:
        kept = (
            " (there already, with settings of its own)"
            if outcome and address in outcome.kept
            else ""
        )
        waiting = plan.counts.get(address, 0)
        lines.append(f"  {address.kind.name.lower()} {address.name}: {waiting} waiting{kept}")
    yield from _some(lines)


def _about_aside(plan: Plan, outcome: MigrationOutcome | None) -> Iterator[str]:
    if not plan.set_aside:
        return
    where = f" in {outcome.aside}" if outcome and outcome.aside else ""
    yield f"set aside, not imported: {sum(plan.set_aside.values())} rows{where}"
    yield from (f"  {count} {ASIDE[sort]}" for sort, count in plan.set_aside.items())


def _addresses(plan: Plan) -> list[Address]:
    return sorted({*plan.destinations, *plan.counts})


def _login(password: str, digest: str, tokens: object) -> str:
    if password:
        return "the same password as before" if scheme_of(password) == "bcrypt" else "password"
    if digest:
        return "the same password as before, by digest (JMS clients)"
    return "token" if tokens else "needs a new password: sluicemq users passwd"


def _some(lines: list[str]) -> Iterator[str]:
    yield from lines[:MAX_LINES]
    if len(lines) > MAX_LINES:
        yield f"  … and {len(lines) - MAX_LINES} more; --json has them all"
