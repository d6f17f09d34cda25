"""The engine against its naive model, step by random step (machines.py)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.broker.machines import QueueMachine, TopicMachine, TransactionMachine

TestQueues = QueueMachine.TestCase
TestTopics = TopicMachine.TestCase
TestTransactions = TransactionMachine.TestCase

for case in (TestQueues, TestTopics, TestTransactions):
    case.settings = settings(
        max_examples=250,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
