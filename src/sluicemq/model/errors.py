"""Hierarchy of the errors raised by SluiceMQ.

SluiceError
├── BrokerError                  the broker refuses an operation
│   ├── DestinationNotFound      the destination does not exist and may not be created by use
│   ├── DestinationConflict      it exists with another kind, settings or owner
│   ├── DestinationPrivate       it serves only the connection that created it, or the broker itself
│   ├── DestinationInUse         it has consumers and cannot be deleted
│   ├── SubscriptionInUse        it has its largest number of consumers, or other settings
│   ├── LimitExceeded            a limit on messages, bytes, consumers or destinations
│   │   ├── MessageTooLarge
│   │   ├── QuotaExceeded        a user or a connection has reached its quota
│   │   └── LowDiskSpace         the journal's disk is nearly full; later it may be accepted
│   ├── TransactionError         the transaction's state does not allow the operation
│   │   └── TransactionEnded
│   ├── BatchConflict            a repeated batch differs from the first one
│   ├── BatchRefused             messages of a batch are refused, so none has been published
│   ├── ActionRefused            a message's state does not permit moving, deleting …
│   ├── SelectorError            the text of a message selector is invalid
│   └── BrokerStopping           the broker no longer accepts messages
├── AccessError                  authentication or authorization failed
│   ├── AuthenticationMissing    the client sent no credentials
│   ├── AuthenticationFailed     the credentials are wrong
│   │   └── TooManyFailures      not verified: too many logins have failed before
│   ├── LoginBusy                too many logins wait for verification
│   ├── AccessDenied             the user lacks the permission
│   ├── PasswordRefused          a new password is invalid or too short
│   ├── TooManyConnections       the user or the address has reached its limit
│   ├── UserExists
│   ├── UserNotFound
│   ├── RoleExists
│   ├── RoleNotFound
│   └── TokenNotFound
├── ProtocolError                a peer violated its wire protocol
│   └── FrameTooLarge            it announced a frame above the configured limit
├── JournalError
│   ├── JournalDamaged           records are damaged in a way that no crash explains
│   ├── JournalFailed            a write or fdatasync failed: fatal
│   ├── JournalLocked            another process has the data directory open
│   └── RecordNotFound           the record does not exist, or its segment is deleted
├── ConfigurationError           a setting is invalid or contradicts another
├── AddressUnavailable           an address cannot be listened on at present
└── ClientError                  raised by the client libraries
    ├── ConnectionLost           the broker closed the connection, or it failed
    ├── RequestRefused           the broker responded with an error of the protocol
    └── RequestTimeout           no response within the given time
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

ErrorT = TypeVar("ErrorT", bound=BaseException)


class SluiceError(Exception):
    """Root of all errors raised on purpose."""


class BrokerError(SluiceError):
    """The broker refuses an operation; the connection remains usable."""


class DestinationNotFound(BrokerError):
    """The destination does not exist and may not be created automatically."""


class DestinationConflict(BrokerError):
    """The destination exists with another kind, other settings or another owner."""


class DestinationPrivate(BrokerError):
    """The destination does not serve this client.

    It is temporary, and only the connection that created it may consume from it; or it is the
    broker's own, and no client may publish to it.
    """


class DestinationInUse(BrokerError):
    """The destination still has consumers."""


class SubscriptionInUse(BrokerError):
    """The subscription has its largest number of consumers, or consumers and other settings."""


class LimitExceeded(BrokerError):
    """A limit on messages, bytes, consumers or destinations is reached."""


class MessageTooLarge(LimitExceeded):
    """The body is larger than the destination accepts."""


class QuotaExceeded(LimitExceeded):
    """A user or a connection has reached its quota of destinations or subscriptions."""


class LowDiskSpace(LimitExceeded):
    """The file system has too little free space for the message or the change."""


class TransactionError(BrokerError):
    """The transaction is not in a state that allows the operation."""


class TransactionEnded(TransactionError):
    """The transaction has been committed or rolled back."""


class BatchConflict(BrokerError):
    """A part of a batch is repeated with other rows, or arrives out of order."""


class Refusal(NamedTuple):
    """Refused message of a batch.

    row      index of the message, from 0
    error    reason of the refusal
    is_temporary  True if the broker's present state is the reason: a later attempt may succeed
    """

    row: int
    error: BrokerError
    is_temporary: bool


class BatchRefused(BrokerError):
    """Messages of a batch are refused, so none of it has been published."""

    def __init__(self, refused: list[Refusal], count: int) -> None:
        """Describe the refusals, at least one, of a batch of `count` messages."""
        first = refused[0]
        super().__init__(
            f"{len(refused)} of {count} messages are refused; the first, at {first.row}: "
            f"{first.error}"
        )
        self.refused = refused


class ActionRefused(BrokerError):
    """The state of a message does not permit an action. `reason` is a code for programs."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SelectorError(BrokerError):
    """The text of a message selector is invalid; the error states the expected text and the
    position.

    position  0-based offset in characters
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class BrokerStopping(BrokerError):
    """The broker is shutting down and accepts no more messages."""


class AccessError(SluiceError):
    """Authentication or authorization failed; the text may be sent to the client."""


class AuthenticationMissing(AccessError):
    """The client must authenticate and has not."""


class AuthenticationFailed(AccessError):
    """The credentials are wrong or came too often; the text does not state which part is wrong."""


class TooManyFailures(AuthenticationFailed):
    """Logins are refused for `retry_after` seconds (>= 1), because too many have failed."""

    def __init__(self, subject: str, retry_after: int) -> None:
        """`subject` names the logins that are refused, such as "for this user from this
        address".
        """
        super().__init__(f"too many failed logins {subject}; try again in {retry_after} s")
        self.retry_after = retry_after


class LoginBusy(AccessError):
    """The queue of logins waiting for verification is full."""

    def __init__(self) -> None:
        super().__init__("the server is busy with other logins; try again")


class AccessDenied(AccessError):
    """The user lacks the permission for the operation."""


class PasswordRefused(AccessError):
    """A new password is invalid or too short; the text does not contain it."""


class TooManyConnections(AccessError):
    """The user or the address has the largest permitted number of connections."""


class UserExists(AccessError):
    """A user of that name exists already."""


class UserNotFound(AccessError):
    """User not found."""


class RoleExists(AccessError):
    """A role of that name exists already."""


class RoleNotFound(AccessError):
    """Role not found."""


class TokenNotFound(AccessError):
    """The user has no token of that id."""


class ProtocolError(SluiceError):
    """The peer violated its wire protocol; the text describes the violation."""


class FrameTooLarge(ProtocolError):
    """The peer announced a frame, line or header above the configured limit."""


class JournalError(SluiceError):
    """The journal cannot perform the operation."""


class JournalDamaged(JournalError):
    """Records are damaged in a way that no crash explains; the text states segment and offset."""


class JournalFailed(JournalError):
    """A write or fdatasync failed. The broker must not acknowledge messages any more."""


class JournalLocked(JournalError):
    """Another process has the data directory open."""


class RecordNotFound(JournalError):
    """No record has that sequence number, or its segment has been removed."""


class ConfigurationError(SluiceError):
    """A setting is invalid or contradicts another; the text names the setting and its source."""


class AddressUnavailable(SluiceError):
    """An address cannot be listened on at present, such as one that another program uses."""


class ClientError(SluiceError):
    """Root of the errors raised by the client libraries."""


class ConnectionLost(ClientError):
    """The broker closed the connection, or the connection failed."""


class RequestRefused(ClientError):
    """The broker responded with an error of the protocol."""


class RequestTimeout(ClientError):
    """The broker did not respond within the given time."""


def without_traceback(error: ErrorT) -> ErrorT:
    """Return the error without its traceback and context.

    Required before an error is stored: the frames of a traceback refer to the object that stores
    the error, and to the data that caused it.
    """
    error.__context__ = None
    return error.with_traceback(None)
