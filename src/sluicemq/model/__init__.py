"""What a message and a destination are, and every error. Imports nothing else of SluiceMQ."""
