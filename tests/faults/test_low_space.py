"""Nearly full and full disks: each protocol rejects persistent messages with its own error,
consumers drain the queues, and publishing resumes automatically. No confirmed message is lost."""

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


class SmallDisk:
    """A broker on a simulated file system whose free space can be set."""

    def __init__(self, directory: Path) -> None:
        self.sizes = directory / "sizes"
        directory.mkdir()
        self.set_other_use(0)
        program = machine(f"space:{self.sizes}")
        self.broker = LocalBroker(directory, LISTEN, environment=ENVIRONMENT, program=program)

    def set_other_use(self, size: int) -> None:
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
        """Return the alarm about disk space, or ""; a slow machine may raise others."""
        codes = [alarm["code"] for alarm in self.broker.status()["alarms"]]
        return next((code for code in codes if code in ("disk-space", "disk-full")), "")

    def fill_until_alarm(self, alarm: str, set_other_use: int) -> None:
        """Set the space used by other programs, and wait for the alarm of the broker; "": none."""
        self.set_other_use(set_other_use)
        wait_until(lambda: self.alarm() == alarm)

    def http(self) -> Api:
        return Api(
            HttpTarget(path=str(self.broker.directory / "admin.sock")),
            timeout=TIMEOUT_SECONDS,
        )


class MountedDisk(SmallDisk):
    """A broker whose journal is on a tmpfs; needs the privilege to mount."""

    def __init__(self, directory: Path) -> None:
        self._journal = directory / "journal"
        self._journal.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", self._journal]
        subprocess.run(mount, check=True)
        self.broker = LocalBroker(directory, LISTEN, environment=ENVIRONMENT)

    def set_other_use(self, size: int) -> None:
        ballast = self._journal / "ballast"
        ballast.unlink(missing_ok=True)
        with ballast.open("wb") as file, suppress(OSError):
            for offset in range(0, size, MIB // 16):  # until the file system is full
                os.posix_fallocate(file.fileno(), offset, MIB // 16)

    def close(self) -> None:
        super().close()
        subprocess.run(["umount", self._journal], check=True)


def can_mount() -> bool:
    """Return whether this process can mount a file system."""
    command = ["unshare", "--mount", "true"]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


WEB = Address(Kind.QUEUE, "web")
DISKS = [SmallDisk, *([MountedDisk] if can_mount() else [])]


@pytest.fixture(params=DISKS)
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SmallDisk]:
    disk: SmallDisk = request.param(tmp_path / "broker")
    try:
        disk.broker.start()
        yield disk
    finally:
        disk.close()


def publish_over_http(api: Api, body: str) -> PublishResult:
    message = DestinationBody(address=WEB, body=PublishRequest(body=body))
    return api.call(PUBLISH_MESSAGE, message)


def test_each_protocol_rejects_messages_and_resumes(small_disk: SmallDisk) -> None:
    port = small_disk.broker.port
    with (
        BlockingClient(VibeMQClient.connect, HOST, port("vibemq")) as vibemq,
        BlockingClient(JmqClient.connect, HOST, port("jmq")) as jmq,
        BlockingClient(PhpmqClient.connect, HOST, port("phpmq")) as phpmq,
        small_disk.http() as http,
    ):
        vibemq.create_queue("vibemq")
        vibemq.publish("vibemq", 1)
        session = jmq.session()
        producer = session.producer("jms")
        producer.send("1")
        phpmq.send("phpmq", b"1")
        publish_over_http(http, "1")
        with BlockingClient(MsgliteClient.connect, HOST, port("msglite")) as msglite:
            msglite.send("msglite", b"1", 60)
            assert msglite.query("unused", b"", 0) is None  # confirms the earlier messages

        small_disk.fill_until_alarm("disk-space", SIZE - 20 * MIB)
        with pytest.raises(RequestRefused, match=r"QUEUE_FULL.*nearly full"):
            vibemq.publish("vibemq", 2)
        with pytest.raises(StatusError) as error:
            producer.send("2")
        assert error.value.status == Status.RESOURCE_FULL
        with pytest.raises(RequestRefused, match="nearly full"):
            publish_over_http(http, "2")
        with BlockingClient(MsgliteClient.connect, HOST, port("msglite")) as msglite:
            msglite.send("msglite", b"2", 60)
            with pytest.raises(ClientError, match="nearly full"):
                msglite.query("unused", b"", 0)
        phpmq.send("phpmq", b"2")

        subscription = vibemq.subscribe("vibemq")
        message = subscription.receive(TIMEOUT_SECONDS)
        assert message.payload == b"1"
        message.ack()
        jms_message = session.consumer("jms").receive(TIMEOUT_SECONDS)
        assert jms_message is not None
        assert jms_message.body == "1"
        phpmq.subscribe("phpmq")
        first_message = phpmq.receive(TIMEOUT_SECONDS)
        assert first_message.body == b"1"
        first_message.ack()  # read although the publish before it is blocked
        with BlockingClient(MsgliteClient.connect, HOST, port("msglite")) as msglite:
            lite_message = msglite.ready("msglite", timeout=10)
            assert lite_message is not None
            assert lite_message.body == b"1"
        http.call(PURGE_DESTINATION, DestinationBody(address=WEB, body=PurgeRequest()))
        wait_until(
            lambda: all(not row["ready"] for row in small_disk.broker.status()["destinations"])
        )

        small_disk.fill_until_alarm("", 0)
        assert phpmq.receive(TIMEOUT_SECONDS).body == b"2"
        vibemq.publish("vibemq", 3)
        assert subscription.receive(TIMEOUT_SECONDS).payload == b"3"
        producer.send("3")
        publish_over_http(http, "3")
    assert small_disk.broker.stop() == 0
    assert "Traceback" not in small_disk.broker.log.read_text()


def test_queue_on_a_full_disk_is_drained_across_restarts(small_disk: SmallDisk) -> None:
    broker = small_disk.broker
    count = 2000
    with BlockingClient(VibeMQClient.connect, HOST, broker.port("vibemq")) as client:
        padding = "x" * 4000
        client.publish_all(
            "vibemq", [{"number": number, "pad": padding} for number in range(count)]
        )
    small_disk.fill_until_alarm("disk-space", SIZE - small_disk.used())  # no free block
    broker.kill()
    broker.start()
    assert small_disk.alarm() == "disk-space"
    numbers: list[int] = []

    def consume(count: int) -> None:
        with BlockingClient(VibeMQClient.connect, HOST, broker.port("vibemq")) as client:
            subscription = client.subscribe("vibemq")
            for _ in range(count):
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
    small_disk.fill_until_alarm("", 0)
    with BlockingClient(VibeMQClient.connect, HOST, broker.port("vibemq")) as client:
        client.publish("vibemq", {"number": -1})
    assert broker.stop() == 0
    assert "Traceback" not in broker.log.read_text()
