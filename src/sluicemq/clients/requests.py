"""Requests and their responses, for protocols whose responses name the request.

`RequestTransport` passes each response to the receiver that expects it. `Confirmations` collects
the results of pipelined requests, whose responses are awaited together.

A request that fails because of its connection has that error as its response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from sluicemq.clients.transport import (
    ClientTransport,
    Decoder,
    FrameT,
    copy_error,
    fail,
    time_limit,
)
from sluicemq.model.errors import ClientError

ResponseT = TypeVar("ResponseT")
HolderT = TypeVar("HolderT")

Receiver = Callable[[Hashable, ResponseT | ClientError], None]
"""Receives the id of a request and its response, before any later frame is processed, or the error
because of which none will arrive. Does not raise."""


class Pending(dict[Hashable, HolderT]):
    """Requests without a response, by their ids. Set `changed` when one is removed."""

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds to wait for the next response."""
        super().__init__()
        self.changed = asyncio.Event()
        self._timeout = timeout

    async def wait_for_capacity(self, limit: int) -> None:
        """Wait until fewer than `limit` requests are pending.

        Raises RequestTimeout if no response arrives in time.
        """
        while len(self) >= limit:
            self.changed.clear()
            async with time_limit(self._timeout, f"no answer in {self._timeout} s"):
                await self.changed.wait()


class RequestTransport(ClientTransport[FrameT], Generic[FrameT, ResponseT]):
    """Connection that matches responses to requests by their ids.

    pending  receivers of the responses
    """

    def __init__(
        self,
        decoder: Decoder[FrameT],
        timeout: float,
        on_lost: Callable[[Any, ClientError], None],
    ) -> None:
        """`on_lost` is called with the connection and the reason when it is lost. It may be called
        more than once."""
        super().__init__(decoder, timeout)
        self._on_lost = on_lost
        self.pending: Pending[Receiver[ResponseT]] = Pending(timeout)

    def expect(self, identity: Hashable, receive: Receiver[ResponseT]) -> None:
        """Register a request. Raises as `check`; ValueError if the id is already in use."""
        self.check()
        if identity in self.pending:
            raise ValueError(f"the message id {identity!r} is already in use")
        self.pending[identity] = receive

    def forget(self, identity: Hashable, receive: Receiver[ResponseT]) -> None:
        """Unregister a request, if it has had no response; `receive` is its receiver."""
        if self.pending.get(identity) == receive:
            del self.pending[identity]
            self.pending.changed.set()

    def deliver_response(self, identity: Hashable, response: ResponseT | ClientError) -> bool:
        """Pass a response on to the receiver of its request. Return False if there is none."""
        receive = self.pending.pop(identity, None)
        if receive is None:
            return False
        receive(identity, response)
        self.pending.changed.set()
        return True

    async def send_request(
        self,
        identity: Hashable,
        data: bytes,
        *,
        on_response: Callable[[ResponseT], None] | None = None,
        timeout_text: str = "no answer",
    ) -> ResponseT:
        """Send a request and return the response.

        Calls `on_response` with the response before any later frame is processed, also if the call
        has been cancelled or has timed out. Raises as `send`, the error that is the response, and
        RequestTimeout, which begins with `timeout_text`.
        """
        future: asyncio.Future[ResponseT] = asyncio.get_running_loop().create_future()

        def receive(_: Hashable, response: ResponseT | ClientError) -> None:
            if isinstance(response, ClientError):
                fail(future, response)
                return
            if on_response is not None:
                on_response(response)
            if not future.done():
                future.set_result(response)

        self.expect(identity, receive)
        try:
            await self.send(data)
            async with time_limit(self.timeout, f"{timeout_text} in {self.timeout} s"):
                return await future
        finally:
            if on_response is None:
                self.forget(identity, receive)

    def failure_of(self, response: ResponseT) -> ClientError | None:
        """Return the failure that a response to a pipelined request reports, if it is one."""
        return None

    def release(self, reason: ClientError) -> None:
        """Fail all pending requests."""
        for identity in [*self.pending]:
            self.deliver_response(identity, copy_error(reason))
        self._on_lost(self, reason)


class Confirmations(Generic[ResponseT]):
    """Pipelined requests whose responses are awaited together.

    The first failure is kept until `check` or `wait_for_all` raises it.

    pending  connections of the requests
    """

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds to wait for the next response."""
        self.pending: Pending[RequestTransport[Any, ResponseT]] = Pending(timeout)
        self._failure: ClientError | None = None

    def expect(self, connection: RequestTransport[Any, ResponseT], identity: Hashable) -> None:
        """Register a request. Raises as `RequestTransport.expect`."""
        connection.expect(identity, self._receive)
        self.pending[identity] = connection

    def _receive(self, identity: Hashable, response: ResponseT | ClientError) -> None:
        connection = self.pending.pop(identity)
        failure = response if isinstance(response, ClientError) else connection.failure_of(response)
        self._failure = self._failure or failure
        self.pending.changed.set()

    def check(self) -> None:
        """Raise the first failure, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def wait_for_all(self) -> None:
        """Wait until no request is pending. Raises the first failure, once; RequestTimeout."""
        await self.pending.wait_for_capacity(1)
        self.check()

    def forget(self) -> None:
        """Unregister the pending requests."""
        while self.pending:
            identity, connection = self.pending.popitem()
            connection.forget(identity, self._receive)
