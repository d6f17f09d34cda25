"""msglite clients in Perl, which share no code with the broker, against a broker process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient

SCRIPT = Path(__file__).with_name("worker.pl")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path, ["msglite://127.0.0.1:0", "phpmq://127.0.0.1:0"]) as running:
        yield running


def perl(broker: LocalBroker, role: str, count: int) -> subprocess.Popen[str]:
    command = ["perl", str(SCRIPT), str(broker.port("msglite")), role, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def output_of(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=300)
    return output.strip()


def test_requests_from_perl_to_perl(broker: LocalBroker) -> None:
    worker = perl(broker, "worker", 300)
    requester = perl(broker, "asker", 300)
    assert output_of(requester) == "done"
    assert output_of(worker) == "done"


def test_requests_between_python_and_perl(broker: LocalBroker) -> None:
    worker = perl(broker, "worker", 50)
    with BlockingClient(MsgliteClient.connect, port=broker.port("msglite")) as client:
        for number in range(50):
            reply = client.query("jobs", b"ask %d" % number, timeout=60)
            assert reply is not None
            assert reply.body == (b"ask %d" % number)[::-1]
        assert output_of(worker) == "done"
        requester = perl(broker, "asker", 50)
        for _ in range(50):
            request = client.ready("jobs", timeout=60)
            assert request is not None
            assert request.reply_to is not None
            client.send(request.reply_to, request.body[::-1], timeout=60)
        assert output_of(requester) == "done"


def test_perl_sends_and_phpmq_consumes(broker: LocalBroker) -> None:
    assert output_of(perl(broker, "sender", 100)) == "done"
    with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client:
        client.subscribe("letters", 10)
        for number in range(1, 101):
            message = client.receive(60)
            assert message.body == b"body %d" % number
            message.ack()
