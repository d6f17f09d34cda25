"""Data model: messages, destinations and errors. Imports nothing else of SluiceMQ."""
