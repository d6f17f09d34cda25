"""asyncio client of a broker's management API.

    async with ManagementClient(target({"url": "http://localhost:7680"})) as client:
        user = await client.call(GET_USER, NamePath(name="shop"))

`sluicemq.management` declares the operations with the types of their parameters and responses.
`BlockingClient(ManagementClient.open, target)` has the same methods without `await`.

The client uses the `HttpClient` of Spark tasks in a thread: requests are small, and http.client
loads in less time than an HTTP library takes.
"""

from __future__ import annotations

import asyncio
from typing import Self

from anyio.to_thread import run_sync

from sluicemq.clients.http import TIMEOUT, HttpClient, HttpTarget
from sluicemq.clients.transport import AsyncClient
from sluicemq.management.operation import (
    AnswerT,
    ApiOperation,
    ParametersT,
)


class ManagementClient(AsyncClient):
    """Client of one broker. It sends the requests of concurrent tasks one after the other."""

    def __init__(self, target: HttpTarget, timeout: float = TIMEOUT) -> None:
        """Set `timeout`, the time limit in seconds for the next bytes of a response. The first
        request connects."""
        self._target = target
        self._timeout = timeout
        self._client = HttpClient(target, timeout=timeout)
        self._lock = asyncio.Lock()

    @classmethod
    async def open(cls, target: HttpTarget, timeout: float = TIMEOUT) -> Self:
        """Return a client, see the constructor."""
        return cls(target, timeout)

    async def call(
        self, operation: ApiOperation[ParametersT, AnswerT], parameters: ParametersT
    ) -> AnswerT:
        """Carry out an operation and return its response.

        Raises as `HttpClient.call`.
        """
        async with self._lock:
            try:
                return await run_sync(
                    self._client.call, operation, parameters, abandon_on_cancel=True
                )
            except asyncio.CancelledError:
                # the thread still uses the connection
                self._client = HttpClient(self._target, timeout=self._timeout)
                raise

    async def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._client.close()
