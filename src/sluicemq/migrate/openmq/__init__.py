"""Open MQ: files of a broker's instance directory.

<instance>/props/config.properties      settings.py
           etc/passwd                   settings.py
           etc/accesscontrol.properties settings.py
           lock                         there while the broker runs
           fs370/destination            store.py     over records.py
                 interest
                 message/<destination>/vrfile, 0, 1, …
                 txnlog                 transactions.py
                 incompleteTxnStore/vrfile, 0, 1, …
                 txn, txnack            (without the new transaction log)
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sluicemq.migrate.configuration import SourceSettings
from sluicemq.migrate.openmq.settings import (
    add_accounts,
    is_true,
    migrate_settings,
    read_accounts,
    read_properties,
    read_rules,
)
from sluicemq.migrate.openmq.store import KIND, read_store
from sluicemq.migrate.plan import Plan
from sluicemq.migrate.source_files import Damage, SourceError

PROPERTIES: Final = Path("props", "config.properties")
INSTANCES: Final = "instances"
LOCK: Final = "lock"
ETC: Final = "etc"


def inspect_source(source: Path, ignore_lock: bool, skip_damaged: bool) -> Plan:
    """Read the instance into a plan.

    ignore_lock   a lock file is left over from a broker that was killed
    skip_damaged  list what is damaged in the store, and go on

    Raises SourceError.
    """
    instance = locate(source)
    lock = instance / LOCK
    if lock.exists() and not ignore_lock:
        raise SourceError(
            f"{lock}: the broker runs. Stop it first (imqcmd shutdown bkr); if it was killed, "
            "start and stop it once, or say --ignore-lock"
        )
    plan = Plan(kind=KIND, place=instance)
    file = instance / PROPERTIES
    found = read_properties(file, plan) if file.exists() else {}
    settings = SourceSettings(
        plan, {key: each._replace(value=each.value.strip() or None) for key, each in found.items()}
    )

    def faults(fault: Damage) -> None:
        if not skip_damaged:
            # no Damage, which an outer step would handle by this policy again
            raise SourceError(f"{fault}. With --skip-damaged it is listed and left behind")
        plan.leave("damage", "in the store", str(fault))

    if settings.take("imq.persist.store", str, "file") == "file":
        read_store(plan, instance, faults)
    else:
        plan.leave(
            "messages",
            "all",
            "they are in a database; only the file store is read. Have consumers empty the "
            "destinations before you move, or send what is left again",
        )
    _read_access(settings, instance)
    migrate_settings(settings, instance.name, guarded=bool(plan.users))
    return plan


def locate(source: Path) -> Path:
    """Return the instance's directory: `source` itself, the only instance in the directory of all
    instances, or the one of its config.properties. Raises SourceError."""
    place = source.resolve()
    if place.is_file():
        if place.parts[-2:] != PROPERTIES.parts:
            raise SourceError(
                f"{source}: give the directory of the instance, or its {PROPERTIES}: the store and "
                "the users lie beside that"
            )
        return place.parent.parent
    if not place.is_dir():
        raise SourceError(f"{source}: there is no such file or directory")
    if (place / PROPERTIES).exists() or any(place.glob("fs3?0")):
        return place
    above = place / INSTANCES if (place / INSTANCES).is_dir() else place
    found = sorted(each.parent.parent for each in above.glob(f"*/{PROPERTIES}"))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(each.name for each in found)
        raise SourceError(f"{source}: there are several instances ({names}); name one of them")
    raise SourceError(f"{source}: this is no instance of Open MQ: it has no {PROPERTIES}")


def _read_access(settings: SourceSettings, instance: Path) -> None:
    plan = settings.plan
    kind = settings.take("imq.authentication.type", str, "digest")
    repository = settings.take(f"imq.authentication.{kind}.user_repository", str, "file")
    if repository != "file":
        plan.leave("users", f"of the {repository} repository", "add them with `sluicemq users add`")
        return
    passwd = _file(settings, instance, "imq.user_repository.file", "passwd")
    if passwd is None:
        return
    rules = None
    if settings.take("imq.accesscontrol.enabled", is_true, True):
        prefix = "imq.accesscontrol.file"
        access_control = _file(settings, instance, prefix, "accesscontrol.properties")
        if access_control is None:
            return  # without the rules the users' rights are unknown
        rules = read_rules(access_control, plan)
    add_accounts(plan, read_accounts(passwd, plan), rules)


def _file(settings: SourceSettings, instance: Path, prefix: str, usual: str) -> Path | None:
    """Return a file of the instance's own directory, or of the configured one."""
    plan = settings.plan
    configured = settings.take(f"{prefix}.dirpath", str, "")
    directory = instance / ETC
    if configured and "${" not in configured:
        directory = Path(configured)
    elif configured:
        plan.leave("setting", f"the directory {configured}", f"{directory} is used instead")
    file = directory / settings.take(f"{prefix}.filename", str, usual)
    if file.exists():
        return file
    plan.leave("users", str(file), "there is no such file; add users with `sluicemq users add`")
    return None
