"""Numbers of the protocol: packet types, flags, statuses, the values of properties, and the legal
steps of transactions.

Names are those of the JMQ protocol specification; where it and the released clients differ, the
numbers are those of the clients.

Legal steps and the statuses of the illegal ones: one table, from the specification and JTA's
XAResource. A local transaction has no Xid: it is started, and then ends.

                     START             END                       PREPARE   COMMIT     ROLLBACK
              NO    JOIN   RESUME  SUSPEND  SUCCESS  FAIL                ONE   TWO
              FLAGS                         ONEPHASE                     PHASE PHASE
    CREATED   STARTED
    STARTED   STARTED STARTED STARTED INCOMPL. COMPLETE FAILED  -        -     -      -
    INCOMPL.  -     -      STARTED INCOMPL. COMPLETE FAILED     -        -     -      ROLLEDBACK
    COMPLETE  STARTED STARTED -     -        COMPLETE -         PREPARED COMM. -      ROLLEDBACK
    FAILED    -     -      -       304      304      FAILED     -        -     -      ROLLEDBACK
    PREPARED  -     -      -       -        -        -          PREPARED -     COMM.  ROLLEDBACK
    COMMITTED -     -      -       -        -        -          -        COMM. COMM.  -
    ROLLEDB.  -     -      -       -        -        -          -        -     -      ROLLEDBACK
    TIMED_OUT 408 for everything

A dash is 500 for START, whose status must never be 409, and 412 otherwise. A repeated request with
the I bit, for a step that was already taken, is 304.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
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
    TooManyConnections,
    TooManyFailures,
    TransactionError,
)

MAGIC: Final = 469_754_818
VERSION: Final = 301
"""Packet version that is written; 301, 200 and 103 are read."""


class PacketType(IntEnum):
    """Type of a packet. An unknown type does not make a packet malformed."""

    TEXT_MESSAGE = 1
    BYTES_MESSAGE = 2
    MAP_MESSAGE = 3
    STREAM_MESSAGE = 4
    OBJECT_MESSAGE = 5
    MESSAGE = 6
    SEND_REPLY = 9
    HELLO = 10
    HELLO_REPLY = 11
    AUTHENTICATE = 12
    AUTHENTICATE_REPLY = 13
    ADD_CONSUMER = 14
    ADD_CONSUMER_REPLY = 15
    DELETE_CONSUMER = 16
    DELETE_CONSUMER_REPLY = 17
    ADD_PRODUCER = 18
    ADD_PRODUCER_REPLY = 19
    START = 20
    STOP = 22
    STOP_REPLY = 23
    ACKNOWLEDGE = 24
    ACKNOWLEDGE_REPLY = 25
    BROWSE = 26
    BROWSE_REPLY = 27
    GOODBYE = 28
    GOODBYE_REPLY = 29
    ERROR = 30
    REDELIVER = 32
    CREATE_DESTINATION = 34
    CREATE_DESTINATION_REPLY = 35
    DESTROY_DESTINATION = 36
    DESTROY_DESTINATION_REPLY = 37
    AUTHENTICATE_REQUEST = 38
    VERIFY_DESTINATION = 40
    VERIFY_DESTINATION_REPLY = 41
    DELIVER = 42
    DELIVER_REPLY = 43
    START_TRANSACTION = 44
    START_TRANSACTION_REPLY = 45
    COMMIT_TRANSACTION = 46
    COMMIT_TRANSACTION_REPLY = 47
    ROLLBACK_TRANSACTION = 48
    ROLLBACK_TRANSACTION_REPLY = 49
    SET_CLIENTID = 50
    SET_CLIENTID_REPLY = 51
    RESUME_FLOW = 52
    PING = 54
    PING_REPLY = 55
    PREPARE_TRANSACTION = 56
    PREPARE_TRANSACTION_REPLY = 57
    END_TRANSACTION = 58
    END_TRANSACTION_REPLY = 59
    RECOVER_TRANSACTION = 60
    RECOVER_TRANSACTION_REPLY = 61
    GENERATE_UID = 62
    GENERATE_UID_REPLY = 63
    FLOW_PAUSED = 64
    DELETE_PRODUCER = 66
    DELETE_PRODUCER_REPLY = 67
    CREATE_SESSION = 68
    CREATE_SESSION_REPLY = 69
    DESTROY_SESSION = 70
    DESTROY_SESSION_REPLY = 71
    INFO_REQUEST = 72
    INFO = 73
    DEBUG = 74
    GET_LICENSE = 76
    GET_LICENSE_REPLY = 77
    VERIFY_TRANSACTION = 78
    VERIFY_TRANSACTION_REPLY = 79


PAGE_VERIFY_TRANSACTION: Final = 80
"""VERIFY_TRANSACTION in the published protocol page. Open MQ does not use the number."""

LAST_MESSAGE_TYPE: Final = PacketType.MESSAGE.value
"""Packets from 1 to this type carry a message of an application."""

# Flags of a packet, by their letters in the specification:
#
#     Q  the destination is a queue         C  the consumer's or producer's flow is paused with
#     R  redelivered                           this packet
#     P  persistent                         B  defined, without a meaning
#     S  selectors processed; of no effect  Z  the body is compressed (zlib, RFC 1950)
#     A  a reply is expected                I  sent again, maybe a second time: must not be taken
#     L  the last of the browsed messages      twice
#        that were requested                W  the name is a wildcard
#     F  the connection's flow is paused
#        with this packet
#     T  transacted; of no effect
Q: Final = 0x0001
R: Final = 0x0002
P: Final = 0x0004
S: Final = 0x0008
A: Final = 0x0010
L: Final = 0x0020
F: Final = 0x0040
T: Final = 0x0080
C: Final = 0x0100
B: Final = 0x0200
Z: Final = 0x0400
I: Final = 0x0800  # noqa: E741 - the specification's letter
W: Final = 0x1000


class Status(IntEnum):
    """JMQStatus of a reply. Open MQ defines further ones, of HTTP, without using them."""

    OK = 200
    NOT_MODIFIED = 304
    BAD_REQUEST = 400
    FORBIDDEN = 403
    NOT_FOUND = 404
    NOT_ALLOWED = 405
    TIMEOUT = 408
    CONFLICT = 409
    GONE = 410
    PRECONDITION_FAILED = 412
    INVALID_LOGIN = 413
    RESOURCE_FULL = 414
    UNSUPPORTED_TYPE = 415
    ENTITY_TOO_LARGE = 423
    RETRY = 449
    ERROR = 500
    NOT_IMPLEMENTED = 501
    UNAVAILABLE = 503
    BAD_VERSION = 505


class DestType:
    """Bits of JMQDestType. Clients send QUEUE or TOPIC, with TEMP or without; old ones add the
    flavour of a queue, SINGLE, ROUND_ROBIN or FAILOVER."""

    QUEUE: Final = 0x01
    TOPIC: Final = 0x02
    TEMP: Final = 0x10
    AUTO: Final = 0x20
    INTERNAL: Final = 0x40
    SINGLE: Final = 0x100
    ROUND_ROBIN: Final = 0x200
    FAILOVER: Final = 0x400
    DMQ: Final = 0x1000


class AckMode(IntEnum):
    """JMQAckMode of a session or consumer; a transacted session has none."""

    NONE = 0
    AUTO = 1
    CLIENT = 2
    DUPS_OK = 3
    NO_ACK = 32768


class AckType(IntEnum):
    """JMQAckType of an ACKNOWLEDGE; absent when the message was consumed."""

    CONSUMED = 0
    UNDELIVERABLE = 1
    DEAD = 2


class DeadReason(IntEnum):
    """JMQDeadReason of an ACKNOWLEDGE with AckType.DEAD."""

    UNDELIVERABLE = 0
    EXPIRED = 1


class BodyType(IntEnum):
    """JMQBodyType: content of the body of a control packet."""

    NONE = 0
    CONSUMERID_I_SYSMESSAGEID = 1
    SYSMESSAGEID = 3


class XaFlag:
    """JMQXAFlags, the flags of JTA's XAResource."""

    NOFLAGS: Final = 0
    JOIN: Final = 0x0020_0000
    ENDRSCAN: Final = 0x0080_0000
    STARTRSCAN: Final = 0x0100_0000
    SUSPEND: Final = 0x0200_0000
    SUCCESS: Final = 0x0400_0000
    RESUME: Final = 0x0800_0000
    FAIL: Final = 0x2000_0000
    ONEPHASE: Final = 0x4000_0000


