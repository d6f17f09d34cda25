"""Client ids in use on a broker, and what one may be.

A client id belongs to one connection, or to several that all say JMQShare; with a JMQNamespace it
is shared between namespaces, but within one there is only one. (Protocol specification,
SET_CLIENTID.) Connections that share one are of the same user, superusers excepted. While nobody
has it, it belongs to the user who owns its durable subscriptions (subscriptions.py). `${u}` at the
beginning stands for the user's name.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sluicemq.model.access import Identity
from sluicemq.protocols.jmq.packets import RejectedRequest, Status

MAX_CLIENT_ID: Final = 1024
"""Characters."""
_USER: Final = "${u}"
_NO_ID: Final = "${u:"
_NO_PART: Final = "${%%}"


class Holder(NamedTuple):
    """How a connection of that user has a client id. `namespace` is "" without one."""

    shared: bool
    namespace: str
    user: str


class ClientIds:
    """See the module. Connections are known by their numbers."""

    __slots__ = ("_held", "_holders")

    def __init__(self) -> None:
        self._holders: dict[str, dict[int, Holder]] = {}
        self._held: dict[int, str] = {}

    def take(
        self, connection: int, client_id: str, identity: Identity, *, shared: bool, namespace: str
    ) -> None:
        """Give the connection this client id instead of the one it has.

        Raises Refused: CONFLICT.
        """
        if not shared:
            namespace = ""
        for other, holder in self._holders.get(client_id, {}).items():
            if other == connection:
                continue
            of_another = holder.user != identity.name and not identity.superuser
            if not shared or not holder.shared or of_another:
                raise in_use(client_id)
            if namespace and holder.namespace in ("", namespace):
                where = f"the namespace {namespace}" if holder.namespace else "no namespace"
                raise RejectedRequest(
                    Status.CONFLICT, f"the client id {client_id} is in use in {where}"
                )
        self.release(connection)
        self._holders.setdefault(client_id, {})[connection] = Holder(
            shared, namespace, identity.name
        )
        self._held[connection] = client_id

    def release(self, connection: int) -> None:
        """The connection has no client id any more."""
        client_id = self._held.pop(connection, None)
        if client_id is not None:
            holders = self._holders[client_id]
            del holders[connection]
            if not holders:
                del self._holders[client_id]


def in_use(client_id: str) -> RejectedRequest:
    """Return the refusal of a client id that another connection has, or that another user owns."""
    return RejectedRequest(Status.CONFLICT, f"the client id {client_id} is in use")


def expanded(client_id: str, user: str) -> str:
    """The client id that is meant. Refused: BAD_REQUEST."""
    if client_id.startswith(_USER):
        client_id = user + client_id.removeprefix(_USER)
    unusable = (
        not client_id.strip()
        or len(client_id) > MAX_CLIENT_ID
        or client_id.startswith(_NO_ID)
        or _NO_PART in client_id
    )
    if unusable:
        raise RejectedRequest(Status.BAD_REQUEST, f"{client_id[:80]!r} cannot be a client id")
    return client_id
