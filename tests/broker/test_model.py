"""Comparison of the engine with its naive model in random steps (machines.py)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.broker.machines import BatchMachine, QueueMachine, TopicMachine, TransactionMachine

PROFILE = settings(
    max_examples=250,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

TestQueues = QueueMachine.TestCase
TestQueues.settings = PROFILE

TestTopics = TopicMachine.TestCase
TestTopics.settings = PROFILE

TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = PROFILE

TestBatches = BatchMachine.TestCase
TestBatches.settings = PROFILE
