"""msglite: queues, and questions with answers, in lines that a person can type."""
