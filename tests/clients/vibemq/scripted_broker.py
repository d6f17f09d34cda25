"""VibeMQ broker whose responses a test defines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from sluicemq.clients.vibemq import Backoff
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.wire import Decoder, Frame
from tests.clients.scripted_broker import Decode, ScriptedListener

SHORT_BACKOFF = Backoff(0.01, 0.01)
"""Backoff of tests that reconnect."""
HELLO = Frame(wire.CONNECT_ACK, "x")


class ScriptedBroker(ScriptedListener[Frame]):
    """Broker with defined replies; `received` has the frames of the clients."""

    def __init__(self, answer: Callable[[Frame], list[Frame]] | None = None) -> None:
        super().__init__()
        self._answer = answer or acknowledge

    def decoder(self) -> Decode[Frame]:
        return Decoder().feed

    def handle(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        for answer in self._answer(frame):
            writer.write(wire.encode(answer))
        if frame.type == wire.DISCONNECT:
            writer.close()

    def types(self) -> list[int]:
        return [frame.type for frame in self.received]

    def send(self, *frames: Frame) -> None:
        """Send to the most recent connection."""
        self.connections[-1].write(b"".join(map(wire.encode, frames)))


RESPONSE_TYPES = {
    wire.CONNECT: wire.CONNECT_ACK,
    wire.PING: wire.PONG,
    wire.PUBLISH: wire.PUBLISH_ACK,
    wire.SUBSCRIBE: wire.SUBSCRIBE_ACK,
    wire.UNSUBSCRIBE: wire.UNSUBSCRIBE_ACK,
}


def acknowledge(frame: Frame) -> list[Frame]:
    if frame.type in (wire.ACK, wire.DISCONNECT):
        return []
    return [Frame(RESPONSE_TYPES.get(frame.type, frame.type), frame.id, frame.queue)]


def replying(kind: int, *answers: Frame) -> Callable[[Frame], list[Frame]]:
    """Return a function that sends `answers` for requests of a type, with the request's id, and
    acknowledges the others."""

    def answer(frame: Frame) -> list[Frame]:
        if frame.type != kind:
            return acknowledge(frame)
        return [answer._replace(id=answer.id or frame.id) for answer in answers]

    return answer


def run_scenario(
    scenario: Callable[[ScriptedBroker, int], Coroutine[None, None, None]],
    answer: Callable[[Frame], list[Frame]] | None = None,
) -> ScriptedBroker:
    async def main() -> ScriptedBroker:
        broker = ScriptedBroker(answer)
        async with broker.listen() as port:
            await scenario(broker, port)
        return broker

    return asyncio.run(main())