class ReportedTransactionState(IntEnum):
    """State of a transaction, as in VERIFY_TRANSACTION_REPLY."""

    CREATED = 1
    STARTED = 2
    FAILED = 3
    INCOMPLETE = 4
    COMPLETE = 5
    PREPARED = 6
    COMMITTED = 7
    ROLLEDBACK = 8
    TIMED_OUT = 9


class GoodbyeReason(IntEnum):
    """JMQGoodbyeReason: the values that the broker sends."""

    SHUTDOWN = 1
    ADMIN_KILLED = 3


class Level:
    """JMQProtocolLevel."""

    LOWEST: Final = 100
    MQ_3_0: Final = 200
    MQ_3_6_SP4: Final = 364
    MQ_4_5: Final = 450
    HIGHEST: Final = 500


# --- rejected requests ---------------------------------------------------------------------------

MAX_REASON: Final = 1000
"""Maximum length of JMQReason in characters."""


class RejectedRequest(BrokerError):
    """Rejected request.

    The reply contains `status`, the text as JMQReason, and `properties`.
    """

    def __init__(
        self, status: Status, reason: str, properties: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.properties = properties or {}


REQUEST_ERRORS: Final = (BrokerError, AccessDenied, ProtocolError)
"""Errors that the session reports in the reply to a request; the connection stays open."""

_STATUSES: Final[tuple[tuple[type[SluiceError], Status], ...]] = (
    (AccessDenied, Status.FORBIDDEN),
    # refused logins
    (TooManyFailures, Status.FORBIDDEN),
    (LoginBusy, Status.UNAVAILABLE),
    (TooManyConnections, Status.UNAVAILABLE),
    (AccessError, Status.INVALID_LOGIN),
    # requests
    (DestinationNotFound, Status.NOT_FOUND),
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
"""Statuses of rejected requests by the class of the error; the first one that fits applies. Other
errors have the status ERROR."""


def status_of(error: SluiceError) -> Status:
    """Return the status of the reply to a request that raised the error."""
    if isinstance(error, RejectedRequest):
        return error.status
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    return Status.ERROR


# --- steps of transactions -----------------------------------------------------------------------

LOCAL: Final = -1
"""Value in place of the flags for a transaction without a Xid."""

Step = tuple[ReportedTransactionState, frozenset[ReportedTransactionState]]
"""State after a request, and the states before it."""


STEPS: Final[dict[tuple[PacketType, int], Step]] = {
    (PacketType[f"{request}_TRANSACTION"], flags): (
        ReportedTransactionState[reached],
        frozenset(ReportedTransactionState[name] for name in before.split()),
    )
    for request, flags, reached, before in (
        ("START", XaFlag.NOFLAGS, "STARTED", "CREATED COMPLETE STARTED"),
        ("START", XaFlag.JOIN, "STARTED", "STARTED COMPLETE"),
        ("START", XaFlag.RESUME, "STARTED", "INCOMPLETE STARTED"),
        ("END", XaFlag.SUSPEND, "INCOMPLETE", "STARTED INCOMPLETE"),
        ("END", XaFlag.FAIL, "FAILED", "STARTED INCOMPLETE FAILED"),
        ("END", XaFlag.SUCCESS, "COMPLETE", "STARTED INCOMPLETE COMPLETE"),
        ("END", XaFlag.ONEPHASE, "COMPLETE", "STARTED INCOMPLETE COMPLETE"),
        ("PREPARE", XaFlag.NOFLAGS, "PREPARED", "COMPLETE PREPARED"),
        ("COMMIT", XaFlag.ONEPHASE, "COMMITTED", "COMPLETE COMMITTED"),
        ("COMMIT", XaFlag.NOFLAGS, "COMMITTED", "PREPARED COMMITTED"),
        (
            "ROLLBACK",
            XaFlag.NOFLAGS,
            "ROLLEDBACK",
            "COMPLETE INCOMPLETE PREPARED FAILED ROLLEDBACK",
        ),
        ("COMMIT", LOCAL, "COMMITTED", "STARTED"),
        ("ROLLBACK", LOCAL, "ROLLEDBACK", "STARTED FAILED"),
    )
}
"""Steps by request, and JMQXAFlags or LOCAL."""

_REPEATED: Final = frozenset(
    {
        (PacketType.START_TRANSACTION, ReportedTransactionState.STARTED),
        (PacketType.END_TRANSACTION, ReportedTransactionState.COMPLETE),
        (PacketType.PREPARE_TRANSACTION, ReportedTransactionState.PREPARED),
    }
)


def state_after(
    request: PacketType, flags: int, state: ReportedTransactionState, *, is_repeated: bool = False
) -> ReportedTransactionState:
    """Return the state after a request. `is_repeated`: the request has the I bit.

    Raises RejectedRequest.
    """
    step = STEPS.get((request, flags))
    if step is None:
        if flags == LOCAL:
            raise RejectedRequest(
                Status.PRECONDITION_FAILED, "the transaction is local: it has no Xid"
            )
        raise RejectedRequest(
            Status.BAD_REQUEST, f"JMQXAFlags {flags:#x} are not valid for this request"
        )
    next_state, prior_states = step
    if state is ReportedTransactionState.TIMED_OUT:
        raise RejectedRequest(
            Status.TIMEOUT, "the transaction has taken too long and was rolled back"
        )
    if is_repeated and state is next_state and (request, state) in _REPEATED:
        raise RejectedRequest(Status.NOT_MODIFIED, f"the transaction is {state.name} already")
    if state in prior_states:
        return next_state
    if request is PacketType.END_TRANSACTION and state is ReportedTransactionState.FAILED:
        status = Status.NOT_MODIFIED
    else:
        status = (
            Status.ERROR if request is PacketType.START_TRANSACTION else Status.PRECONDITION_FAILED
        )
    raise RejectedRequest(status, f"the transaction is {state.name}")
