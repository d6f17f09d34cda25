"""Connection objects with a fake transport, session and event loop."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import structlog

from sluicemq.protocols.transport import Login, SessionInfo
from sluicemq.server.connection import Connection
from sluicemq.server.input_budget import InputBudget
from sluicemq.server.listener import ConnectionRegistry


class SocketTransport:
    """A transport without a descriptor, as with TLS. Calls after `closed` is set fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.closed = False
        self.reset = False
        self.unsent = 0

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 5) if name == "peername" else None

    def set_write_buffer_limits(self, **limits: int) -> None: ...

    def writelines(self, chunks: object) -> None: ...

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def _use(self, name: str) -> None:
        if self.closed:
            raise RuntimeError("the handler is closed")
        self.calls.append(name)

    def write(self, data: bytes) -> None:
        self._use("write")

    def write_eof(self) -> None:
        if self.reset:
            raise OSError(errno.ENOTCONN, "not connected")
        self._use("write_eof")

    def resume_reading(self) -> None:
        self._use("resume_reading")

    def pause_reading(self) -> None:
        self._use("pause_reading")

    def abort(self) -> None:
        self.calls.append("abort")


class RecordingSession:
    """A session that records calls; `fault` names the method that raises."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fault = ""
        self.buffered = 0
        self.incomplete = False
        self.login = Login.DONE

    def discard_input(self) -> None:
        self.buffered = 0

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> None:
            self.calls.append(name)
            if name == self.fault:
                raise ValueError(f"an error in {name}")

        return call


class FakeLoop:
    def __init__(self) -> None:
        self.scheduled: list[Any] = []

    def call_later(self, delay: float, callback: Any, *arguments: Any) -> Any:
        self.scheduled.append(lambda: callback(*arguments))
        return SimpleNamespace(cancel=lambda: None)

    def fire_timers(self) -> None:
        """Call all scheduled callbacks."""
        calls, self.scheduled = self.scheduled, []
        for call in calls:
            call()


class FakeEventLoopBatch:
    is_halted = False

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.broker = SimpleNamespace(clock=SimpleNamespace(steady=0, wall=5), flush=lambda: None)
        self.sending: list[Connection] = []

    def begin(self) -> None: ...

    def schedule_write(self, connection: Connection) -> None:
        self.sending.append(connection)

    def end(self) -> None:
        """Flush connections, as the server does at the end of an event loop iteration."""
        sending, self.sending = self.sending, []
        for connection in sending:
            connection.flush()


class ConnectionFixture:
    def __init__(
        self, budget: InputBudget | None = None, transport: SocketTransport | None = None
    ) -> None:
        self.session = RecordingSession()
        self.transport = transport or SocketTransport()
        self.batch = FakeEventLoopBatch()
        self.listener: Any = SimpleNamespace(
            budget=budget or InputBudget(1000, 30.0),
            closed=Counter(),
            logging_in=set(),
            batch=self.batch,
            admit=lambda *_: True,
            refusals=set(),
            session_factory=lambda *_: self.session,
            remove=lambda _: None,
            options=SimpleNamespace(
                output_timeout=0,
                output_high_watermark=1024,
                max_login_bytes=100,
                login_timeout=10.0,
                frame_timeout=60.0,
            ),
            url="test",
            reading_paused=set(),
        )
        self.connection = Connection(self.listener)
        transport: Any = self.transport
        self.connection.connection_made(transport)


@pytest.fixture
def fixture() -> ConnectionFixture:
    return ConnectionFixture()


def test_close_sends_written_data_first(fixture: ConnectionFixture) -> None:
    fixture.connection.write([b"answer"])
    fixture.connection.close("done")
    fixture.batch.end()
    assert fixture.transport.calls == ["write", "write_eof", "resume_reading"]
    assert fixture.session.calls == ["flushed", "closed"]


def test_close_after_reset_by_peer_aborts(fixture: ConnectionFixture) -> None:
    fixture.transport.reset = True
    fixture.connection.close("done")
    fixture.batch.end()
    assert fixture.transport.calls == ["abort"]


@pytest.mark.parametrize(
    ("family", "address", "admitted"),
    [
        (socket.AF_INET, None, False),  # reset by the peer before it is accepted
        (socket.AF_INET, ("127.0.0.1", 5), True),
        (socket.AF_UNIX, "", True),
    ],
)
def test_only_unix_sockets_are_accepted_without_peer_address(
    family: socket.AddressFamily, address: Any, admitted: bool
) -> None:
    transport = SocketTransport()
    raw = SimpleNamespace(family=family, fileno=lambda: -1)
    values = {"peername": address, "socket": raw, "sslcontext": True}
    transport.get_extra_info = values.get  # type: ignore[method-assign]
    ConnectionFixture(transport=transport)
    assert transport.calls == ([] if admitted else ["abort"])


@pytest.mark.parametrize("written", [(), (b"answer",)])
def test_connection_lost_in_same_iteration_as_close(
    fixture: ConnectionFixture, written: tuple[bytes, ...]
) -> None:
    fixture.connection.write(written)
    fixture.connection.close("done")
    fixture.transport.closed = True
    fixture.connection.connection_lost(None)
    fixture.batch.end()
    assert fixture.transport.calls == []
    assert fixture.session.calls == ["closed"]


def test_unsent_data_over_high_watermark_pauses_delivery(
    fixture: ConnectionFixture,
) -> None:
    """Small writes of several iterations add up to the high watermark."""
    fixture.connection.pause_writing()
    for number in range(10):
        fixture.connection.write([bytes(200)])
        fixture.batch.end()
        assert fixture.session.calls == (["pause_delivery"] if number > 4 else [])
    fixture.connection.resume_writing()
    fixture.batch.end()
    assert fixture.session.calls == ["pause_delivery", "flushed"]


def test_output_timeout_closes_only_clients_that_read_nothing(fixture: ConnectionFixture) -> None:
    fixture.listener.options.output_timeout = 60
    fixture.transport.unsent = 1000
    fixture.connection.pause_writing()
    for unsent in (999, 1):
        fixture.transport.unsent = unsent
        fixture.batch.loop.fire_timers()
        assert fixture.transport.calls == []
    fixture.batch.loop.fire_timers()
    assert fixture.transport.calls == ["abort"]
    assert fixture.listener.closed == {"output-timeout": 1}


def test_calls_after_connection_lost_are_ignored(fixture: ConnectionFixture) -> None:
    """A session may respond later, for example after a wait for the disk."""
    fixture.transport.closed = True
    fixture.connection.connection_lost(None)
    fixture.connection.write([b"too late"])
    fixture.connection.close()
    fixture.connection.resume_reading()
    fixture.batch.end()
    assert fixture.transport.calls == []


def test_error_in_session_aborts_only_its_connection(fixture: ConnectionFixture) -> None:
    fixture.session.fault = "flushed"
    fixture.connection.write([b"x"])
    with structlog.testing.capture_logs() as entries:
        fixture.batch.end()
    assert [entry["event"] for entry in entries if entry["log_level"] == "error"] == [
        "internal error"
    ]
    assert fixture.transport.calls == ["write", "abort"]
    assert fixture.session.calls[-1] == "closed"


class ConsumingFixture(ConnectionFixture):
    """A connection with one consumer; `listings` counts how often its consumers are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.consumer: Any = object()
        self.listings = 0
        self.session.consumers = self.consumers  # type: ignore[attr-defined]

    def consumers(self) -> list[Any]:
        self.listings += 1
        return [self.consumer]


