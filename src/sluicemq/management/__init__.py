"""Operations of the management API, declared apart from the code that carries them out.

operation      what a declaration consists of, and the pages of lists
broker         state, statistics, settings and audit log of the broker
destinations   queues, topics and dead-letter queues
messages       browsing, publishing, and actions on messages
clients        connections, subscriptions, consumers and transactions
users          users, roles, tokens and sessions
journal        segments, retention slots, backups and batches
settings       settings of the HTTP listeners that serve the operations

The services of `sluicemq.admin` and `sluicemq.security` implement the operations, and
`clients.management` calls them.
The package imports only the model, so that a client loads no broker.
"""
