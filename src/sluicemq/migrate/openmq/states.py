"""Transactions of stores without the new transaction log: `txn` and `txnack`.

    txn     number of the transaction -> TransactionInfo; in versions before 4.1 TransactionState.
            Behind the objects may be "%CD" and the state as it is now:u8
    txnack  number of the transaction -> set of TransactionAcknowledgement

A TransactionState begins with xid:136 state:i32, an acknowledgement with SysMessageID:32.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from sluicemq.migrate.openmq.destinations import consumer_number
from sluicemq.migrate.openmq.records import Faults, MapEntry, entries, tolerating
from sluicemq.migrate.openmq.serial import ParsedObject
from sluicemq.migrate.openmq.transactions import SYSID_SIZE, XID_SIZE
from sluicemq.migrate.source_files import Damage

_MARK: Final = b"%CD"
_i32: Final = Struct(">i")
_NO_XID: Final = _i32.pack(-1)
"""Start of a missing Xid: a Xid begins with its format, which is -1 if there is none."""


class TransactionStatus(NamedTuple):
    """State of a transaction. `xid` is b"" if there is none."""

    state: int
    xid: bytes


class TransactionStatuses(NamedTuple):
    """Work by transaction number; acknowledgements are SysMessageID and consumer."""

    states: dict[int, TransactionStatus]
    acks: dict[int, list[tuple[bytes, int]]]


def read_states(directory: Path, faults: Faults) -> TransactionStatuses:
    """Read the two files; missing files are empty."""
    states: dict[int, TransactionStatus] = {}
    acks: dict[int, list[tuple[bytes, int]]] = {}
    for entry in entries(directory / "txn", faults):
        with tolerating(faults):
            number, state = _state(entry)
            states[number] = state
    for entry in entries(directory / "txnack", faults):
        with tolerating(faults):
            acks[_number(entry)] = _acks(entry)
    return TransactionStatuses(states, acks)


def _number(entry: MapEntry) -> int:
    number = consumer_number(entry.key)  # both numbers have the same type
    if number is None:
        raise Damage(f"{entry.where}: a transaction has no number")
    return number


def _state(entry: MapEntry) -> tuple[int, TransactionStatus]:
    value = entry.value
    if isinstance(value, ParsedObject) and value.simple_name == "TransactionInfo":
        value = next((each for each in value.more if isinstance(each, ParsedObject)), None)
    if not isinstance(value, ParsedObject) or len(value.written) < XID_SIZE + _i32.size:
        raise Damage(f"{entry.where}: this is no state of a transaction")
    xid = value.written[:XID_SIZE]
    state = _i32.unpack_from(value.written, XID_SIZE)[0]
    if entry.behind.startswith(_MARK) and len(entry.behind) > len(_MARK):
        state = entry.behind[len(_MARK)]
    return _number(entry), TransactionStatus(state, b"" if xid.startswith(_NO_XID) else xid)


def _acks(entry: MapEntry) -> list[tuple[bytes, int]]:
    found = []
    for each in entry.value.more if isinstance(entry.value, ParsedObject) else ():
        if not isinstance(each, ParsedObject):
            continue  # size of the set
        consumers = [consumer_number(one) for one in each.more if isinstance(one, ParsedObject)]
        if len(each.written) < SYSID_SIZE or not consumers or consumers[-1] is None:
            raise Damage(f"{entry.where}: this is no acknowledgement")
        # the store uses the last number
        found.append((each.written[:SYSID_SIZE], consumers[-1]))
    return found
