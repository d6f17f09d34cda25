"""Requests and their responses, for protocols whose responses name the request.

`RequestTransport` passes each response to the receiver that expects it. `Confirmations` collects
the results of pipelined requests, whose responses are awaited together.

A request that fails because of its connection has that error as its response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

from sluicemq.clients.transport import ClientTransport, Decoder, FrameT, again, fail, time_limit
from sluicemq.model.errors import ClientError

ResponseT = TypeVar("ResponseT")
HolderT = TypeVar("HolderT")

Receiver = Callable[[Hashable, ResponseT | ClientError], None]
"""Receives the id of a request and its response, before any later frame is processed, or the error
because of which none will arrive. Does not raise."""


class _Pending(dict[Hashable, HolderT]):
    """Requests without a response, by their ids. Set `changed` when one is removed."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()

    async def wait_for_capacity(self, most: int, timeout: float) -> None:
        """Wait until fewer than `most` requests are pending.

        Raises RequestTimeout if none is removed for `timeout` seconds.
        """
        while len(self) >= most:
            self.changed.clear()
            async with time_limit(timeout, f"no answer in {timeout} s"):
                await self.changed.wait()


class RequestTransport(ClientTransport[FrameT], Generic[FrameT, ResponseT]):
    """Connection that matches responses to requests by their ids."""

    def __init__(
        self,
        decoder: Decoder[FrameT],
        timeout: float,
        lost: Callable[[Any, ClientError], None],
    ) -> None:
        """`lost` is called with the connection and the reason when it is lost. It may be called
        more than once."""
        super().__init__(decoder, timeout)
        self._lost = lost
        self._pending: _Pending[Receiver[ResponseT]] = _Pending()

    def expect(self, identity: Hashable, receive: Receiver[ResponseT]) -> None:
        """Register a request. Raises as `check`; ValueError if the id is already in use."""
        self.check()
        if identity in self._pending:
            raise ValueError(f"the message id {identity!r} is already in use")
        self._pending[identity] = receive

    def forget(self, identity: Hashable, receive: Receiver[ResponseT]) -> None:
        """Unregister a request, if it has had no response; `receive` is its receiver."""
        if self._pending.get(identity) == receive:
            del self._pending[identity]
            self._pending.changed.set()

    def answer(self, identity: Hashable, response: ResponseT | ClientError) -> bool:
        """Pass a response on to the receiver of its request. Return False if there is none."""
        receive = self._pending.pop(identity, None)
        if receive is None:
            return False
        receive(identity, response)
        self._pending.changed.set()
        return True

    async def ask(
        self,
        identity: Hashable,
        data: bytes,
        *,
        then: Callable[[ResponseT], None] | None = None,
        what: str = "no answer",
    ) -> ResponseT:
        """Send a request and return the response.

        Calls `then` with the response before any later frame is processed, also if the call has
        been cancelled or has timed out. Raises as `send`, the error that is the response, and
        RequestTimeout, which begins with `what`.
        """
        future: asyncio.Future[ResponseT] = asyncio.get_running_loop().create_future()

        def receive(_: Hashable, response: ResponseT | ClientError) -> None:
            if then is not None and not isinstance(response, ClientError):
                then(response)
            if isinstance(response, ClientError):
                fail(future, response)
            elif not future.done():
                future.set_result(response)

        self.expect(identity, receive)
        try:
            await self.send(data)
            async with time_limit(self.timeout, f"{what} in {self.timeout} s"):
                return await future
        finally:
            if then is None:
                self.forget(identity, receive)

    def wait_for_capacity(self, most: int) -> Awaitable[None]:
        """Wait until fewer than `most` requests are pending.

        Raises RequestTimeout if no response arrives in time.
        """
        return self._pending.wait_for_capacity(most, self.timeout)

    def failure_of(self, response: ResponseT) -> ClientError | None:
        """Return the failure that a response to a pipelined request reports, if it is one."""
        return None

    def release(self, reason: ClientError) -> None:
        """Fail all pending requests."""
        for identity in [*self._pending]:
            self.answer(identity, again(reason))
        self._lost(self, reason)


class Confirmations(Generic[ResponseT]):
    """Pipelined requests whose responses are awaited together.

    The first failure is kept until `check` or `wait_for_all` raises it.
    """

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds to wait for the next response."""
        self._timeout = timeout
        self._pending: _Pending[RequestTransport[Any, ResponseT]] = _Pending()
        self._failure: ClientError | None = None

    def expect(self, connection: RequestTransport[Any, ResponseT], identity: Hashable) -> None:
        """Register a request. Raises as `RequestTransport.expect`."""
        connection.expect(identity, self._receive)
        self._pending[identity] = connection

    def _receive(self, identity: Hashable, response: ResponseT | ClientError) -> None:
        connection = self._pending.pop(identity)
        failure = response if isinstance(response, ClientError) else connection.failure_of(response)
        self._failure = self._failure or failure
        self._pending.changed.set()

    def check(self) -> None:
        """Raise the first failure, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def wait_for_capacity(self, most: int) -> Awaitable[None]:
        """Wait until fewer than `most` requests are pending.

        Raises RequestTimeout if no response arrives in time.
        """
        return self._pending.wait_for_capacity(most, self._timeout)

    async def wait_for_all(self) -> None:
        """Wait until no request is pending. Raises the first failure, once; RequestTimeout."""
        await self.wait_for_capacity(1)
        self.check()

    def forget(self) -> None:
        """Unregister the pending requests."""
        while self._pending:
            identity, connection = self._pending.popitem()
            connection.forget(identity, self._receive)
