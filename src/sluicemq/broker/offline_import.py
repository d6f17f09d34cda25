"""Import of messages and transactions into the journal of a stopped broker.

Nothing is published through the engine, which only provides the destinations, the subscriptions and
their numbers, so a million messages need no memory: they are appended as the engine would do, and
the broker recovers them at its next start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sluicemq.broker.codec import BatchPart, PreparedMessage, PreparedTransaction, encode

if TYPE_CHECKING:
    from sluicemq.broker.broker import Broker
    from sluicemq.journal import FileJournal
    from sluicemq.model.message import Message


class OfflineImport:
    """Appends units of messages and prepared transactions.

    The caller assigns the numbers of destinations before a unit begins, as that may append records
    of its own, and ends each unit with `end_unit`.
    """

    def __init__(self, broker: Broker, journal: FileJournal, writer: str) -> None:
        """Import into `journal`, which is that of `broker`.

        `writer` names the source in the BATCH_PART records that end the units.
        """
        self._journal = journal
        self._clock = broker.clock
        self._records = broker.core.records
        self._writer = writer

    def message(
        self, message: Message, destination: int, references: int, attempts: Mapping[int, int]
    ) -> int:
        """Append a message of the unit and return its sequence.

        `references` is the number of its subscriptions; `attempts` is the number of failed
        deliveries by the number of the subscription.
        """
        message.arrival = self._clock.wall
        sequence = self._journal.append_message(message, destination, references, False)
        for subscription, count in attempts.items():
            if count:
                self._records.attempts(subscription, [(sequence, count)], last=False)
        return sequence

    def prepared(
        self, xid: bytes, sends: Iterable[Message], acks: list[tuple[int, list[int]]]
    ) -> None:
        """Append a prepared transaction of the unit; `acks` are (subscription, sequences)."""
        messages = [PreparedMessage.of(message) for message in sends]
        payload = encode(PreparedTransaction(xid, messages, acks))
        self._records.prepared(payload, last=False)

    def end_unit(self, number: int, messages: int) -> None:
        """End a unit with its number and its number of messages, and wait until it is on disk."""
        self._records.batch_part(BatchPart(self._writer, number, 0, 0, True, 0, messages))
        self._journal.sync()
