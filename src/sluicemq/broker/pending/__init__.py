"""Pending queues: the deliveries of a subscription that wait for a consumer."""
