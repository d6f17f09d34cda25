"""Legal steps of a transaction by state, and the statuses of the illegal ones.

One table, from the protocol specification (START_TRANSACTION to ROLLBACK_TRANSACTION) and JTA's
XAResource. A local transaction is one that has no Xid: it is started, and then ends. It fails, as a
branch may, when something that belongs to it is refused and nobody is told: it can only be rolled
back.

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

A dash is 500 for START, which must never be answered 409, and 412 for all else. A step that has
been taken already and is asked for again, with the I bit, is 304.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sluicemq.protocols.jmq.packets import PacketType, ReportedTransactionState, Status, XaFlag
from sluicemq.protocols.jmq.statuses import RejectedRequest

LOCAL: Final = -1
"""Value in place of the flags for a transaction without a Xid."""

_CREATED: Final = ReportedTransactionState.CREATED
_STARTED: Final = ReportedTransactionState.STARTED
_FAILED: Final = ReportedTransactionState.FAILED
_INCOMPLETE: Final = ReportedTransactionState.INCOMPLETE
_COMPLETE: Final = ReportedTransactionState.COMPLETE
_PREPARED: Final = ReportedTransactionState.PREPARED
_COMMITTED: Final = ReportedTransactionState.COMMITTED
_ROLLEDBACK: Final = ReportedTransactionState.ROLLEDBACK
_TIMED_OUT: Final = ReportedTransactionState.TIMED_OUT

_START: Final = PacketType.START_TRANSACTION
_END: Final = PacketType.END_TRANSACTION
_PREPARE: Final = PacketType.PREPARE_TRANSACTION
_COMMIT: Final = PacketType.COMMIT_TRANSACTION
_ROLLBACK: Final = PacketType.ROLLBACK_TRANSACTION


class Transition(NamedTuple):
    """State transitions of one request."""

    before: frozenset[ReportedTransactionState]
    after: ReportedTransactionState


def _step(after: ReportedTransactionState, *before: ReportedTransactionState) -> Transition:
    return Transition(frozenset(before), after)


STEPS: Final[dict[tuple[PacketType, int], Transition]] = {
    (_START, XaFlag.NOFLAGS): _step(_STARTED, _CREATED, _COMPLETE, _STARTED),
    (_START, XaFlag.JOIN): _step(_STARTED, _STARTED, _COMPLETE),
    (_START, XaFlag.RESUME): _step(_STARTED, _INCOMPLETE, _STARTED),
    (_END, XaFlag.SUSPEND): _step(_INCOMPLETE, _STARTED, _INCOMPLETE),
    (_END, XaFlag.FAIL): _step(_FAILED, _STARTED, _INCOMPLETE, _FAILED),
    (_END, XaFlag.SUCCESS): _step(_COMPLETE, _STARTED, _INCOMPLETE, _COMPLETE),
    (_END, XaFlag.ONEPHASE): _step(_COMPLETE, _STARTED, _INCOMPLETE, _COMPLETE),
    (_PREPARE, XaFlag.NOFLAGS): _step(_PREPARED, _COMPLETE, _PREPARED),
    (_COMMIT, XaFlag.ONEPHASE): _step(_COMMITTED, _COMPLETE, _COMMITTED),
    (_COMMIT, XaFlag.NOFLAGS): _step(_COMMITTED, _PREPARED, _COMMITTED),
    (_ROLLBACK, XaFlag.NOFLAGS): _step(
        _ROLLEDBACK, _COMPLETE, _INCOMPLETE, _PREPARED, _FAILED, _ROLLEDBACK
    ),
    (_COMMIT, LOCAL): _step(_COMMITTED, _STARTED),
    (_ROLLBACK, LOCAL): _step(_ROLLEDBACK, _STARTED, _FAILED),
}
"""Steps by request, and JMQXAFlags or LOCAL."""

_REPEATED: Final = frozenset({(_START, _STARTED), (_END, _COMPLETE), (_PREPARE, _PREPARED)})


def after(
    request: PacketType, flags: int, state: ReportedTransactionState, *, again: bool = False
) -> ReportedTransactionState:
    """Return the state after a request. `again`: the request has the I bit. Raises Refused."""
    step = STEPS.get((request, flags))
    if step is None:
        if flags == LOCAL:
            raise RejectedRequest(Status.PRECONDITION_FAILED, "this transaction is not distributed")
        raise RejectedRequest(Status.BAD_REQUEST, f"JMQXAFlags {flags:#x} mean nothing here")
    if state is _TIMED_OUT:
        raise RejectedRequest(
            Status.TIMEOUT, "the transaction has taken too long and was rolled back"
        )
    if again and state is step.after and (request, state) in _REPEATED:
        raise RejectedRequest(Status.NOT_MODIFIED, f"the transaction is {state.name} already")
    if state in step.before:
        return step.after
    if request is _END and state is _FAILED:
        status = Status.NOT_MODIFIED
    else:
        status = Status.ERROR if request is _START else Status.PRECONDITION_FAILED
    raise RejectedRequest(status, f"the transaction is {state.name}")
