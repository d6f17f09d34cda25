"""Broker engine: pure and synchronous. A Clock provides time, a Journal durability.

Other packages import from here only; the modules below are the engine's own.
"""

from typing import Final

from sluicemq.broker import broker
from sluicemq.broker.batches import BatchAnswer
from sluicemq.broker.broker import Broker
from sluicemq.broker.codec import BatchPart, describe
from sluicemq.broker.dead_letters import DeadLetterPolicy
from sluicemq.broker.operations import scan
from sluicemq.broker.pending.cursor import NO_END, Cursor
from sluicemq.broker.pending.entry import queue_order
from sluicemq.broker.recovery import OfflineImport, recover, snapshot
from sluicemq.broker.routing import Selector
from sluicemq.broker.scheduler import NEVER, Clock, Deadline, ManualClock, Scans, StartDeadline
from sluicemq.broker.selectors import (
    CompiledSelector,
    SelectorLimits,
    compile_selector,
    known_selector,
)
from sluicemq.broker.settings import EngineSettings
from sluicemq.broker.state import (
    Consumer,
    Delivery,
    Destination,
    Observer,
    Sink,
    Subscription,
    Window,
)
from sluicemq.broker.stats import DestinationStats, Traffic
from sluicemq.broker.subscription import ACKNOWLEDGED, REDELIVERED, RELEASED
from sluicemq.broker.transaction import Transaction, TransactionState

COMPILED: Final = broker.__file__.endswith(".so")
"""True if the modules named in setup.py are compiled."""

__all__ = [
    "ACKNOWLEDGED",
    "COMPILED",
    "NEVER",
    "NO_END",
    "REDELIVERED",
    "RELEASED",
    "BatchAnswer",
    "BatchPart",
    "Broker",
    "Clock",
    "CompiledSelector",
    "Consumer",
    "Cursor",
    "DeadLetterPolicy",
    "Deadline",
    "Delivery",
    "Destination",
    "DestinationStats",
    "EngineSettings",
    "ManualClock",
    "Observer",
    "OfflineImport",
    "Scans",
    "Selector",
    "SelectorLimits",
    "Sink",
    "StartDeadline",
    "Subscription",
    "Traffic",
    "Transaction",
    "TransactionState",
    "Window",
    "compile_selector",
    "describe",
    "known_selector",
    "queue_order",
    "recover",
    "scan",
    "snapshot",
]