def report_faults(fixtures: Sequence[ConsumingFixture], *faulty: Any) -> list[str]:
    """Report an error of each of these consumers, and return the errors in the log."""
    admission = SimpleNamespace(connections=[fixture.connection for fixture in fixtures])
    listeners: Any = [SimpleNamespace(admission=admission)]
    connections = ConnectionRegistry(listeners, InputBudget(1000, 30.0))

    async def report() -> None:
        for consumer in faulty:
            connections.end_faulty(consumer, ValueError("a defect"))
        await asyncio.sleep(0)

    with structlog.testing.capture_logs() as entries:
        asyncio.run(report())
    return [entry["event"] for entry in entries if entry["log_level"] == "error"]


def test_error_in_deliver_aborts_only_connection_of_consumer() -> None:
    other, failing = ConsumingFixture(), ConsumingFixture()
    closed_consumer = object()
    assert report_faults([other, failing], closed_consumer, failing.consumer) == [
        "internal error",
        "internal error of a closed connection",
    ]
    assert (other.transport.calls, failing.transport.calls) == ([], ["abort"])


def test_connections_of_many_faulty_consumers_are_searched_together() -> None:
    fixtures = [ConsumingFixture() for _ in range(20)]
    report_faults(fixtures, *(fixture.consumer for fixture in reversed(fixtures)))
    assert all(fixture.transport.calls == ["abort"] for fixture in fixtures)
    assert sum(fixture.listings for fixture in fixtures) == len(fixtures)


