"""Everything that SluiceMQ raises on purpose, as one tree.

SluiceError
├── BrokerError                  the broker refuses an operation
│   ├── DestinationNotFound      it does not exist and may not be created automatically
│   ├── DestinationConflict      it exists with another meaning (kind, settings, owner)
│   ├── DestinationInUse         consumers or producers keep it from being removed
│   ├── SubscriptionNotFound
│   ├── SubscriptionInUse        a durable or exclusive subscription has its consumers already
│   ├── LimitExceeded            a limit on messages, bytes, consumers or destinations
│   │   ├── MessageTooLarge
│   │   ├── QuotaExceeded        a user or a connection has used up its share
│   │   └── LowDiskSpace         the journal's disk is nearly full; later it may be accepted
│   ├── TransactionError         it is not in a state that allows the operation
│   │   ├── TransactionNotFound
│   │   └── TransactionEnded
│   ├── BatchConflict            a repeated batch is not what it was the first time
│   ├── BatchRefused             messages of a batch are refused, so none has been published
│   ├── ActionRefused            a message, as it is, cannot be moved, deleted …
│   ├── SelectorError            the text of a message selector is not one
│   └── BrokerStopping           the broker no longer accepts messages
├── AccessError                  who somebody is, or what they may do
│   ├── AuthenticationMissing    nothing was shown
│   ├── AuthenticationFailed     it was wrong
│   │   └── TooManyFailures      it was not looked at: too many logins have failed before
│   ├── LoginBusy                too many logins wait for their check
│   ├── AccessDenied             the user may not do that
│   ├── TooManyConnections       the user or the address has as many as it may have
│   ├── UserExists
│   └── UserNotFound
├── ProtocolError                a peer broke the rules of its wire protocol
│   └── FrameTooLarge            it announced more than the configured limit
├── JournalError
│   ├── JournalDamaged           records are damaged where no crash can explain it
│   ├── JournalFailed            a write or fdatasync failed: fatal
│   ├── JournalLocked            another process has the data directory open
│   └── RecordNotFound           no such record, or its segment is gone
├── ConfigurationError           a setting has no meaning or contradicts another
└── ClientError                  raised by the client libraries
    ├── ConnectionLost           the broker closed the connection, or it broke
    ├── RequestRefused           the broker answered with an error of the protocol
    └── RequestTimeout           no answer within the given time
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

ErrorT = TypeVar("ErrorT", bound=BaseException)


class SluiceError(Exception):
    """Root of all errors raised on purpose."""


class BrokerError(SluiceError):
    """The broker refuses an operation; the connection may go on."""


class DestinationNotFound(BrokerError):
    """The destination does not exist and may not be created automatically."""


class DestinationConflict(BrokerError):
    """The destination exists with another kind, other settings or another owner."""


class DestinationPrivate(BrokerError):
    """A temporary destination is received from only by the connection that created it."""


class DestinationInUse(BrokerError):
    """The destination still has consumers."""


class SubscriptionNotFound(BrokerError):
    """No subscription of that name."""


class SubscriptionInUse(BrokerError):
    """The subscription has all the consumers it may have."""


class LimitExceeded(BrokerError):
    """A limit on messages, bytes, consumers or destinations is reached."""


class MessageTooLarge(LimitExceeded):
    """The body is larger than the destination accepts."""


class QuotaExceeded(LimitExceeded):
    """A user or a connection has used up its share of destinations or subscriptions."""


class LowDiskSpace(LimitExceeded):
    """The file system of the journal has too little free space for what is to be stored."""


class TransactionError(BrokerError):
    """The transaction is not in a state that allows the operation."""


class TransactionNotFound(TransactionError):
    """No such transaction."""


class TransactionEnded(TransactionError):
    """It has been committed or rolled back."""


class BatchConflict(BrokerError):
    """A part of a batch that was written before comes again with other rows, or out of turn."""


class Refusal(NamedTuple):
    """One message of a batch that is refused.

    row      its place among the messages, from 0
    error    why
    passing  it is the present state of the broker, not the message: later it may be accepted
    """

    row: int
    error: BrokerError
    passing: bool


class BatchRefused(BrokerError):
    """Messages of a batch are refused, so none of it has been published."""

    def __init__(self, refused: list[Refusal], count: int) -> None:
        """`refused` is not empty; `count` messages there were in all."""
        first = refused[0]
        super().__init__(
            f"{len(refused)} of {count} messages are refused; the first, at {first.row}: "
            f"{first.error}"
        )
        self.refused = refused


class ActionRefused(BrokerError):
    """A message that is as it is cannot be moved, deleted or the like. `reason` is for programs."""

    def __init__(self, reason: str, said: str) -> None:
        super().__init__(said)
        self.reason = reason


class SelectorError(BrokerError):
    """The text of a message selector is not one: what was expected, and where.

    position  0-based offset in characters
    """

    def __init__(self, said: str, position: int) -> None:
        super().__init__(said)
        self.position = position


class BrokerStopping(BrokerError):
    """The broker is shutting down and takes no more messages."""


class AccessError(SluiceError):
    """Who somebody is, or what they may do; the text may be shown to the client."""


class AuthenticationMissing(AccessError):
    """The client has to say who it is, and has not."""


class AuthenticationFailed(AccessError):
    """What the client showed is wrong, or came too often; the text does not say which part."""


class TooManyFailures(AuthenticationFailed):
    """Logins are refused for `retry_after` seconds (>= 1), because too many have failed."""

    def __init__(self, subject: str, retry_after: int) -> None:
        """`subject` names whose logins are refused: "for this user from this address"."""
        super().__init__(f"too many failed logins {subject}; try again in {retry_after} s")
        self.retry_after = retry_after


class LoginBusy(AccessError):
    """The queue of logins that wait for their check is full."""

    def __init__(self) -> None:
        super().__init__("the server is busy with other logins; try again")


class AccessDenied(AccessError):
    """The user may not do that."""


class TooManyConnections(AccessError):
    """The user or the address has as many connections as it may have."""


class UserExists(AccessError):
    """There is a user of that name."""


class UserNotFound(AccessError):
    """There is no user of that name."""


class ProtocolError(SluiceError):
    """The peer broke the rules of its wire protocol; the text says how."""


class FrameTooLarge(ProtocolError):
    """The peer announced a frame, line or header above the configured limit."""


class JournalError(SluiceError):
    """The durable log cannot do what was asked."""


class JournalDamaged(JournalError):
    """Records are damaged where no crash can explain it; the text gives segment and offset."""


class JournalFailed(JournalError):
    """A write or fdatasync failed. Nothing may be acknowledged any more."""


class JournalLocked(JournalError):
    """Another process has the data directory open."""


class RecordNotFound(JournalError):
    """No record has that sequence number, or its segment has been removed."""


class ConfigurationError(SluiceError):
    """A setting has no meaning or contradicts another; the text names it and its source."""


class ClientError(SluiceError):
    """Root of what the client libraries raise."""


class ConnectionLost(ClientError):
    """The broker closed the connection, or it broke."""


class RequestRefused(ClientError):
    """The broker answered with an error of the protocol."""


class RequestTimeout(ClientError):
    """The broker did not answer within the given time."""


def without_traceback(error: ErrorT) -> ErrorT:
    """Return the error without its traceback and context. Required before an error is kept: the
    frames of a traceback refer to the object that keeps the error, and to the data it came from.
    """
    error.__context__ = None
    return error.with_traceback(None)
