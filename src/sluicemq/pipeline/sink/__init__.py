"""Queues and topics as a Spark sink that writes each partition of a batch exactly once."""
