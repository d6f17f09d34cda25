"""Users and access control: `passwd` and `accesscontrol.properties`.

    passwd                     name:hash:group:1     hash: MD5 of name:password, a signed number
    accesscontrol.properties   queue|topic.NAME|*.produce|consume|browse.allow|deny.user|group=a,b
                               queue|topic.create.allow|deny.user|group=a,b
                               connection.NORMAL|ADMIN.allow|deny.user|group=a,b

Digest logins are verified with this hash, so users keep their passwords.

Open MQ evaluates the rules from the general ones to the named one, each overriding the one before;
within a rule: all groups, the user's group, all users, the user. SluiceMQ's permissions add up, and
none revokes another. So a user with a right on all destinations is granted it; for other users the
migration evaluates each known destination separately. It never grants more than Open MQ does.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final, NamedTuple

from sluicemq.migrate.configuration import SourceSetting
from sluicemq.migrate.openmq.settings import read_properties
from sluicemq.migrate.plan import NewUser, Plan
from sluicemq.migrate.source_files import Damage, read_settings
from sluicemq.model.access import Operation, Permission, is_pattern, is_user_name
from sluicemq.model.destination import Address, Kind
from sluicemq.security.records import UserRecord

VERSION: Final = "JMQFileAccessControlModel/100"
ADMIN: Final = "admin"
"""Members of this group may use the admin service regardless of the rules."""
ALL: Final = "*"
MOST_NAMED: Final = 500
"""Maximum number of permissions of a user that name individual destinations."""

_HASH: Final = re.compile(r"-?[0-9a-f]{1,32}\Z")
_OPERATIONS: Final = {
    "produce": Operation.PRODUCE,
    "consume": Operation.CONSUME,
    "browse": Operation.BROWSE,
}
_RULE: Final = re.compile(r"(queue|topic)\.(.+)\.(?:produce|consume|browse)\.(?:allow|deny)\.")


class OpenmqAccount(NamedTuple):
    """A line of passwd. `group` may be ""."""

    name: str
    digest: str
    group: str
    active: bool


def read_accounts(file: Path, plan: Plan) -> list[OpenmqAccount]:
    """Read the lines of passwd. Raises SourceError."""
    plan.change_detector.look(file)
    accounts = []
    content = read_settings(file).decode("utf-8", "replace")
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        parts = line.split(":")
        if len(parts) < 2 or not parts[0] or not _HASH.match(parts[1]):
            raise Damage(f"{file}, line {number}: this is no account: name:hash:group:active")
        name, digest, group, active = (*parts, "", "")[:4]
        accounts.append(OpenmqAccount(name, digest, group.strip(), active == "1"))
    return accounts


class AccessRules:
    """Rules of accesscontrol.properties.

    named      destinations that rules name, without wildcards of topics
    wildcards  rules for topics by wildcard
    """

    def __init__(self, values: dict[str, SourceSetting]) -> None:
        self._names = {
            key: {part.strip() for part in given.value.split(",")} for key, given in values.items()
        }
        self.named: set[Address] = set()
        self.wildcards: list[str] = []
        for key in sorted(values):
            if match := _RULE.match(key):
                kind, name = Kind[match[1].upper()], match[2]
                if not set(name) & set("*>"):
                    self.named.add(Address(kind, name))
                elif kind is Kind.TOPIC and name != ALL:
                    self.wildcards.append(key)

    def allows(self, account: OpenmqAccount, *rules: str) -> bool:
        """Return whether the last decision of these rules is allow; the general rules come
        first."""
        verdict = False
        subjects = (("group", ALL), ("group", account.group), ("user", ALL), ("user", account.name))
        for rule in rules:
            for sort, name in subjects:
                allowed = name in self._names.get(f"{rule}.allow.{sort}", ())
                denied = name in self._names.get(f"{rule}.deny.{sort}", ())
                if name and allowed != denied:
                    verdict = allowed
        return verdict

    def may(self, account: OpenmqAccount, kind: Kind, name: str, operation: str) -> bool:
        """Return whether the user may perform the operation on a destination; ALL = one that no
        rule names."""
        sort = kind.name.lower()
        return self.allows(account, f"{sort}.*.{operation}", f"{sort}.{name}.{operation}")


def read_rules(file: Path, plan: Plan) -> AccessRules:
    """Read the rules. Raises SourceError."""
    values = read_properties(file, plan)
    version = values.get("version")
    if version is None or version.value != VERSION:
        raise Damage(f"{file}: its version is not {VERSION}")
    return AccessRules(values)


def add_accounts(plan: Plan, accounts: list[OpenmqAccount], rules: AccessRules | None) -> None:
    """Add users to the plan. Without rules everyone may do everything except administer."""
    now = int(time.time())
    known = {*plan.destinations, *plan.counts} | (rules.named if rules else set())
    for rule in rules.wildcards if rules else ():
        plan.leave("permission", rule, "a rule for topics by wildcard; see `sluicemq permissions`")
    for account in accounts:
        if not account.active:
            plan.leave("user", account.name, "it is not active")
        elif not is_user_name(account.name):
            plan.leave("user", account.name, "a name has 1 to 64 letters, digits and - _ . @")
        else:
            record = UserRecord(
                digest=account.digest,
                superuser=(
                    rules.allows(account, "connection.*", "connection.ADMIN")
                    if rules
                    else account.group == ADMIN
                ),
                permissions=tuple(_permissions(plan, account, rules, known)),
                created=now,
                updated=now,
            )
            plan.users.append(NewUser(account.name, record))


def _permissions(
    plan: Plan, account: OpenmqAccount, rules: AccessRules | None, known: set[Address]
) -> list[Permission]:
    if rules is None:
        return [Permission(ALL, frozenset({*_OPERATIONS.values(), Operation.CREATE}))]
    if not rules.allows(account, "connection.*", "connection.NORMAL"):
        plan.leave(
            "permission",
            f"connection.NORMAL of {account.name}",
            "this user may not connect as a client; here it has no permission instead",
        )
        return []
    everywhere = set()
    if all(rules.allows(account, f"{sort}.create") for sort in ("queue", "topic")):
        everywhere.add(Operation.CREATE)
    named: dict[str, set[Operation]] = {}
    for word, operation in _OPERATIONS.items():
        if _everywhere(rules, account, word, known):
            everywhere.add(operation)
            continue
        for name in sorted({address.name for address in known}):
            kinds = [address.kind for address in known if address.name == name]
            if all(rules.may(account, kind, name, word) for kind in kinds) and is_pattern(name):
                named.setdefault(name, set()).add(operation)
    if named:
        plan.notes.append(
            f"{account.name} may not do everything everywhere: each destination known by now is "
            "permitted by itself, and one that comes later is not (`sluicemq permissions grant`)"
        )
    for name in list(named)[MOST_NAMED:]:
        plan.leave("permission", f"{account.name} on {name}", "there are too many")
        del named[name]
    found = [Permission(name, frozenset(operations)) for name, operations in named.items()]
    return [Permission(ALL, frozenset(everywhere)), *found] if everywhere else found


def _everywhere(rules: AccessRules, account: OpenmqAccount, word: str, known: set[Address]) -> bool:
    """Return whether the user may perform the operation on all destinations, present and future.
    Topics are never browsed, so browsing depends on queues only."""
    kinds = [Kind.QUEUE] if word == "browse" else list(Kind)
    return (
        all(rules.may(account, kind, ALL, word) for kind in kinds)
        and all(
            rules.may(account, each.kind, each.name, word) for each in known if each.kind in kinds
        )
        and not any(f".{word}.deny." in rule for rule in rules.wildcards)
    )
