"""SluiceMQ: one message broker for PHPMQ, VibeMQ, Open MQ's JMS protocol and msglite."""

__version__ = "0.1.0"
