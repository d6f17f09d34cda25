"""asyncio client of a broker's management API.

    async with ManagementClient(target({"url": "http://localhost:7680"})) as client:
        user = await client.call(GET_USER, NamePath(name="shop"))

`sluicemq.management` declares the operations with the types of their parameters and responses.
`BlockingClient(ManagementClient.open, target)` has the same methods without `await`.

The client uses the `HttpConnection` of Spark tasks in a thread: requests are small, and http.client
loads in less time than an HTTP library takes.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
from typing import Self

from anyio.to_thread import run_sync

from sluicemq.clients.http import (
    TIMEOUT,
    HttpConnection,
    HttpRefusal,
    HttpResponse,
    HttpTarget,
    Request,
    answer_in,
    error_in,
    request_of,
    stranger,
)
from sluicemq.clients.transport import AsyncClient
from sluicemq.management.operation import (
    AnswerT,
    ApiOperation,
    ParametersT,
)
from sluicemq.model.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationMissing,
    ConnectionLost,
    SluiceError,
)


class ManagementClient(AsyncClient):
    """Client of one broker. It sends the requests of concurrent tasks one after the other."""

    def __init__(self, target: HttpTarget, timeout: float = TIMEOUT) -> None:
        """Set `timeout`, the time limit in seconds for the next bytes of a response. The first
        request connects."""
        self._target = target
        self._timeout = timeout
        self._connection = HttpConnection(target, timeout)
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, target: HttpTarget, timeout: float = TIMEOUT) -> Self:
        """Return a client, see the constructor."""
        return cls(target, timeout)

    async def call(
        self, operation: ApiOperation[ParametersT, AnswerT], parameters: ParametersT
    ) -> AnswerT:
        """Carry out an operation and return its response.

        Raises ConnectionLost if the broker does not respond, AuthenticationMissing,
        AuthenticationFailed, AccessDenied, HttpRefusal for all other errors, and
        UnicodeEncodeError for a body with text that is not UTF-8.
        """
        request = request_of(operation, parameters)
        async with self._turn:
            try:
                response = await run_sync(
                    exchange, self._connection, self._target, request, abandon_on_cancel=True
                )
            except asyncio.CancelledError:
                # the thread still uses the connection
                self._connection = HttpConnection(self._target, self._timeout)
                raise
        return answer_in(operation, self._target, response)

    async def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()


def exchange(connection: HttpConnection, target: HttpTarget, request: Request) -> HttpResponse:
    """Send a request and return its response. Raises as `ManagementClient.call`."""
    # the server may have closed an idle connection; only requests without side effects are
    # repeated
    again = connection.connected and request[0] == "GET"
    while True:
        try:
            connection.send(*request)
            response = connection.receive()
        except (OSError, http.client.HTTPException) as fault:
            connection.close()
            if again and not isinstance(fault, TimeoutError):
                again = False
                continue
            raise lost(target, fault) from fault
        if response.status >= 400:
            raise refused(target, response)
        return response


def lost(target: HttpTarget, fault: Exception) -> ConnectionLost:
    """Return the error for a connection that cannot be made or breaks."""
    if isinstance(fault, ssl.SSLCertVerificationError):
        return ConnectionLost(f"the certificate of {target} is not trusted: {fault.verify_message}")
    reason = getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
    if isinstance(fault, TimeoutError):
        return ConnectionLost(f"the broker at {target} does not answer: {reason}")
    return ConnectionLost(f"no broker answers at {target}: {reason}")


def refused(target: HttpTarget, response: HttpResponse) -> SluiceError:
    """Return the error for an error response."""
    code, message = error_in(response)
    text = f"{target}: {message}"
    if response.status == 401:
        missing = code == "authentication-required"
        return AuthenticationMissing(text) if missing else AuthenticationFailed(text)
    if response.status == 403:
        return AccessDenied(text)
    if not code:
        return stranger(target)
    return HttpRefusal(text, response.status, code, response.body)
