"""Blocking use of the asyncio clients.

    with connect("phpmq://127.0.0.1:9100") as client:
        client.send("orders", b"one pizza")
        for message in client.consume("orders", window=10):
            message.ack()

A blocking client has the methods, attributes and errors of its asyncio client. Each call runs the
asyncio method in an event loop and returns its result. The event loop has a thread of its own, in
which the client also reads messages, answers pings and reconnects between calls. It ends with
`close`, or with the `with` statement. Any number of threads may use a blocking client, as any
number of tasks may use its asyncio client.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, nullcontext, suppress
from functools import cache
from inspect import isasyncgenfunction, iscoroutinefunction
from threading import Thread, current_thread
from types import TracebackType
from typing import Any, Final, Self
from weakref import finalize

from anyio.from_thread import BlockingPortal, start_blocking_portal

from sluicemq.clients.connect import connect as connect_client
from sluicemq.model.errors import ConnectionLost

_END: Final = object()
_THREAD: Final = "sluicemq-client"
"""Name of the threads of the event loops."""


class _EventLoop:
    """Event loop in a thread of its own. `end` stops it, as does the last reference to it."""

    def __init__(self) -> None:
        stack = ExitStack()
        self._portal = stack.enter_context(start_blocking_portal(name=_THREAD))
        self.end = finalize(self, _end, self._portal, stack)

    def call(self, function: Callable[..., Any], *args: object, **options: object) -> Any:
        """Call a function in the event loop and return its result.

        An interrupt (Ctrl-C) cancels the call. Raises ConnectionLost after `end`.
        """
        try:
            future = self._portal.start_task_soon(lambda: function(*args, **options))
        except RuntimeError:  # the portal does not run any more
            raise ConnectionLost("the client is closed") from None
        try:
            return future.result()
        except CancelledError:
            raise ConnectionLost("the client is closed") from None
        except BaseException:
            future.cancel()
            raise


def _end(portal: BlockingPortal, stack: ExitStack) -> None:
    if current_thread().name == _THREAD:
        # The garbage collector runs in the thread of an event loop, which cannot wait for its end.
        Thread(target=_end, args=(portal, stack), daemon=True).start()
        return
    with suppress(RuntimeError):  # the portal has ended already
        portal.call(portal.stop, True)
    stack.close()


class Blocking:
    """Blocking view of an asyncio object of a client: a message, a session, a consumer.

    Methods can be called without `await`, `async for` becomes `for`, and `async with` becomes
    `with`. Results that have asyncio methods are views too, and views may be passed as arguments.
    """

    def __init__(self, loop: _EventLoop, target: Any) -> None:
        self._loop = loop
        self._target = target

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        value = getattr(self._target, name)
        if not callable(value):
            return self._view(value)

        def call(*args: object, **options: object) -> Any:
            plain = {option: _target_of(argument) for option, argument in options.items()}
            return self._call(value, *map(_target_of, args), **plain)

        return call

    def __iter__(self) -> Iterator[Any]:
        items: Iterator[Any] = self._call(aiter, self._target)
        return items

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # an error in the context is raised instead of a later one from closing
        with suppress(Exception) if error is not None else nullcontext():
            self.close()

    def __repr__(self) -> str:
        return f"<blocking {self._target!r}>"

    def _call(self, function: Callable[..., Any], *args: object, **options: object) -> Any:
        return self._view(self._loop.call(function, *args, **options))

    def _view(self, value: Any) -> Any:
        if isinstance(value, AsyncGenerator):
            return self._iterate(value)
        return Blocking(self._loop, value) if _has_asyncio_methods(value.__class__) else value

    def _iterate(self, items: AsyncGenerator[object]) -> Iterator[Any]:
        async def following() -> object:
            return await anext(items, _END)

        try:
            while (item := self._call(following)) is not _END:
                yield item
        finally:
            with suppress(ConnectionLost):
                self._call(items.aclose)


class BlockingClient(Blocking):
    """Blocking view of a client. Closes the client and ends its thread with `close`."""

    def __init__(
        self, connect: Callable[..., Awaitable[object]], *args: object, **options: object
    ) -> None:
        """Start the event loop and call `connect` with the other arguments. Raises as `connect`."""
        loop = _EventLoop()
        try:
            super().__init__(loop, loop.call(connect, *args, **options))
        except BaseException:
            loop.end()
            raise

    def close(self) -> None:
        """Close the client as its asyncio `close` does, and end the thread.

        A second call does nothing. Calls that wait in other threads raise ConnectionLost.
        """
        try:
            self._loop.call(self._target.close)
        except ConnectionLost:
            if self._loop.end.alive:
                raise
        finally:
            self._loop.end()


def connect(url: str, **options: object) -> BlockingClient:
    """Connect the client of a URL's protocol, as `clients.connect.connect` does."""
    return BlockingClient(connect_client, url, **options)


def _target_of(value: object) -> object:
    return value._target if isinstance(value, Blocking) else value


@cache
def _has_asyncio_methods(kind: type) -> bool:
    methods = [getattr(kind, name, None) for name in dir(kind)]
    return any(iscoroutinefunction(method) or isasyncgenfunction(method) for method in methods)
