"""`sluicemq migrate …`: migration from Open MQ, VibeMQ and PHPMQ.

    source's files ──openmq/, vibemq/, phpmq.py──> Plan ──transfer.py──> journal, users
                                                    │
                                                    └──configuration.py──> sluicemq.toml

The source is read and never changed. Items that cannot be migrated are listed in the plan by name
and reason (`SkippedItem`), so that nothing is lost silently.
"""