def test_error_of_engine_at_end_of_tls_input_stops_broker(fixture: ConnectionFixture) -> None:
    error = ValueError("a defect")
    fixture.batch.broker.flush = Mock(side_effect=error)
    fixture.batch.fail = Mock()  # type: ignore[attr-defined]
    fixture.connection.write([b"answer"])
    fixture.connection.eof_received()
    fixture.batch.fail.assert_called_once_with(error)  # type: ignore[attr-defined]
    assert fixture.transport.calls == []


def test_error_in_function_called_by_engine_aborts_connection(fixture: ConnectionFixture) -> None:
    with structlog.testing.capture_logs() as entries:
        fixture.connection.call(fixture.session.receive, b"")
        fixture.session.fault = "receive"
        fixture.connection.call(fixture.session.receive, b"")
    assert [entry["event"] for entry in entries] == ["internal error"]
    assert fixture.transport.calls == ["abort"]
    assert fixture.session.calls == ["receive", "receive", "closed"]


# --- disconnecting --------------------------------------------------------------------------------


def test_paused_tls_connection_without_socket_is_being_closed(fixture: ConnectionFixture) -> None:
    connection = fixture.connection
    connection.pause_reading()
    assert fixture.transport.get_extra_info("socket") is None
    connection.resume_if_peer_closed()
    assert fixture.transport.calls == ["pause_reading"]


def test_disconnect_lingers_before_abort(fixture: ConnectionFixture) -> None:
    def disconnect(reason: str) -> None:
        fixture.connection.write([reason.encode()])
        fixture.connection.close(reason)

    fixture.session.disconnect = disconnect  # type: ignore[attr-defined]
    fixture.connection.disconnect("enough")
    fixture.batch.end()
    assert fixture.transport.calls == ["write", "write_eof", "resume_reading"]
    assert fixture.session.calls == ["flushed", "closed"]
    fixture.batch.loop.fire_timers()  # a lingering connection is aborted, once
    assert fixture.transport.calls[3:] == ["abort"]


def test_disconnect_aborts_session_that_does_not_close(fixture: ConnectionFixture) -> None:
    """The session may wait for a disk that hangs, or the client may not read."""
    fixture.connection.disconnect("enough")
    fixture.batch.end()
    assert fixture.session.calls == ["disconnect"]
    assert fixture.transport.calls == []
    fixture.batch.loop.fire_timers()
    assert fixture.transport.calls == ["abort"]
    assert fixture.session.calls == ["disconnect", "closed"]
    fixture.connection.disconnect("again")
    assert not fixture.batch.loop.scheduled


def test_error_during_disconnect_aborts_connection(fixture: ConnectionFixture) -> None:
    fixture.session.fault = "disconnect"
    with structlog.testing.capture_logs():
        fixture.connection.disconnect("enough")
    assert fixture.transport.calls == ["abort"]


# --- metrics -------------------------------------------------------------------------------------


def test_bytes_are_counted_in_both_directions(fixture: ConnectionFixture) -> None:
    fixture.connection.data_received(b"abc")
    fixture.connection.data_received(b"d")
    fixture.connection.write([b"xy", b"z"])
    fixture.batch.end()
    fixture.connection.write([b"!"])
    fixture.batch.end()
    assert (fixture.connection.received_bytes, fixture.connection.sent_bytes) == (4, 4)
    assert fixture.connection.connected_at == 5


def test_sent_data_resets_idle_time(fixture: ConnectionFixture) -> None:
    fixture.batch.broker.clock.steady = 9000
    fixture.connection.write([b"x"])
    assert fixture.connection.active_at == 0
    fixture.batch.end()
    assert fixture.connection.active_at == 9000


