"""A broker on disk that can crash."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from sluicemq.broker import Broker, Destination, ManualClock, Subscription, Window
from sluicemq.broker.recovery import recover, snapshot
from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import Durability, Message
from tests.support.broker import Reader, TypeSelector

QUEUE = Address(Kind.QUEUE, "q")
TOPIC = Address(Kind.TOPIC, "t")


class DiskBroker:
    """A broker on disk. A crash loses all data that is not in its files."""

    options = JournalOptions()

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.copies = 0
        self.directory = root / "0"
        self.start()

    def start(self) -> None:
        self.journal = FileJournal.open(self.directory, self.options)
        self.broker = Broker(self.journal, self.clock, None, lambda text: TypeSelector(text[11:-1]))
        broker = self.broker
        self.journal.set_snapshot_source(lambda: snapshot(broker))
        self.recovered = recover(broker, self.journal.recovery)
        self.sync()

    def sync(self) -> None:
        """Run event loop iterations until all records are on disk and confirmed."""
        self.broker.flush()
        self.journal.sync()
        self.broker.flush()
        self.journal.sync()

    def seal(self) -> None:
        """Seal the segment, for which the journal takes a snapshot."""
        self.journal.seal()
        self.sync()

    def copy_directory(self) -> None:
        self.copies += 1
        self.directory = self.root / str(self.copies)
        shutil.copytree(self.journal.directory, self.directory)

    def crash(self) -> None:
        self.copy_directory()
        self.journal.close()
        self.start()

    def crash_when_durable(self) -> None:
        """Crash after the fdatasync, before the engine has handled its completion."""
        journal, commit, publisher = self.journal, self.broker.group_commit, self.broker.publisher

        def copy_and_continue(sequence: int) -> None:
            journal.observe(commit.on_durable, commit.on_written, publisher.on_space)
            self.copy_directory()
            commit.on_durable(sequence)

        journal.observe(copy_and_continue, commit.on_written, publisher.on_space)
        self.sync()
        self.journal.close()
        self.start()

    def queue(self, **settings: Any) -> Destination:
        return self.broker.destinations.declare(QUEUE, DestinationSettings(**settings))

    def send(
        self, destination: Destination, *bodies: str, durability: Durability = Durability.SYNC
    ) -> list[int]:
        messages = [
            Message(destination.address, body.encode(), durability=durability) for body in bodies
        ]
        for message in messages:
            assert self.broker.publish(destination, message)
        return [message.sequence for message in messages]

    def read(self, source: Subscription, credit: int = 100) -> Reader:
        reader = Reader(self.broker)
        reader.consumer = self.broker.attach(source, reader, Window(credit, True))
        return reader
