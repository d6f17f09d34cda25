"""Backups under load, with kill -9 of the broker or of the backup at random times: a finished
backup contains all messages confirmed before it began, each once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from sluicemq.cli.local import LocalBroker
from sluicemq.journal.backup import SLOT_PREFIX
from sluicemq.journal.slots import Slots
from sluicemq.journal.stored_backup import MANIFEST_NAME, restore, verify
from tests.faults.jmsload import END, JmsSender, acknowledge, send_confirmed, subscribe
from tests.faults.load import MAX_LEAD, Load, number_of
from tests.faults.plan import SMALL_SEGMENTS, seeded_random, size
from tests.faults.recorder import Recorder
from tests.protocols.jmq.raw import RawJmq

TURNS = size(3, 40)
LISTEN = ("phpmq://127.0.0.1:0", "jmq://127.0.0.1:0?services=jms")
VICTIMS = ("none", "broker", "backup", "both")
CLIENT_ACKNOWLEDGE = 2
BACKUP_SECONDS = 180


class FinishedBackup(NamedTuple):
    """A backup, and the numbers of messages confirmed before its start and sent at its end."""

    directory: Path
    confirmed: int
    sent: int


def test_kill_during_backups(tmp_path: Path) -> None:
    rng = seeded_random()
    broker = LocalBroker(tmp_path / "data", LISTEN, environment=SMALL_SEGMENTS)
    orders, churn = Recorder(), Recorder()
    finished: list[FinishedBackup] = []
    next_number = next_churn = 0
    with ExitStack() as stack:
        stack.callback(broker.stop)
        for iteration in range(TURNS):
            broker.start()
            orders.started(next_number)
            sender = JmsSender(broker.port("jmq"), next_number, orders, 300)
            load = Load(broker.port("phpmq"), next_churn, churn, rng, 1000, MAX_LEAD[0])
            time.sleep(rng.uniform(0.1, 0.4))
            confirmed = max(orders.confirmed_numbers, default=-1) + 1
            directory = tmp_path / f"backup-{iteration}"
            if _back_up(broker, directory, finished, rng, VICTIMS[iteration % len(VICTIMS)]):
                finished.append(FinishedBackup(directory, confirmed, sender.next))
            broker.kill()
            next_number, next_churn = _end(sender), load.end()
    assert finished
    assert "Traceback" not in broker.log.read_text()
    slots = Slots(tmp_path / "data" / "journal").list()
    assert all(name.startswith(SLOT_PREFIX) and slot.until for name, slot in slots.items())
    for backup in finished:
        _check(backup, orders, tmp_path / f"{backup.directory.name}-restored")


def _back_up(
    broker: LocalBroker,
    directory: Path,
    finished: list[FinishedBackup],
    rng: random.Random,
    victim: str,
) -> bool:
    """Run a backup and kill the victim; return whether the backup is complete."""
    command = [sys.executable, "-m", "sluicemq.cli", "backup", "create", str(directory)]
    command += ["--data-dir", str(broker.directory)]
    if finished and rng.random() < 0.5:
        command += ["--incremental-from", str(finished[-1].directory)]
    if rng.random() < 0.5:
        command += ["--hard-links"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        if victim != "none":
            time.sleep(rng.uniform(0.2, 1.2))
        if victim in ("broker", "both"):
            broker.kill()
        if victim in ("backup", "both"):
            process.kill()
        output, _ = process.communicate(timeout=BACKUP_SECONDS)
    finally:
        process.kill()
    is_complete = (directory / MANIFEST_NAME).exists()
    assert is_complete or process.returncode, output
    assert victim != "none" or is_complete, output
    return is_complete


def _end(sender: JmsSender) -> int:
    sender.stop.set()
    sender.finish()
    return sender.next


def _check(backup: FinishedBackup, orders: Recorder, target: Path) -> None:
    verdict = verify(backup.directory)
    assert not verdict.problems
    restore(backup.directory, target)
    with LocalBroker(target, LISTEN) as broker, RawJmq.login(broker.port("jmq")) as client:
        client.session = client.create_session(CLIENT_ACKNOWLEDGE)
        send_confirmed(client, [END])
        subscribe(client)
        numbers: list[int] = []
        while (message := client.receive()).body != END:
            numbers.append(number_of(message.body))
            acknowledge(client, [message], Recorder())
    assert numbers == sorted(set(numbers))
    assert not numbers or numbers[-1] < backup.sent
    # a prefix of the confirmed messages, which reaches at least to the start of the backup
    reaches = max(backup.confirmed, numbers[-1] + 1 if numbers else 0)
    missing = {n for n in orders.confirmed_numbers if n < reaches} - set(numbers)
    assert not missing
