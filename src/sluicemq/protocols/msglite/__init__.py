"""msglite: a protocol of text lines, with queues and queries."""
