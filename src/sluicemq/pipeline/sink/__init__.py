"""Queues and topics as a sink of Spark: each partition of a batch is written exactly once."""
