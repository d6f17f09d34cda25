"""Samples of the broker's figures over the last hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluicemq.broker import Broker


class History:
    """Rings of samples; fed once in a housekeeping second."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
