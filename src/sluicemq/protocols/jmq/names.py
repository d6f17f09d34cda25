"""Names of destinations, as JMQ clients say them.

The Java client takes no name that is not a Java identifier, with dots; only of temporary
destinations it takes names with `temporary_destination://`. It looks at the names in messages, too.
The queue `orders-eu` is `orders_HYPHEN_eu` to JMQ clients (model/identifiers.py).
"""

from __future__ import annotations

from sluicemq.model.destination import is_temporary
from sluicemq.model.identifiers import from_identifier, to_identifier


def read_name(name: str) -> str:
    """Return the broker's name of a destination, given the client's."""
    return name if is_temporary(name) else from_identifier(name)


def format_name(name: str) -> str:
    """Return the name for clients; `read_name` is the inverse."""
    return name if is_temporary(name) else to_identifier(name, dotted=True)
