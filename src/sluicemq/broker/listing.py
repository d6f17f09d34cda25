"""What was in a subscription at one moment."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sluicemq.broker.delivery import DELAYED

if TYPE_CHECKING:
    from sluicemq.broker.delivery import Delivery
    from sluicemq.model.message import Message


class Listing:
    """Numbers of messages in queue order; each comes with the message itself if the journal does
    not have it, else it is to be fetched. Costs 8 bytes for one that is journaled, however long the
    line is; what has gone since is still listed."""

    __slots__ = ("_messages", "_sequences")

    def __init__(self, deliveries: Iterable[Delivery], steady: int) -> None:
        """Delayed deliveries and those that have expired by `steady` are left out."""
        self._sequences = array("Q")
        self._messages: dict[int, Message] = {}
        for delivery in deliveries:
            if delivery.state == DELAYED or (delivery.expires and delivery.expires <= steady):
                continue
            sequence = delivery.sequence
            self._sequences.append(sequence)
            if not delivery.journaled and delivery.message is not None:
                self._messages[sequence] = delivery.message

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, place: int) -> tuple[int, Message | None]:
        sequence = self._sequences[place]
        return sequence, self._messages.get(sequence)

    def __iter__(self) -> Iterator[tuple[int, Message | None]]:
        for sequence in self._sequences:
            yield sequence, self._messages.get(sequence)
