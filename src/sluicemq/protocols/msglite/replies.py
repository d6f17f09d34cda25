"""Reply addresses: unpredictable names in a format like the original server's.

    4C1E0F2A.1F0D3B...   unix seconds at which the broker started, a dot, and a counter from 1
                         followed by 24 digits that depend on it and on a secret; all in upper-case
                         hex digits

One counter serves queries and the HTTP gateway of one broker. The secret lets the broker
distinguish issued addresses from forged ones without storing any.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import Final

from sluicemq.broker import Broker, Destination
from sluicemq.model.destination import Address, Kind

_HEX: Final = b"0123456789ABCDEF"
_LONGEST_COUNTER: Final = 16
"""Maximum length in hex digits."""
_TAG_BYTES: Final = 12
"""Size of the unpredictable part: 96 bits."""
_TAG_DIGITS: Final = 2 * _TAG_BYTES


class ReplyAddresses:
    """Creates reply addresses. Each is a temporary queue that lives as long as its request."""

    __slots__ = ("_issued", "_key", "_prefix")

    def __init__(self, started: int) -> None:
        """`started` is wall ms."""
        self._prefix = b"%X." % (started // 1000)
        self._key = secrets.token_bytes(32)
        self._issued = 0

    def create(self, broker: Broker, owner: object, creator: str | None) -> Destination:
        """Create a temporary queue, which the caller must delete.

        Only `owner` may consume from it; if that is this object, any msglite client that knows the
        address may. It counts against the quota of `creator` (Identity.creator). Raises
        LimitExceeded.
        """
        self._issued += 1
        name = self._prefix + self._digits(b"%X" % self._issued)
        return broker.destinations.declare(
            Address(Kind.QUEUE, name.decode()), owner=owner, creator=creator
        )

    def issued(self, address: bytes) -> bool:
        """Return whether `create` has issued this address."""
        if not address.startswith(self._prefix):
            return False
        digits = address[len(self._prefix) :]
        counter = digits[:-_TAG_DIGITS]
        if not 0 < len(counter) <= _LONGEST_COUNTER or digits.translate(None, _HEX):
            return False
        return secrets.compare_digest(digits, self._digits(counter))

    def _digits(self, counter: bytes) -> bytes:
        tag = blake2b(counter, digest_size=_TAG_BYTES, key=self._key).hexdigest()
        return counter + tag.upper().encode()
