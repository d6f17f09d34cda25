"""Consuming by one connection: unacked messages by the client's token, pauses, automatic
acknowledgements.

    delivered ──written──> unacked ──acknowledgement of its token──> acknowledged
                  └──the client sends no acknowledgements──> sent ──> acknowledged
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from sluicemq.broker import Broker, Consumer, Delivery

CONGESTED: Final = 1
"""Reason for a pause: the client reads too slowly. Protocols add reasons from 2 on."""


_SPARE: Final = 64
"""Entries of ended deliveries that `Unacked.trim` tolerates."""

Token = TypeVar("Token")
Entry = TypeVar("Entry")


class Unacked(Generic[Token, Entry]):
    """Unacked deliveries by the token with which the client acknowledges them.

    A delivery may end or be requeued without notice; its entry stays until it is looked up or
    trimmed. Several entries may have the same token, as a message that was published twice.

    first  oldest entry of each token. The caller adds an entry with `setdefault` and, if its token
           has another one already, with `add_again`
    """

    __slots__ = ("_later", "_trim_at", "first")

    def __init__(self) -> None:
        self.first: dict[Token, Entry] = {}
        self._later: dict[Token, list[Entry]] = {}
        """Further entries of a token, oldest first."""
        self._trim_at = _SPARE

    def add_again(self, token: Token, entry: Entry) -> None:
        """Add a further entry of a token that is in `first`."""
        self._later.setdefault(token, []).append(entry)

    def take(self, token: Token) -> Entry | None:
        """Remove and return the oldest entry of a token; None without any."""
        entry = self.first.pop(token, None)
        if self._later:
            later = self._later.get(token)
            if later is not None:
                self.first[token] = later.pop(0)
                if not later:
                    del self._later[token]
        return entry

    def entries(self) -> Iterator[tuple[Token, Entry]]:
        """Yield all entries in the order in which they were added; later ones of a token last."""
        yield from self.first.items()
        for token, later in self._later.items():
            for entry in later:
                yield token, entry

    def trim(self, is_held: Callable[[Entry], bool]) -> None:
        """Keep only the entries that are held, if there are many more than last time."""
        if len(self.first) > self._trim_at:
            self.keep(is_held)

    def keep(self, is_held: Callable[[Entry], bool]) -> None:
        """Keep only the entries that are held."""
        kept = [item for item in self.entries() if is_held(item[1])]
        self.clear()
        for token, entry in kept:
            if self.first.setdefault(token, entry) is not entry:
                self.add_again(token, entry)
        self._trim_at = 2 * len(self.first) + _SPARE

    def clear(self) -> None:
        """Remove all entries. `first` stays the same object."""
        self.first.clear()
        self._later.clear()


class DeliveryPauses:
    """Reasons for which the broker delivers nothing to a client's consumer.

    reasons  bit mask, 0 = it delivers
    engines  the broker's consumers that the reasons concern
    """

    __slots__ = ("_broker", "engines", "reasons")

    def __init__(self, broker: Broker, reasons: int = 0) -> None:
        self._broker = broker
        self.reasons = reasons
        self.engines: list[Consumer] = []

    def add(self, engine: Consumer) -> None:
        """Apply the reasons to another consumer of the broker."""
        self.engines.append(engine)
        if self.reasons:
            self._broker.suspend(engine)

    def take(self) -> list[Consumer]:
        """Remove and return the consumers, which are about to be detached."""
        engines, self.engines = self.engines, []
        return engines

    def pause(self, reason: int) -> None:
        """Add a reason."""
        if not self.reasons:
            for engine in self.engines:
                self._broker.suspend(engine)
        self.reasons |= reason

    def resume(self, reason: int) -> None:
        """Remove a reason; deliveries go on without any."""
        if self.reasons:
            self.reasons &= ~reason
            if not self.reasons:
                for engine in self.engines:
                    self._broker.resume(engine)


class SentDeliveries:
    """Deliveries that are acknowledged once the operating system has accepted their bytes.

    unsent  those that are not sent yet; the caller adds what it writes
    """

    __slots__ = ("_broker", "_refill", "unsent")

    def __init__(self, broker: Broker, *, refill: bool) -> None:
        """`refill`: an acknowledgement restores credit, so that more may be dispatched."""
        self._broker = broker
        self._refill = refill
        self.unsent: list[tuple[Consumer, Delivery]] = []

    def acknowledge(self) -> list[tuple[Consumer, Delivery]]:
        """Acknowledge what has been sent, and return it."""
        unsent = self.unsent
        if unsent:
            self.unsent = []
            wake = self._refill
            broker = self._broker
            for consumer, delivery in unsent:
                if delivery.journaled:
                    wake = True
                broker.settle(consumer, delivery.sequence)
            if wake:
                # the flush of this event loop iteration has already run; the journal must not wait
                self._broker.wake()
        return unsent
