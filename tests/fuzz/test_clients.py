"""Clients that receive invalid input: only errors of the client libraries, and no hang."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.errors import ClientError
from tests.fuzz import corpus
from tests.fuzz.mutations import mutate

seeds = st.randoms(use_true_random=False)
MANY = settings(max_examples=2 * settings.default.max_examples)
TIMEOUT = 30.0
"""Seconds. The broker has said all and has closed, so that nothing has to be waited for."""


def broker_input(chance: Random, conversation: corpus.Conversation) -> bytes:
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(100))
    return b"".join(mutate(chance, conversation(chance)))


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A directory for sockets, whose paths must be short."""
    with TemporaryDirectory() as name:
        yield Path(name)


def converse(directory: Path, data: bytes, user: Callable[[str], Awaitable[None]]) -> None:
    """Run `user` with a broker that sends `data` and closes. No task may be left."""
    errors: list[dict[str, Any]] = []

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        writer.close()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        path = str(directory / "socket")
        server = await asyncio.start_unix_server(say, path)
        async with server, asyncio.timeout(TIMEOUT):
            await user(path)

    asyncio.run(main())
    assert errors == []


@MANY
@given(chance=seeds)
def test_asynchronous_phpmq(directory: Path, chance: Random) -> None:
    data = broker_input(chance, corpus.phpmq_broker)

    async def user(path: str) -> None:
        client = await PhpmqClient.connect(path=path, timeout=TIMEOUT)
        with contextlib.suppress(ClientError):
            await client.subscribe("hostile.a", 1)
            while True:
                assert (await client.receive(TIMEOUT)).queue == "hostile.a"
        await client.close()

    converse(directory, data, user)


@MANY
@given(chance=seeds)
def test_asynchronous_msglite(directory: Path, chance: Random) -> None:
    data = broker_input(chance, corpus.msglite_broker)

    async def user(path: str) -> None:
        client = await MsgliteClient.connect(path=path, timeout=TIMEOUT)
        with contextlib.suppress(ClientError):
            while True:
                await client.query("a", b"b", timeout=1)
        with contextlib.suppress(ClientError):
            await client.close()

    converse(directory, data, user)
