"""PHPMQ, msglite and VibeMQ clients for the cases of jms/src/interop/Others.java."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.clients.vibemq import VibeMQClient
from sluicemq.model.errors import ClientError

SCHEMES: Final = ("phpmq", "msglite", "vibemq")
LISTEN: Final = tuple(f"{scheme}://127.0.0.1:0" for scheme in SCHEMES)
TIMEOUT_SECONDS: Final = 600


def canonical_json(body: bytes) -> bytes:
    """Return JSON with sorted keys and without spaces, so that bodies can be compared."""
    return json.dumps(json.loads(body), sort_keys=True, separators=(",", ":")).encode()


class OtherProtocolClients:
    """Clients of a broker in threads, which run until it stops or is killed."""

    def __init__(self, broker: LocalBroker) -> None:
        self._ports = {scheme: broker.port(scheme) for scheme in SCHEMES}
        work = (
            self._reply_by_phpmq,
            self._reply_by_msglite,
            self._forward_by_msglite,
            self._reply_by_vibemq,
            self._query_by_msglite,
            self._request_by_vibemq,
        )
        self._threads = [
            threading.Thread(target=_run_until_disconnected, args=(call,)) for call in work
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for thread in self._threads:
            thread.join()

    def _reply_by_phpmq(self) -> None:
        with BlockingClient(PhpmqClient.connect, port=self._ports["phpmq"]) as client:
            client.subscribe("others-php", 1)
            while True:
                request = client.receive(TIMEOUT_SECONDS)
                request.answer(b"php received " + canonical_json(request.body))
                request.ack()

    def _reply_by_msglite(self) -> None:
        with BlockingClient(MsgliteClient.connect, port=self._ports["msglite"]) as client:
            while request := client.ready("others-shell", timeout=TIMEOUT_SECONDS):
                client.send(
                    request.reply_to or "", b"shell received " + canonical_json(request.body), 60
                )

    def _forward_by_msglite(self) -> None:
        with BlockingClient(MsgliteClient.connect, port=self._ports["msglite"]) as client:
            while request := client.ready("others-forward", timeout=TIMEOUT_SECONDS):
                client.send("forwarded", request.body, 60, request.reply_to)

    def _reply_by_vibemq(self) -> None:
        with BlockingClient(
            VibeMQClient.connect, port=self._ports["vibemq"], reconnect=None
        ) as client:
            subscription = client.subscribe("others-dotnet")
            while True:
                request = subscription.receive(TIMEOUT_SECONDS)
                headers = {"correlationId": request.headers.get("correlationId", request.id)}
                reply = "dotnet received " + canonical_json(request.payload).decode()
                client.publish(request.headers["replyTo"], reply, headers)
                request.ack()

    def _query_by_msglite(self) -> None:
        with BlockingClient(MsgliteClient.connect, port=self._ports["msglite"]) as client:
            reply = client.query("requests-by-shell", b"request", TIMEOUT_SECONDS)
            assert reply is not None
            client.send("replies-to-shell", reply.body, TIMEOUT_SECONDS)

    def _request_by_vibemq(self) -> None:
        with BlockingClient(
            VibeMQClient.connect, port=self._ports["vibemq"], reconnect=None
        ) as client:
            subscription = client.subscribe("dotnet-answers")
            headers = {
                "replyTo": "dotnet-answers",
                "correlationId": "c-1",
                "content-type": "text/plain",
                "priority": "High",
                "JMSType": "question",
            }
            client.publish("requests-by-dotnet", "request", headers)
            reply = subscription.receive(TIMEOUT_SECONDS)
            client.publish("replies-to-dotnet", [reply.json(), reply.headers["correlationId"]])


def _run_until_disconnected(work: Callable[[], None]) -> None:
    with suppress(ClientError):
        work()
