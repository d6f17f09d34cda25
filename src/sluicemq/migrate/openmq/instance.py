"""Files of an instance's directory, combined into one plan."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sluicemq.migrate.openmq.access import add_accounts, read_accounts, read_rules
from sluicemq.migrate.openmq.messages import KIND
from sluicemq.migrate.openmq.properties import PropertyValue, parse
from sluicemq.migrate.openmq.settings import OpenmqSettings
from sluicemq.migrate.openmq.store import read_store
from sluicemq.migrate.plan import Plan
from sluicemq.migrate.source_files import Damage, SourceError, read_settings

PROPERTIES: Final = Path("props", "config.properties")
INSTANCES: Final = "instances"
LOCK: Final = "lock"
ETC: Final = "etc"


def inspect_source(source: Path, ignore_lock: bool, skip_damaged: bool) -> Plan:
    """Read the instance into a plan.

    killed        a lock file is left over from a broker that was killed
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
    values: dict[str, PropertyValue] = {}
    if file.exists():
        plan.change_detector.look(file)
        values = parse(read_settings(file), str(file))

    def faults(fault: Damage) -> None:
        if not skip_damaged:
            raise Damage(f"{fault}. With --skip-damaged it is listed and left behind")
        plan.leave("damage", "in the store", str(fault))

    settings = OpenmqSettings(plan, values, str(file))
    if settings.text("imq.persist.store", "file") == "file":
        read_store(plan, instance, faults)
    else:
        plan.leave(
            "messages",
            "all",
            "they are in a database; only the file store is read. Have consumers empty the "
            "destinations before you move, or send what is left again",
        )
    _read_access(plan, instance, settings)
    settings.transfer(instance.name, guarded=bool(plan.users))
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


def _read_access(plan: Plan, instance: Path, settings: OpenmqSettings) -> None:
    kind = settings.text("imq.authentication.type", "digest")
    repository = settings.text(f"imq.authentication.{kind}.user_repository", "file")
    if repository != "file":
        plan.leave("users", f"of the {repository} repository", "add them with `sluicemq users add`")
        return
    name = settings.text("imq.user_repository.file.filename", "passwd")
    accounts = _file(plan, instance, settings.text("imq.user_repository.file.dirpath"), name)
    if accounts is None:
        return
    rules = None
    if settings.text("imq.accesscontrol.enabled", "true").lower() == "true":
        name = settings.text("imq.accesscontrol.file.filename", "accesscontrol.properties")
        file = _file(plan, instance, settings.text("imq.accesscontrol.file.dirpath"), name)
        if file is None:
            return  # without the rules the users' rights are unknown
        rules = read_rules(file, plan)
    add_accounts(plan, read_accounts(accounts, plan), rules)


def _file(plan: Plan, instance: Path, configured: str, name: str) -> Path | None:
    """Return a file of the instance's own directory, or of the configured one."""
    directory = instance / ETC
    if configured and "${" not in configured:
        directory = Path(configured)
    elif configured:
        plan.leave("setting", f"the directory {configured}", f"{directory} is used instead")
    file = directory / name
    if file.exists():
        return file
    plan.leave("users", str(file), "there is no such file; add users with `sluicemq users add`")
    return None