def test_state_names_what_blocks_connection(fixture: ConnectionFixture) -> None:
    fixture.session.session_info = lambda: SessionInfo("phpmq", state="connecting")  # type: ignore[attr-defined]
    connection = fixture.connection
    assert connection.state == "connecting"
    connection._delivery_paused = True
    assert connection.state == "slow"
    connection.pause_reading()
    assert connection.state == "blocked"
    connection.close("done")
    assert connection.state == "closing"


# --- unfinished input -----------------------------------------------------------------------------


def receive(
    fixture: ConnectionFixture, buffered: int, incomplete: bool = True, data: bytes = b"x"
) -> None:
    """Receive data after which the session buffers this many bytes."""
    fixture.session.buffered = buffered
    fixture.session.incomplete = incomplete
    fixture.connection.data_received(data)


def advance_time(fixture: ConnectionFixture, seconds: float) -> None:
    fixture.batch.broker.clock.steady += round(seconds * 1000)
    fixture.listener.budget.review(fixture.batch.broker.clock.steady)


def test_buffered_input_is_reserved_and_released(fixture: ConnectionFixture) -> None:
    budget = fixture.listener.budget
    receive(fixture, 70)
    assert budget.used == 70
    receive(fixture, 0)
    assert budget.used == 0
    receive(fixture, 90)
    fixture.connection.connection_lost(None)
    assert (budget.used, budget.holders, fixture.session.buffered) == (0, 0, 0)


def test_input_processed_meanwhile_is_released(fixture: ConnectionFixture) -> None:
    budget = fixture.listener.budget
    receive(fixture, 70)
    fixture.session.buffered = 0
    fixture.connection.write([b"answer"])
    fixture.batch.end()
    assert budget.used == 0
    receive(fixture, 70)
    fixture.session.buffered = 10
    advance_time(fixture, 1)
    assert budget.used == 10


def test_reading_resumes_when_budget_and_session_allow(
    fixture: ConnectionFixture,
) -> None:
    budget = fixture.listener.budget
    other = ConnectionFixture(budget)
    receive(other, 1001)
    receive(fixture, 10)
    assert fixture.transport.calls == ["pause_reading"]
    assert fixture.connection.state == "blocked"
    fixture.connection.pause_reading()
    receive(other, 0)
    assert fixture.transport.calls == ["pause_reading"]
    fixture.connection.resume_reading()
    assert fixture.transport.calls == ["pause_reading", "resume_reading"]


def test_stalled_connection_is_closed_while_budget_is_exhausted(
    fixture: ConnectionFixture,
) -> None:
    receive(fixture, 1001)
    for _ in range(31):
        advance_time(fixture, 1)
    assert not fixture.listener.closed
    advance_time(fixture, 1)
    assert fixture.listener.closed == {"input-stalled": 1}
    assert fixture.session.calls[-1] == "disconnect"


