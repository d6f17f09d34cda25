"""Hostile connections to one listener of a running broker, and checks for damage.

Every case is a function of seed, listener and number, so that it can be repeated on its own.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from sluicemq.cli.local import LocalBroker
from tests.fuzz.corpus import Conversation
from tests.fuzz.mutations import mutate
from tests.fuzz.steady_clients import TIMEOUT_SECONDS, SteadyClient

LARGEST_NOISE: Final = 1 << 20
"""Maximum size of the noise sent on one connection."""
FLOOD: Final = 1 << 19
FLOOD_FRAMES: Final = 3000
"""Bytes and frames of a connection that repeats a conversation."""

_PROCESSED_AT_ONCE: Final = 64 * 1024
"""Input up to this size is processed at once, so that the end of input must be answered."""
_SEND_SECONDS: Final = 0.25
"""Time limit of a send, because a listener may stop reading."""
_STAYING: Final = 40
_REMEMBERED: Final = 64
_RESET: Final = struct.pack("ii", 1, 0)


class Ending(Enum):
    """How a client ends its connection."""

    HALF_CLOSE = 1
    """The client ends its output, and reads until the broker closes."""
    CLOSE = 2
    RESET = 3
    STAY = 4
    """The client stays connected for a while and reads nothing."""


class Case(NamedTuple):
    """A connection. `frames` is the number of frames before mutation."""

    number: int
    frames: int
    chunks: list[bytes]
    ending: Ending

    @property
    def data(self) -> bytes:
        return b"".join(self.chunks)

    def __str__(self) -> str:
        data = self.data
        text = data.hex() if len(data) <= 400 else f"{data[:400].hex()}… ({len(data)} bytes)"
        cuts = [len(piece) for piece in self.chunks[:20]]
        return f"case {self.number}, sent in {cuts}, then {self.ending.name}: {text}"


def noise_case(seed: int, kind: str, number: int) -> Case:
    """Return random bytes, whose size has a log-uniform distribution."""
    chance = Random(f"{seed}/{kind}/noise/{number}")
    size = int(LARGEST_NOISE ** chance.random())
    return Case(number, 0, _split(chance, chance.randbytes(size)), _ending(chance))


def mutated_case(seed: int, kind: str, number: int, conversation: Conversation) -> Case:
    """Return a damaged conversation."""
    chance = Random(f"{seed}/{kind}/{number}")
    frames = mutate(chance, conversation(chance))
    return Case(number, len(frames), _split(chance, b"".join(frames)), _ending(chance))


def flood_case(seed: int, kind: str, number: int, conversation: Conversation) -> Case:
    """Return a repeated damaged conversation of a client that reads no responses."""
    chance = Random(f"{seed}/{kind}/flood/{number}")
    frames = mutate(chance, conversation(chance))
    data = b"".join(frames)
    times = min(FLOOD // max(1, len(data)), FLOOD_FRAMES // max(1, len(frames)))
    return Case(number, times * len(frames), [data * times], Ending.STAY)


def _split(chance: Random, data: bytes) -> list[bytes]:
    """Split the data: usually not, sometimes into a few chunks, small data into single bytes."""
    if len(data) < 200 and chance.random() < 0.05:
        return [data[position : position + 1] for position in range(len(data))]
    if chance.random() < 0.7 or len(data) < 2:
        return [data]
    cuts = sorted({0, len(data), *(chance.randrange(len(data)) for _ in range(3))})
    return [data[start:end] for start, end in pairwise(cuts)]


def _ending(chance: Random) -> Ending:
    return chance.choices(list(Ending), weights=(6, 2, 1, 1))[0]


class Campaign:
    """Send cases one after the other, and check for damage in between."""

    def __init__(
        self,
        broker: LocalBroker,
        connect_socket: Callable[[], socket.socket],
        steady_clients: Iterable[SteadyClient],
        reports: Path,
    ) -> None:
        """Write the bytes of cases that caused damage to the directory `reports`."""
        self._broker = broker
        self._dial = connect_socket
        self._steady_clients = list(steady_clients)
        self._reports = reports
        self._pid = broker.pid
        self._log = broker.log.open("rb")
        self._rest = b""
        self._staying: deque[socket.socket] = deque()
        self._recent: deque[tuple[str, Case]] = deque(maxlen=_REMEMBERED)
        self.connections = 0
        self.sent_bytes = 0
        self.sent_frames = 0

    def send(self, case: Case) -> None:
        """Send a case on a new connection. Fail if the broker does not close it when required."""
        connection = self._connect(case)
        connection.settimeout(_SEND_SECONDS)
        is_sent = True
        try:
            for piece in case.chunks:
                connection.sendall(piece)
        except OSError:  # it has been closed, or is not read any more
            is_sent = False
        self.connections += 1
        if self.connections % 20 == 0:
            self.check()
        self.sent_bytes += sum(map(len, case.chunks))
        self.sent_frames += case.frames
        if case.ending is Ending.RESET or not is_sent:
            # without a reset the kernel would go on sending the unread rest
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if case.ending is Ending.STAY:
            self._staying.append(connection)
            if len(self._staying) > _STAYING:
                self._staying.popleft().close()
            return
        if case.ending is Ending.HALF_CLOSE and is_sent and len(case.data) < _PROCESSED_AT_ONCE:
            self._read_to_the_end(connection, case)
        connection.close()

    def _connect(self, case: Case) -> socket.socket:
        try:
            connection = self._dial()
        except OSError as error:
            self._fail(f"no connection can be made any more: {error!r}")
        name = connection.getsockname()
        self._recent.append((f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unix", case))
        return connection

    def _read_to_the_end(self, connection: socket.socket, case: Case) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        try:
            connection.shutdown(socket.SHUT_WR)
            while time.monotonic() < deadline:
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                if not connection.recv(1 << 16):
                    return
        except TimeoutError:
            pass
        except OSError:  # reset: it is closed as well
            return
        self._fail(f"the connection is not closed within {TIMEOUT_SECONDS:g} s of its end:\n{case}")

    def check(self) -> None:
        """Fail if a steady client, the log or the process shows damage."""
        try:
            for steady_client in self._steady_clients:
                steady_client.check()
        except AssertionError as error:
            self._fail(str(error))
        # the last line may be incomplete while it is being written
        *lines, self._rest = (self._rest + self._log.read()).split(b"\n")
        for line in lines:
            if line.strip():
                self._check_log_line(line.decode(errors="replace"))

    def _check_log_line(self, line: str) -> None:
        try:
            entry = json.loads(line)
            level, peer = entry["level"], entry.get("peer", "")
        except (ValueError, KeyError, TypeError):
            self._fail(f"the log has a line that is no entry: {line}")
        if level not in ("debug", "info") or "exception" in entry:
            cases = [case for name, case in self._recent if name == peer]
            message = line.replace("\\n", "\n")
            self._fail("\n".join(["the log contains an error:", message, *map(str, cases)]))

    def finish(self) -> None:
        """Close the remaining connections, and check for the last time."""
        while self._staying:
            self._staying.popleft().close()
        self.check()
        assert self._broker.status()["pid"] == self._pid

    def close(self) -> None:
        """Close sockets and log."""
        for connection in self._staying:
            connection.close()
        self._log.close()

    def _fail(self, failure: str) -> None:
        for _, case in self._recent:
            path = self._reports / f"case-{case.number}-{len(case.data)}.bin"
            path.write_bytes(case.data)
        raise AssertionError(f"{failure}\nthe last cases are in {self._reports}")
