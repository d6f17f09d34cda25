"""Reply addresses: names nobody has used before, in the spelling of the original server.

    4C1E0F2A.1F      unix seconds at which the broker started, a dot, a counter from 1;
                     both in upper-case hex digits

One counter serves queries and the HTTP gateway of one broker.
"""

from __future__ import annotations

from typing import Final

from sluicemq.broker import Broker, Destination
from sluicemq.model.destination import Address, Kind

_HEX: Final = b"0123456789ABCDEF"
_LONGEST_COUNTER: Final = 16


class ReplyAddresses:
    """See the module. Each address is a temporary queue, which lives as long as its request."""

    __slots__ = ("_issued", "_prefix")

    def __init__(self, started: int) -> None:
        """`started` is wall ms."""
        self._prefix = b"%X." % (started // 1000)
        self._issued = 0

    def create(self, broker: Broker) -> Destination:
        """A new temporary queue; whoever asked for it removes it. Raises LimitExceeded."""
        while True:
            self._issued += 1
            address = Address(Kind.QUEUE, (b"%b%X" % (self._prefix, self._issued)).decode())
            # somebody may have guessed the name and be waiting on it
            if broker.find(address) is None:
                return broker.declare(address, owner=self)

    def issued(self, address: bytes) -> bool:
        """Whether `create` has made this address, and not somebody else who likes hex digits."""
        if not address.startswith(self._prefix):
            return False
        digits = address[len(self._prefix) :]
        if not 0 < len(digits) <= _LONGEST_COUNTER or digits.translate(None, _HEX):
            return False
        return digits[:1] != b"0" and int(digits, 16) <= self._issued
