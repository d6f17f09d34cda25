"""Workers that speak PHPMQ, msglite and VibeMQ, for the cases of jms/src/interop/Others.java."""

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
PATIENCE: Final = 600


def canonical_json(body: bytes) -> bytes:
    """Return JSON in the compared form: sorted keys, no spaces."""
    return json.dumps(json.loads(body), sort_keys=True, separators=(",", ":")).encode()


class Others:
    """Clients of one broker that run until it stops or is killed."""

    def __init__(self, broker: LocalBroker) -> None:
        self._ports = {scheme: broker.port(scheme) for scheme in SCHEMES}
        work = (self._php, self._shell, self._forward, self._dotnet, self._ask, self._publish)
        self._threads = [threading.Thread(target=_until_the_end, args=(call,)) for call in work]

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

    def _php(self) -> None:
        with BlockingClient(PhpmqClient.connect, port=self._ports["phpmq"]) as client:
            client.subscribe("others-php", 1)
            while True:
                question = client.receive(PATIENCE)
                question.answer(b"php saw " + canonical_json(question.body))
                question.ack()

    def _shell(self) -> None:
        with BlockingClient(MsgliteClient.connect, port=self._ports["msglite"]) as client:
            while question := client.ready("others-shell", timeout=PATIENCE):
                client.send(
                    question.reply_to or "", b"shell saw " + canonical_json(question.body), 60
                )

    def _forward(self) -> None:
        with BlockingClient(MsgliteClient.connect, port=self._ports["msglite"]) as client:
            while question := client.ready("others-forward", timeout=PATIENCE):
                client.send("forwarded", question.body, 60, question.reply_to)

    def _dotnet(self) -> None:
        with BlockingClient(
            VibeMQClient.connect, port=self._ports["vibemq"], reconnect=None
        ) as client:
            subscription = client.subscribe("others-dotnet")
            while True:
                question = subscription.receive(PATIENCE)
                headers = {"correlationId": question.headers.get("correlationId", question.id)}
                answer = "dotnet saw " + canonical_json(question.payload).decode()
                client.publish(question.headers["replyTo"], answer, headers)
                question.ack()

    def _ask(self) -> None:
        with BlockingClient(MsgliteClient.connect, port=self._ports["msglite"]) as client:
            answer = client.query("asked-by-shell", b"who?", PATIENCE)
            assert answer is not None
            client.send("told-by-shell", answer.body, PATIENCE)

    def _publish(self) -> None:
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
            client.publish("asked-by-dotnet", "who?", headers)
            answer = subscription.receive(PATIENCE)
            client.publish("told-by-dotnet", [answer.json(), answer.headers["correlationId"]])


def _until_the_end(work: Callable[[], None]) -> None:
    with suppress(ClientError):
        work()
