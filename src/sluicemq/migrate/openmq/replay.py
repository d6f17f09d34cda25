"""Transactions of the store, applied to the index as Open MQ does at its start: first the
incomplete ones saved by a checkpoint, then the log; or the state files of stores without that
log."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sluicemq.migrate.openmq.index import StoreIndex
from sluicemq.migrate.openmq.records import Faults, tolerating
from sluicemq.migrate.openmq.states import TransactionStatuses, read_states
from sluicemq.migrate.openmq.transactions import (
    COMMITTED,
    PREPARED,
    Event,
    LoggedAck,
    LoggedTransaction,
    MessageRemoved,
    MessageStored,
    TransactionWork,
    read_incomplete,
    read_log,
)
from sluicemq.migrate.plan import Plan
from sluicemq.migrate.source_files import Damage

_LOCAL: Final = 1
_FOREIGN: Final = (
    "it spans several brokers of a cluster; have it committed or rolled back before you move"
)
_UNCOMMITTED: Final = "they were sent in transactions that were never committed"


class Replay:
    """Replay of the transactions. `prepared` are those that await a decision."""

    def __init__(self, plan: Plan, directory: Path, index: StoreIndex, faults: Faults) -> None:
        self._plan = plan
        self._index = index
        self._faults = faults
        self._open: dict[int, LoggedTransaction] = {}
        self._read_incomplete(directory)
        self._read_log(directory)
        self.prepared = [*self._open.values(), *self._old(directory)]

    def _read_incomplete(self, directory: Path) -> None:
        for transaction in read_incomplete(directory, self._faults):
            if transaction.kind != _LOCAL:
                self._plan.leave("transaction", str(transaction.number), _FOREIGN)
            elif transaction.state == PREPARED:
                self._open[transaction.number] = transaction

    def _read_log(self, directory: Path) -> None:
        try:
            events, foreign = read_log(directory)
        except Damage as fault:
            self._faults(fault)
            return
        if foreign:
            self._plan.leave("transaction", f"{foreign} records of the log", _FOREIGN)
        for event in events:
            with tolerating(self._faults):
                self._apply(event)

    def _apply(self, event: Event) -> None:
        index = self._index
        match event:
            case MessageStored(packet):
                index.sent(packet)
            case LoggedAck():
                index.acknowledged(event)
            case MessageRemoved(destination, sysid):
                index.messages.pop((destination, sysid), None)
            case LoggedTransaction(number=number, state=state, work=work):
                if state == PREPARED:
                    self._open.setdefault(number, event)
                    return
                before = self._open.pop(number, None)
                if state == COMMITTED:
                    self._commit(before.work if before is not None else work)

    def _commit(self, work: TransactionWork) -> None:
        for packet in work.sends:
            self._index.sent(packet)
        for ack in work.acks:
            self._index.acknowledged(ack)

    # --- without the log -----------------------------------------------------------------------

    def _old(self, directory: Path) -> list[LoggedTransaction]:
        """Apply the state files; in this format messages are stored before they are committed."""
        found = read_states(directory, self._faults)
        if not found.states:
            return []
        works: dict[int, TransactionWork] = {}
        dropped: dict[str, int] = {}
        messages = self._index.messages
        for identity, stored in list(messages.items()):
            try:
                number = stored.message()[1].transaction_id
            except Damage as fault:
                self._faults(fault)
                continue
            state = found.states.get(number) if number else None
            if state is None or state.state == COMMITTED:
                continue
            del messages[identity]
            if state.state == PREPARED:
                works.setdefault(number, TransactionWork([], [])).sends.append(stored.bytes())
            else:
                name = str(stored.address)
                dropped[name] = dropped.get(name, 0) + 1
        for name, count in dropped.items():
            self._plan.leave("messages", f"{count} of {name}", _UNCOMMITTED)
        self._old_acks(found, works)
        return [
            LoggedTransaction(
                _LOCAL, number, PREPARED, state.xid, works.get(number, TransactionWork([], []))
            )
            for number, state in found.states.items()
            if state.state == PREPARED
        ]

    def _old_acks(self, found: TransactionStatuses, works: dict[int, TransactionWork]) -> None:
        places = {sysid: unique for unique, sysid in self._index.messages}
        for number, acks in found.acks.items():
            state = found.states.get(number)
            for sysid, consumer in acks:
                ack = LoggedAck(places.get(sysid, ""), sysid, consumer)
                if state is not None and state.state == PREPARED:
                    works.setdefault(number, TransactionWork([], [])).acks.append(ack)
                elif state is not None and state.state == COMMITTED:
                    self._index.acknowledged(ack)
