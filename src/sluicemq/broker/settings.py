"""Settings of the engine as a whole; those of one destination are in the model."""

from __future__ import annotations

from typing import Any

from sluicemq.broker.selectors import SelectorLimits
from sluicemq.model.destination import differing
from sluicemq.model.engine_options import EngineOptions


class EngineSettings(EngineOptions, frozen=True, kw_only=True):
    """Settings of the whole broker.

    message_overhead  bytes added to body and headers when the memory of a message is counted
    delivery_overhead bytes counted for each further delivery of a message that is not journaled
    chunk_deliveries  deliveries in a chunk of a backlog
    rescan_rate       deliveries that a subscription matches against new selectors per ms. Reading
                      and matching one takes some 5 µs: two thirds of the time remain for other work
    rescan_first_slice  deliveries matched at once when a selector is new
    default_fields    names of the settings in `default_destination` that were set explicitly,
                      besides those that differ from their default values
    """

    message_overhead: int = 512
    delivery_overhead: int = 160
    chunk_deliveries: int = 1024
    rescan_rate: int = 60
    rescan_first_slice: int = 500
    default_fields: frozenset[str] = frozenset()

    @property
    def selectors(self) -> SelectorLimits:
        """Limits of one selector."""
        return SelectorLimits(self.max_selector_bytes, self.max_selector_nodes)

    @property
    def given_defaults(self) -> dict[str, Any]:
        """Explicitly set settings of automatically created destinations, by name."""
        names = differing(self.default_destination) | self.default_fields
        return {name: getattr(self.default_destination, name) for name in names}
