"""The stream of events: content, interval, number of streams, and end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from sluicemq.admin.caller import RequestIdentity
from sluicemq.admin.endpoints import Call
from sluicemq.admin.errors import ApiError
from sluicemq.admin.overview import OverviewService
from sluicemq.admin.time_slices import TimeSlices
from sluicemq.management.broker import STREAM_EVENTS
from sluicemq.management.operation import NoParameters
from sluicemq.management.settings import HttpSettings
from sluicemq.model.access import Identity
from sluicemq.server.config import BrokerSettings
from tests.admin.test_http_session import STATUS, SessionFixture
from tests.server.conftest import Start
from tests.support.api import ApiFixture, HttpClient, in_event_loop
from tests.support.http import HTTP, TIMEOUT, Client
from tests.support.polling import wait_until

Event = tuple[str, Any]


class EventStreamClient:
    """A client that reads events of a running broker on demand."""

    def __init__(self, port: int, receive_buffer_bytes: int = 0) -> None:
        """Connect; 0 is the default size of the receive buffer."""
        self.socket = socket.socket()
        self.socket.settimeout(TIMEOUT)
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        self.headers: dict[str, str] = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(": ")
            self.headers[name.lower()] = value

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the body until it ends."""
        run_until_idle = b""
        while receive_buffer_bytes := int(self.file.readline(), 16):
            run_until_idle += self.file.read(receive_buffer_bytes)
            assert self.file.readline() == b"\r\n"
            *complete_lines, run_until_idle = run_until_idle.split(b"\n")
            yield from complete_lines
        assert not run_until_idle

    def events(self) -> Iterator[Event]:
        """Yield events with their data."""
        name = ""
        for line in self.lines():
            field, _, value = line.partition(b": ")
            if field == b"event":
                name = value.decode()
            elif field == b"data":
                yield name, json.loads(value)

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def test_overview_is_sent_each_second_until_the_broker_stops(start: Start) -> None:
    broker = start(HTTP)
    with contextlib.closing(EventStreamClient(broker.port("http"))) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["cache-control"] == "no-store"
        events = stream.events()
        received_events = [next(events) for _ in range(3)]
        assert [name for name, _ in received_events] == ["overview"] * 3
        for _, overview in received_events:
            assert overview["state"] == "serving"
            assert overview["protocols"]["http"]["connections"] == 1
            assert "history" not in overview
        assert received_events[2][1]["uptime_ms"] - received_events[0][1]["uptime_ms"] > 1500
        started = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - started < BrokerSettings().shutdown_timeout
        list(events)  # the response is complete


def test_slow_reader_uses_bounded_memory(start: Start) -> None:
    """The buffer of the stream is bounded; later reads return current state."""
    broker = start(f"{HTTP}?output_high_watermark=2000")
    with (
        contextlib.closing(
            EventStreamClient(broker.port("http"), receive_buffer_bytes=2048)
        ) as slow_stream,
        Client(broker.port("http")) as client,
    ):
        events = slow_stream.events()
        next(events)

        def sent() -> int:
            [item] = [
                item
                for item in client.get("/connections").json()["items"]
                if item["peer"].endswith(f":{slow_stream.socket.getsockname()[1]}")
            ]
            return int(item["sent_bytes"])

        before = sent()
        wait_until(lambda: sent() > before, "nothing is sent")
        assert next(events)[0] == "overview"


def test_streams_are_counted_and_limited(start: Start) -> None:
    broker = start(HTTP, environment={"SLUICEMQ_HTTP__MAX_EVENT_STREAMS": "2"})
    port = broker.port("http")
    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(contextlib.closing(EventStreamClient(port))) for _ in range(2)
        )
        next(first.events())
        next(second.events())
        with Client(port) as client:
            response = client.get("/events")
            assert (response.status, response.code) == (503, "too-many-streams")
            first.close()

            def is_accepted() -> bool:
                with contextlib.closing(EventStreamClient(port)) as stream:
                    return stream.status == 200

            wait_until(is_accepted, "the closed stream is still counted")


def test_head_request_ends_at_once(start: Start) -> None:
    with Client(start(HTTP).port("http")) as client:
        for _ in range(2):
            response = client.request("HEAD", "/events")
            assert (response.status, response.body) == (200, b"")


# --- without a network ----------------------------------------------------------------------------


def test_streams_requested_at_the_same_time_are_limited() -> None:
    asyncio.run(_request_streams_at_the_same_time())


async def _request_streams_at_the_same_time() -> None:
    fixture = SessionFixture()
    limit = HttpSettings().max_event_streams
    for _ in range(2):
        transports = [fixture.connect() for _ in range(limit + 8)]
        for transport in transports:
            transport.session.receive(STATUS.replace(b"/status", b"/events"))
        await fixture.run_until_idle()
        assert (
            sum(transport.written.startswith(b"HTTP/1.1 200 ") for transport in transports) == limit
        )
        for transport in transports:
            transport.session.closed()
        await fixture.run_until_idle()


