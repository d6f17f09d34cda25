"""Statuses of rejected requests, by error.

| error                         | status                                                      |
|-------------------------------|-------------------------------------------------------------|
| Refused                       | its own                                                     |
| AccessDenied                  | 403 FORBIDDEN                                               |
| DestinationNotFound           | 404 NOT_FOUND                                               |
| SubscriptionNotFound          | 404 NOT_FOUND                                               |
| DestinationConflict           | 409 CONFLICT                                                |
| DestinationPrivate            | 405 NOT_ALLOWED                                             |
| DestinationInUse              | 409 CONFLICT                                                |
| SubscriptionInUse             | 409 CONFLICT                                                |
| SelectorError                 | 400 BAD_REQUEST                                             |
| MessageTooLarge               | 423 ENTITY_TOO_LARGE                                        |
| LimitExceeded                 | 414 RESOURCE_FULL                                           |
| TransactionError              | 412 PRECONDITION_FAILED                                     |
| BrokerStopping                | 503 UNAVAILABLE                                             |
| ProtocolError                 | 400 BAD_REQUEST                                             |
| another BrokerError           | 500 ERROR                                                   |

PREPARE and COMMIT of a transaction that has failed (branches.py) are refused with 412
PRECONDITION_FAILED, as every step is that is not legal in the transaction's state (xa.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sluicemq.model.errors import (
    AccessDenied,
    AccessError,
    BrokerError,
    BrokerStopping,
    DestinationConflict,
    DestinationInUse,
    DestinationNotFound,
    DestinationPrivate,
    LimitExceeded,
    LoginBusy,
    MessageTooLarge,
    ProtocolError,
    SelectorError,
    SluiceError,
    SubscriptionInUse,
    SubscriptionNotFound,
    TooManyConnections,
    TooManyFailures,
    TransactionError,
)
from sluicemq.protocols.jmq.packets import Status

LONGEST_REASON: Final = 1000
"""Maximum length of JMQReason in characters."""


class RejectedRequest(BrokerError):
    """Rejected request.

    The reply contains `status`, the text as JMQReason, and `properties`.
    """

    def __init__(
        self, status: Status, why: str, properties: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(why)
        self.status = status
        self.properties = properties or {}


ANSWERED: Final = (BrokerError, AccessDenied, ProtocolError)
"""Errors of a request that the session answers; the connection stays open."""

_STATUSES: Final[tuple[tuple[type[SluiceError], Status], ...]] = (
    (AccessDenied, Status.FORBIDDEN),
    (DestinationNotFound, Status.NOT_FOUND),
    (SubscriptionNotFound, Status.NOT_FOUND),
    (DestinationConflict, Status.CONFLICT),
    (DestinationPrivate, Status.NOT_ALLOWED),
    (DestinationInUse, Status.CONFLICT),
    (SubscriptionInUse, Status.CONFLICT),
    (SelectorError, Status.BAD_REQUEST),
    (MessageTooLarge, Status.ENTITY_TOO_LARGE),
    (LimitExceeded, Status.RESOURCE_FULL),
    (TransactionError, Status.PRECONDITION_FAILED),
    (BrokerStopping, Status.UNAVAILABLE),
    (ProtocolError, Status.BAD_REQUEST),
)


def status_of(error: SluiceError) -> Status:
    """Return the status of the reply to a request that raised the error."""
    if isinstance(error, RejectedRequest):
        return error.status
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    return Status.ERROR


_LOGIN_STATUSES: Final[tuple[tuple[type[AccessError], Status], ...]] = (
    (LoginBusy, Status.UNAVAILABLE),
    (TooManyConnections, Status.UNAVAILABLE),
    (TooManyFailures, Status.FORBIDDEN),
    (AccessDenied, Status.FORBIDDEN),
)


def login_status(error: AccessError | RejectedRequest) -> Status:
    """Return the status of AUTHENTICATE_REPLY: UNAVAILABLE if the broker is busy or the user has
    too many connections, FORBIDDEN if it is denied whatever the password is, else INVALID_LOGIN."""
    for kind, status in _LOGIN_STATUSES:
        if isinstance(error, kind):
            return status
    return Status.INVALID_LOGIN


def reply_properties(error: SluiceError) -> dict[str, object]:
    """Return the properties of that reply, without JMQStatus."""
    properties: dict[str, object] = {"JMQReason": str(error)[:LONGEST_REASON]}
    if isinstance(error, RejectedRequest):
        properties.update(error.properties)
    return properties
