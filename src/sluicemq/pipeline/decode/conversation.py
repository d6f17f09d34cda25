"""Conversion of one connection's packets to rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from sluicemq.pipeline.decode.captures import NO_TIME
from sluicemq.pipeline.decode.codec import FrameColumns
from sluicemq.pipeline.decode.columns import TO_CLIENT, TO_SERVER
from sluicemq.pipeline.decode.connections import NOTE, ConnectionPackets, Notes
from sluicemq.pipeline.decode.flow import Flow, Unread
from sluicemq.pipeline.decode.headers import ACK, SYN
from sluicemq.pipeline.decode.options import DecodeOptions
from sluicemq.pipeline.decode.payload import CaptureFile
from sluicemq.pipeline.decode.reassembly import ByteRange, Gap, Reassembler, add_event
from sluicemq.pipeline.decode.recognition import (
    CODECS,
    HEAD,
    Head,
    Recognised,
    likely_servers,
    recognise,
)
from sluicemq.pipeline.decode.rows import RowBuffer

UNKNOWN: Final = (
    "the protocol was not recognised; if it is one of ours, say so: ports=PORT=PROTOCOL"
)

NO_PAYLOAD: Final = "nothing but the headers of packets was captured (tcpdump -s 0 takes all)"


class Conversation:
    """Both directions of one connection; chunks are added in order."""

    def __init__(
        self,
        file: CaptureFile,
        name: str,
        first: ConnectionPackets,
        options: DecodeOptions,
        rows: RowBuffer,
    ) -> None:
        """Set `name`, the file's name in rows, and `first`, the first chunk that `add` receives."""
        self._file = file
        self._name = name
        self._connection = first.connection
        self._endpoints = first.endpoints
        self._ports = _port(first.endpoints[0]), _port(first.endpoints[1])
        self._options = options
        self._rows = rows
        self._sides = Reassembler(options.max_waiting), Reassembler(options.max_waiting)
        self._early: list[list[ByteRange | Gap]] = [[], []]
        """Events of both sides before the protocol was recognised."""
        raw = options.raw
        self._client = None if raw is None else 0 if raw.role == "client" else 1
        """Side of the client, if known."""
        self._flows: list[Flow | Unread] = []
        self._stream = name if options.raw else " > ".join(first.endpoints)
        self._directions = [TO_SERVER, TO_CLIENT]
        self._broken = False

    def add(self, chunk: ConnectionPackets) -> Iterator[pa.RecordBatch]:
        """Add packets; yield full batches. A file that cannot be read becomes a row."""
        notes = np.frombuffer(chunk.notes, NOTE)
        if self._client is None:
            self._client = _client_in(notes)
        sides = (notes[notes["side"] == side] for side in (0, 1))
        yield from self._hand_on(
            [known.add(mine) for known, mine in zip(self._sides, sides, strict=True)]
        )

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows after the last packet."""
        yield from self._hand_on([known.end() for known in self._sides])
        if not self._flows and any(self._early):
            # both sides have gaps only
            if self._client is None:
                self._client = 1 - likely_servers(self._ports, self._options)[0]
            self._begin(Recognised(None, 1 - self._client), NO_PAYLOAD)
            for side in (0, 1):
                yield from self._play(side, self._early[side])
        for side, flow in enumerate(self._flows):
            if not self._broken:
                flow.end(any(known.closed for known in self._sides))
            if foreign := self._sides[side].foreign:
                text = (
                    f"{foreign} packets have sequence numbers that do not belong to the "
                    "connection, and were left out"
                )
                self._emit(side, None, NO_TIME, None, None, None, text)

    def _hand_on(self, events: list[list[ByteRange | Gap]]) -> Iterator[pa.RecordBatch]:
        """Pass the new events of both sides to their flows."""
        if self._broken:
            return
        try:
            if not self._flows:
                for early, mine in zip(self._early, events, strict=True):
                    for event in mine:
                        add_event(early, event)
                if not any(
                    isinstance(event, ByteRange) for early in self._early for event in early
                ):
                    return
                self._begin(self._recognise())
                events, self._early = self._early, [[], []]
            for side in (0, 1):
                yield from self._play(side, events[side])
        except (OSError, EOFError) as fault:
            self._broken = True
            self._emit(0, None, NO_TIME, None, None, None, f"the file cannot be read: {fault}")

    def _play(self, side: int, events: list[ByteRange | Gap]) -> Iterator[pa.RecordBatch]:
        flow = self._flows[side]
        for event in events:
            if isinstance(event, Gap):
                flow.gap(event)
                continue
            for portion in self._file.portions(event):
                flow.take(portion)
                if self._rows.enough:
                    yield from self._rows.batches()

    def _begin(self, recognised: Recognised, unknown: str = UNKNOWN) -> None:
        """Start the flows of the detected protocol; `unknown` is the reason if there is none."""
        server = recognised.server
        client = 1 - server
        if self._options.raw is None:
            self._stream = f"{self._endpoints[client]} > {self._endpoints[server]}"
        self._directions = [TO_SERVER if side == client else TO_CLIENT for side in (0, 1)]
        kind = CODECS.get(recognised.protocol or "")
        for side in (0, 1):
            emit = partial(self._emit, side, recognised.protocol)
            if kind is None:
                self._flows.append(Unread(None if recognised.protocol else unknown, emit))
            else:
                begins = self._sides[side].begins
                self._flows.append(Flow(kind, side == client, begins, self._options, emit))

    def _recognise(self) -> Recognised:
        raw = self._options.raw
        if raw is not None and raw.protocol is not None and self._client is not None:
            return Recognised(raw.protocol, 1 - self._client)
        heads = self._head(0), self._head(1)
        return recognise(heads, self._ports, self._client, self._options)

    def _head(self, side: int) -> Head:
        for event in self._early[side]:
            if isinstance(event, ByteRange):
                begins = self._sides[side].begins and event.offset == 0
                portion = next(self._file.portions(event))
                return Head(portion.data[:HEAD], begins)
        return Head(b"", False)

    def _emit(
        self,
        side: int,
        protocol: str | None,
        time: int,
        offset: int | None,
        length: int | None,
        columns: FrameColumns | None,
        error: str | None,
    ) -> None:
        self._rows.add(
            (
                self._name,
                self._connection,
                self._stream,
                self._directions[side],
                protocol,
                None if time == NO_TIME else time,
                offset,
                length,
            ),
            columns,
            error,
        )


def _client_in(notes: Notes) -> int | None:
    """Return the side that opened the connection, None if unknown."""
    for note in notes[(notes["flags"] & SYN) != 0]:
        side = int(note["side"])
        return 1 - side if note["flags"] & ACK else side
    return None


def _port(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2] or 0)