class EventReader:
    """Receives events from the application, one at a time."""

    def __init__(self, api_fixture: ApiFixture, http_client: HttpClient) -> None:
        self.pages = OverviewService(api_fixture.context, tick=0.001)
        self.identity: Any = api_fixture.authenticator.user_snapshot.identity("anna")
        call: Any = Call.__new__(Call)
        call.caller = http_client.caller
        call.sender = self
        call.identity = self.identity
        self.call = call
        self.chunks = self.pages.events(call)

    def current(self) -> Any:
        return self.identity

    async def next(self) -> bytes:
        return await anext(self.chunks)


@in_event_loop
async def test_streams_of_one_user_do_not_exclude_others(api_fixture: ApiFixture) -> None:
    settings = HttpSettings(max_event_streams=3)
    pages = OverviewService(replace(api_fixture.context, http=settings))
    [endpoint] = (entry for entry in api_fixture.endpoints if entry.operation is STREAM_EVENTS)

    async def open_stream(user: str) -> Any:
        identity, caller = Identity(user), api_fixture.http_client().caller
        request = Request({"type": "http", "method": "GET", "headers": []})
        sender = RequestIdentity(identity, lambda: identity)
        slices = TimeSlices(api_fixture.broker)
        call = Call(endpoint, request, caller, sender, {}, {}, slices)
        response: Any = await pages.stream(call, NoParameters())
        return response.body_iterator

    opened = [await open_stream(user) for user in ("anna", "anna", "anna", "bert")]
    assert [event async for event in opened[2]] == [b"retry: 2000\n\n"]
    opened.append(await open_stream("carl"))
    assert sorted(pages.streams.values()) == ["anna", "bert", "carl"]
    for user in ("anna", "dora"):
        with pytest.raises(ApiError, match="max_event_streams"):
            await open_stream(user)
    for stream in opened:
        await stream.aclose()
    assert not pages.streams


async def wait_for_events(sent: list[Any], count: int) -> None:
    """Wait until the stream has sent `count` events."""
    async with asyncio.timeout(30):
        while len(sent) < count:
            await asyncio.sleep(0.001)


@in_event_loop
async def test_overview_is_limited_to_visible_destinations(api_fixture: ApiFixture) -> None:
    api_fixture.add("anna", "q: browse")
    reader = EventReader(api_fixture, api_fixture.http_client())
    assert await reader.next() == b""
    assert await reader.next() == b"retry: 2000\n\n"
    overview = json.loads((await reader.next()).split(b"data: ")[1])
    assert overview["listeners"] == overview["alarms"] == []
    assert overview["totals"]["destinations"] == 0


@in_event_loop
async def test_events_are_not_created_ahead_of_a_reader(api_fixture: ApiFixture) -> None:
    """A slow reader receives one event with the state at the time of the read."""
    api_fixture.add("anna")
    http_client = api_fixture.http_client()
    reader = EventReader(api_fixture, http_client)
    sent: list[Any] = []
    resumed = asyncio.Event()

    async def send(event: Any) -> None:
        sent.append(event)
        if len(sent) == 3:
            await resumed.wait()

    await reader.next()
    stream = StreamingResponse(reader.chunks)
    disconnected: Any = asyncio.Event()
    task = asyncio.ensure_future(stream({"type": "http"}, disconnected.wait, send))
    await wait_for_events(sent, 3)
    await asyncio.sleep(0.05)
    assert len(sent) == 3
    assert len(reader.pages.streams) == 1
    api_fixture.clock.advance(5000)
    resumed.set()
    await wait_for_events(sent, 4)
    http_client.caller.closing.set()
    await task
    assert len(reader.pages.streams) == 0
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    overviews = [json.loads(chunk["body"].split(b"data: ")[1]) for chunk in sent[2:-1]]
    assert overviews[1]["time"] - overviews[0]["time"] == 5000


@in_event_loop
async def test_stream_ends_with_the_login(api_fixture: ApiFixture) -> None:
    api_fixture.add("anna")
    reader = EventReader(api_fixture, api_fixture.http_client())
    await reader.next()
    await reader.next()
    assert (await reader.next()).startswith(b"event: overview")
    reader.identity = None
    assert await reader.next() == b"event: logout\ndata: {}\n\n"
    with pytest.raises(StopAsyncIteration):
        await reader.next()


@in_event_loop
async def test_stream_ends_with_the_connection(api_fixture: ApiFixture) -> None:
    api_fixture.add("anna")
    http_client = api_fixture.http_client()
    reader = EventReader(api_fixture, http_client)
    for _ in range(3):
        await reader.next()
    task = asyncio.ensure_future(reader.next())
    await asyncio.sleep(0)
    http_client.caller.closing.set()
    with pytest.raises(StopAsyncIteration):
        await task