def test_slow_frame_is_closed_while_budget_is_exhausted() -> None:
    limit = 8 << 20
    fixture = ConnectionFixture(InputBudget(limit, 30.0))
    size = limit + 1
    receive(fixture, size)
    for part in [limit // 128, *[16 * 1024] * 3]:
        advance_time(fixture, 10)
        size += part
        receive(fixture, size, data=bytes(part))
    assert not fixture.listener.closed
    advance_time(fixture, 2)
    assert fixture.listener.closed == {"input-stalled": 1}


def test_complete_requests_do_not_suspend_other_connections(
    fixture: ConnectionFixture,
) -> None:
    budget = fixture.listener.budget
    receive(fixture, 1001, incomplete=False)
    other = ConnectionFixture(budget)
    receive(other, 10)
    assert other.connection not in budget.suspended
    receive(other, 500)
    assert other.connection not in budget.suspended


@pytest.mark.parametrize("incomplete", [True, False])
def test_connection_that_awaits_no_input_does_not_stall(
    fixture: ConnectionFixture, incomplete: bool
) -> None:
    receive(fixture, 500, incomplete=incomplete)
    if incomplete:
        fixture.connection.pause_reading()
    other = ConnectionFixture(fixture.listener.budget)
    receive(other, 1001)
    for _ in range(32):
        advance_time(fixture, 1)
    assert not fixture.listener.closed


def test_frame_timeout_closes_connection_without_progress(fixture: ConnectionFixture) -> None:
    receive(fixture, 10)
    advance_time(fixture, 59)
    progress = fixture.listener.budget.progress_bytes
    receive(fixture, 1 + progress, data=bytes(progress))
    advance_time(fixture, 60)
    assert not fixture.listener.closed
    advance_time(fixture, 1)
    assert fixture.listener.closed == {"frame-timeout": 1}


@pytest.mark.parametrize("sizes", [range(6, 11), [1] * 5], ids=["kept", "skipped"])
def test_frame_timeout_limits_frames_that_arrive_in_tiny_parts(
    fixture: ConnectionFixture, sizes: Sequence[int]
) -> None:
    receive(fixture, 10)
    advance_time(fixture, 59)
    receive(fixture, 5)  # the beginning of the next frame
    for size in sizes:
        advance_time(fixture, 12)
        assert not fixture.listener.closed
        receive(fixture, size)
    advance_time(fixture, 1)
    assert fixture.listener.closed == {"frame-timeout": 1}


def test_frame_timeout_applies_to_skipped_frame_while_messages_wait(
    fixture: ConnectionFixture,
) -> None:
    receive(fixture, 500, incomplete=False)  # messages that wait for capacity
    receive(fixture, 501)  # the beginning of a frame that is skipped
    for _ in range(5):
        advance_time(fixture, 12)
        assert not fixture.listener.closed
        receive(fixture, 501)
    advance_time(fixture, 1)
    assert fixture.listener.closed == {"frame-timeout": 1}


def test_frame_timeout_of_new_frame_excludes_time_before_it(fixture: ConnectionFixture) -> None:
    receive(fixture, 500, incomplete=False)  # messages that wait for capacity
    advance_time(fixture, 1000)
    receive(fixture, 501)
    advance_time(fixture, 60)
    assert not fixture.listener.closed
    advance_time(fixture, 1)
    assert fixture.listener.closed == {"frame-timeout": 1}


def test_frame_timeout_excludes_time_since_frame_that_ended_between_reads(
    fixture: ConnectionFixture,
) -> None:
    receive(fixture, 10)  # as a request that is answered before its end
    fixture.session.buffered = 0
    fixture.connection.write([b"answer"])
    fixture.batch.end()
    advance_time(fixture, 1000)
    receive(fixture, 5)
    advance_time(fixture, 60)
    assert not fixture.listener.closed
    advance_time(fixture, 1)
    assert fixture.listener.closed == {"frame-timeout": 1}


def test_complete_requests_have_no_frame_timeout(fixture: ConnectionFixture) -> None:
    receive(fixture, 10, incomplete=False)
    advance_time(fixture, 1000)
    assert not fixture.listener.closed


def test_frame_timeout_is_suspended_while_reading_is_paused(fixture: ConnectionFixture) -> None:
    receive(fixture, 10)
    fixture.connection.pause_reading()
    advance_time(fixture, 1000)
    fixture.connection.resume_reading()
    advance_time(fixture, 59)
    assert not fixture.listener.closed
    advance_time(fixture, 2)
    assert fixture.listener.closed == {"frame-timeout": 1}


def test_unfinished_input_before_login_is_limited(fixture: ConnectionFixture) -> None:
    fixture.session.login = Login.CHECKING
    receive(fixture, 100)
    assert not fixture.listener.closed
    receive(fixture, 101)
    assert fixture.listener.closed == {"login-bytes": 1}


def test_login_timeout_excludes_time_of_password_check(fixture: ConnectionFixture) -> None:
    connection = fixture.connection
    now = 0
    for login, seconds in (
        (Login.DUE, 6),
        (Login.CHECKING, 100),
        (Login.DUE, 4),
        (Login.CHECKING, 100),
        (Login.NONE, 100),
    ):
        fixture.session.login = login
        for _ in range(seconds):
            now += 1000
            assert not connection.review_login(now)
    assert not fixture.listener.closed
    fixture.session.login = Login.DUE
    assert connection.review_login(now + 1000)
    assert fixture.listener.closed == {"login-timeout": 1}
    fixture.session.login = Login.DONE
    assert connection.review_login(now + 2000)
