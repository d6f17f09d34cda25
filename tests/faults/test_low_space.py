"""A disk that is nearly full, and one that is full: persistent messages are refused in the terms of
each protocol, consumers drain, and publishing resumes by itself. Nothing confirmed is lost."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sluicemq.cli.api import Api
from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.http import HttpTarget
from sluicemq.clients.jmq import JmqClient, Status, StatusError
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.clients.vibemq import VibeMQClient
from sluicemq.management.destinations import PURGE_DESTINATION, DestinationBody, PurgeRequest
from sluicemq.management.messages import (
    PUBLISH_MESSAGE,
    PublishRequest,
    PublishResult,
)
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ClientError, RequestRefused
from tests.faults.filesystem import write_sizes
from tests.faults.plan import machine
from tests.support.polling import wait_until

MIB = 1 << 20
SIZE = 256 * MIB
LISTEN = (
    "phpmq://127.0.0.1:0",
    "vibemq://127.0.0.1:0",
    "jmq://127.0.0.1:0",
    "msglite://127.0.0.1:0?durability=sync",
    "http://127.0.0.1:0",
)
ENVIRONMENT = {
    "SLUICEMQ_JOURNAL__SEGMENT_BYTES": "1 MiB",
    "SLUICEMQ_JOURNAL__PREALLOCATE_BYTES": "256 KiB",
    "SLUICEMQ_JOURNAL__DISK_FREE_LIMIT_BYTES": "32 MiB",
    "SLUICEMQ_JOURNAL__RESERVE_BYTES": "4 MiB",
}
HOST = "127.0.0.1"
TIMEOUT_SECONDS = 30.0


class Machine:
    """A broker on an emulated file system whose free space can be set."""

    def __init__(self, directory: Path) -> None:
        self.sizes = directory / "sizes"
        directory.mkdir()
        self.others(0)
        program = machine(f"space:{self.sizes}")
        self.broker = LocalBroker(directory, LISTEN, environment=ENVIRONMENT, program=program)

    def others(self, size: int) -> None:
        """Set the bytes of the file system used by other programs."""
        write_sizes(self.sizes, SIZE, size)

    def close(self) -> None:
        self.broker.kill()

    def used(self) -> int:
        """Return the bytes on disk that the journal uses."""
        total = 0
        for file in (self.broker.directory / "journal").iterdir():
            with suppress(FileNotFoundError):  # the broker has just removed it
                total += 512 * file.stat().st_blocks * (file.name != "ballast")
        return total

    def alarm(self) -> str:
        """The one about disk space; "" = none. A slow machine may have others."""
        codes = [alarm["code"] for alarm in self.broker.status()["alarms"]]
        return next((code for code in codes if code in ("disk-space", "disk-full")), "")

    def become(self, alarm: str, others: int) -> None:
        """Set the free space, and wait until the broker has noticed; "" = no alarm."""
        self.others(others)
        wait_until(lambda: self.alarm() == alarm)

    def http(self) -> Api:
        return Api(
            HttpTarget("localhost", 0, path=str(self.broker.directory / "admin.sock")),
            timeout=TIMEOUT_SECONDS,
        )


class MountedMachine(Machine):
    """The same with a tmpfs of its own for the journal. Needs the right to mount."""

    def __init__(self, directory: Path) -> None:
        self._journal = directory / "journal"
        self._journal.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", self._journal]
        subprocess.run(mount, check=True)
        self.broker = LocalBroker(directory, LISTEN, environment=ENVIRONMENT)

    def others(self, size: int) -> None:
        ballast = self._journal / "ballast"
        ballast.unlink(missing_ok=True)
        with ballast.open("wb") as file, suppress(OSError):
            for offset in range(0, size, MIB // 16):  # as much as fits
                os.posix_fallocate(file.fileno(), offset, MIB // 16)

    def close(self) -> None:
        super().close()
        subprocess.run(["umount", self._journal], check=True)


def may_mount() -> bool:
    """Return whether this process can mount a file system."""
    command = ["unshare", "--mount", "true"]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


WEB = Address(Kind.QUEUE, "web")
MACHINES = [Machine, *([MountedMachine] if may_mount() else [])]


@pytest.fixture(params=MACHINES)
def small(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    local_machine: Machine = request.param(tmp_path / "broker")
    try:
        local_machine.broker.start()
        yield local_machine
    finally:
        local_machine.close()


def publish_over_http(api: Api, body: str) -> PublishResult:
    message = DestinationBody(address=WEB, body=PublishRequest(body=body))
    return api.call(PUBLISH_MESSAGE, message)


def test_each_protocol_refuses_and_resumes(small: Machine) -> None:
    port = small.broker.port
    with (
        BlockingClient(VibeMQClient.connect, HOST, port("vibemq")) as vibemq,
        BlockingClient(JmqClient.connect, HOST, port("jmq")) as jmq,
        BlockingClient(PhpmqClient.connect, HOST, port("phpmq")) as phpmq,
        small.http() as http,
    ):
        vibemq.create_queue("vibe")
        vibemq.publish("vibe", 1)
        session = jmq.session()
        producer = session.producer("jms")
        producer.send("1")
        phpmq.send("php", b"1")
        publish_over_http(http, "1")
        with BlockingClient(MsgliteClient.connect, HOST, port("msglite")) as msglite:
            msglite.send("lite", b"1", 60)
            assert msglite.query("unused", b"", 0) is None  # confirms the earlier messages

        small.become("disk-space", SIZE - 20 * MIB)
        with pytest.raises(RequestRefused, match=r"QUEUE_FULL.*nearly full"):
            vibemq.publish("vibe", 2)
        with pytest.raises(StatusError) as error:
            producer.send("2")
        assert error.value.status == Status.RESOURCE_FULL
        with pytest.raises(RequestRefused, match="nearly full"):
            publish_over_http(http, "2")
        with BlockingClient(MsgliteClient.connect, HOST, port("msglite")) as msglite:
            msglite.send("lite", b"2", 60)
            with pytest.raises(ClientError, match="nearly full"):
                msglite.query("unused", b"", 0)
        phpmq.send("php", b"2")

        subscription = vibemq.subscribe("vibe")
        message = subscription.receive(TIMEOUT_SECONDS)
        assert message.payload == b"1"
        message.ack()
        jms_message = session.consumer("jms").receive(TIMEOUT_SECONDS)
        assert jms_message is not None
        assert jms_message.body == "1"
        phpmq.subscribe("php")
        first_message = phpmq.receive(TIMEOUT_SECONDS)
        assert first_message.body == b"1"
        first_message.ack()  # behind the send that waits, on the same connection
        with BlockingClient(MsgliteClient.connect, HOST, port("msglite")) as msglite:
            lite_message = msglite.ready("lite", timeout=10)
            assert lite_message is not None
            assert lite_message.body == b"1"
        http.call(PURGE_DESTINATION, DestinationBody(address=WEB, body=PurgeRequest()))
        wait_until(lambda: all(not row["ready"] for row in small.broker.status()["destinations"]))

        small.become("", 0)
        assert phpmq.receive(TIMEOUT_SECONDS).body == b"2"
        vibemq.publish("vibe", 3)
        assert subscription.receive(TIMEOUT_SECONDS).payload == b"3"
        producer.send("3")
        publish_over_http(http, "3")
    assert small.broker.stop() == 0
    assert "Traceback" not in small.broker.log.read_text()


def test_a_full_disk_is_drained_across_restarts(small: Machine) -> None:
    broker = small.broker
    count = 2000
    with BlockingClient(VibeMQClient.connect, HOST, broker.port("vibemq")) as client:
        padding = "x" * 4000
        client.publish_all("vibe", [{"number": number, "pad": padding} for number in range(count)])
    small.become("disk-space", SIZE - small.used())  # not a block is free
    broker.kill()
    broker.start()
    assert small.alarm() == "disk-space"
    numbers: list[int] = []

    def consume(most: int) -> None:
        with BlockingClient(VibeMQClient.connect, HOST, broker.port("vibemq")) as client:
            subscription = client.subscribe("vibe")
            for _ in range(most):
                message = subscription.receive(TIMEOUT_SECONDS)
                numbers.append(json.loads(message.payload)["number"])
                message.ack()
            client.ping()

    consume(count // 2)
    broker.kill()
    broker.start()
    remaining = broker.status()["destinations"][0]["ready"]
    assert count - count // 2 <= remaining <= count
    consume(remaining)
    assert set(numbers) == set(range(count))
    wait_until(lambda: broker.status()["destinations"][0]["unacked"] == 0)
    small.become("", 0)
    with BlockingClient(VibeMQClient.connect, HOST, broker.port("vibemq")) as client:
        client.publish("vibe", {"number": -1})
    assert broker.stop() == 0
    assert "Traceback" not in broker.log.read_text()
