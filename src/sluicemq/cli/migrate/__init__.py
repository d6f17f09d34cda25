"""`sluicemq migrate …`: moving in from Open MQ, VibeMQ and PHPMQ.

    source's files ──openmq/, vibemq.py, phpmq.py──> Plan ──transfer.py──> journal, users
                                                      │
                                                      └──configuration.py──> sluicemq.toml

A source is read and never changed. What has no place here is in the plan too, by name and with the
reason (`SkippedItem`): nothing gets lost without a word.
"""
