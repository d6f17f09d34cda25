"""Broker engine: pure and synchronous. A Clock provides time, a Journal durability."""

from sluicemq.broker.batches import BatchAnswer
from sluicemq.broker.broker import Broker
from sluicemq.broker.clock import Clock, ManualClock
from sluicemq.broker.codec import BatchPart
from sluicemq.broker.consumer import Consumer, Sink, Window
from sluicemq.broker.delivery import Delivery
from sluicemq.broker.destination import Destination
from sluicemq.broker.pending_queue import Selector
from sluicemq.broker.selectors import compile_selector
from sluicemq.broker.settings import EngineSettings
from sluicemq.broker.subscription import Subscription
from sluicemq.broker.transaction import Transaction, TransactionState

__all__ = [
    "BatchAnswer",
    "BatchPart",
    "Broker",
    "Clock",
    "Consumer",
    "Delivery",
    "Destination",
    "EngineSettings",
    "ManualClock",
    "Selector",
    "Sink",
    "Subscription",
    "Transaction",
    "TransactionState",
    "Window",
    "compile_selector",
]
