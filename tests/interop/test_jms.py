"""The Java clients of Open MQ as they are published: release 6 (jakarta.jms) and 5 (javax.jms).

Maven fetches them and compiles the cases in jms/src. Each client runs all cases in one Java process
(see Runner.java there) against a broker of its own, which the cases may ask to be killed. What must
have run is listed in jms/cases.txt.

JMS_INTEROP=required makes it an error that Maven or a JDK is missing, or that nothing can be
fetched; else the tests are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.model.access import Operation, Permission
from sluicemq.security import records
from sluicemq.security.passwords import digest_form, hash_password
from sluicemq.security.records import UserRecord, UserStore
from tests.interop.others import LISTEN, Others
from tests.protocols.sockets import unused_port
from tests.server.authority import Authority

PROJECT: Final = Path(__file__).with_name("jms")
CASES: Final = (PROJECT / "cases.txt").read_text("utf-8").split()
CLIENTS: Final = ("jakarta", "javax")
LEAST_JAVA: Final = 17
LARGEST: Final = 12 << 20
"""Bytes of a packet that the broker takes; the cases send bodies of 10 MB."""
REQUIRED: Final = os.environ.get("JMS_INTEROP") == "required"
COMPILE_SECONDS: Final = 600.0
RUN_SECONDS: Final = 600.0


class Verdict(NamedTuple):
    word: str
    reason: str


def missing() -> str:
    """Return which program must be installed, or ""."""
    if shutil.which("mvn") is None:
        return "Maven was not found (Debian, Ubuntu: apt install maven openjdk-17-jdk-headless)"
    if (javac := program("javac")) is None:
        return "no JDK was found (Debian, Ubuntu: apt install openjdk-17-jdk-headless)"
    version = subprocess.run([javac, "-version"], capture_output=True, text=True, check=True)
    match = re.search(r"\d+", version.stdout + version.stderr)
    if match is None or int(match[0]) < LEAST_JAVA:
        return f"Java {LEAST_JAVA} or newer is needed (apt install openjdk-17-jdk-headless)"
    return ""


def program(name: str) -> str | None:
    """Return the path of a program of the JDK that Maven uses."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(name, path=f"{home}/bin" if home else None)


def maven(phase: str, out: Path) -> subprocess.CompletedProcess[str]:
    command = ["mvn", "-q", "-B", "-f", str(PROJECT), phase, f"-Dout={out}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the cases for each client and return their directory."""
    if reason := missing():
        if REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)
    output_directory = tmp_path_factory.mktemp("jms")
    fetched = maven("generate-sources", output_directory)
    if fetched.returncode and not REQUIRED:
        pytest.skip(f"Maven cannot fetch the clients: {fetched.stdout.strip()[-300:]}")
    done = maven("package", output_directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return output_directory


@pytest.fixture(scope="module", params=CLIENTS)
def verdicts(
    request: pytest.FixtureRequest, compiled: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Verdict]:
    """Run all cases with one of the clients and return their verdicts."""
    directory = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        # the ports stay the same after a restart
        port, tls_port = unused_port(), unused_port()
        authority = Authority(directory)
        pem = authority.pem(authority.issue())
        open_to_all = LocalBroker(
            directory / "open",
            [
                f"jmq://127.0.0.1:{port}?max_frame_bytes={LARGEST}&producer_flow=50",
                f"jmq+tls://127.0.0.1:{tls_port}?certificate={pem}",
                *LISTEN,
            ],
            environment={"SLUICEMQ_JMQ__METRICS_INTERVAL": "1s"},
        )
        stack.enter_context(open_to_all)
        other_protocols = Others(open_to_all)
        digest_port, basic_port = unused_port(), unused_port()
        add_users(directory / "closed")
        stack.enter_context(
            LocalBroker(
                directory / "closed",
                [
                    f"jmq://127.0.0.1:{digest_port}?authentication=digest",
                    f"jmq://127.0.0.1:{basic_port}?authentication=basic",
                ],
                environment={"SLUICEMQ_AUTH__MAX_LOGIN_FAILURES": "100"},
            )
        )
        arguments = [
            f"127.0.0.1:{port}",
            f"digest=127.0.0.1:{digest_port}",
            f"basic=127.0.0.1:{basic_port}",
            f"limited=127.0.0.1:{basic_port}",
            f"limit={LARGEST}",
            f"tls=127.0.0.1:{tls_port}",
            "metrics",
            "restarts",
            "others",
        ]
        errors = directory / "errors.txt"
        with other_protocols:
            try:
                lines = run(compiled / request.param, arguments, open_to_all, errors)
            finally:
                open_to_all.stop()
        verdicts = {}
        for line in lines:
            word, name, _, reason = line.split("\t")
            verdicts[name] = Verdict(word, reason)
        return verdicts


def restart(broker: LocalBroker) -> None:
    broker.kill()
    broker.start()


def stop(broker: LocalBroker) -> None:
    broker.stop()
    broker.start()


ORDERS: Final[Mapping[str, Callable[[LocalBroker], None]]] = {
    "RESTART": restart,
    "STOP": stop,
    "FREEZE": lambda broker: os.kill(broker.pid, signal.SIGSTOP),
    "THAW": lambda broker: os.kill(broker.pid, signal.SIGCONT),
}
"""Requests of Runner.java."""


def run(client: Path, arguments: list[str], broker: LocalBroker, errors: Path) -> list[str]:
    """Run the Java runner, carry out its requests to the broker, and return the other lines."""
    java = program("java")
    assert java is not None
    path = os.pathsep.join([str(client / "classes"), str(client / "lib" / "*")])
    lines = []
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [java, "-Xmx1g", "-cp", path, "interop.Runner", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            encoding="utf-8",
        )
        assert process.stdin is not None
        assert process.stdout is not None
        limit = threading.Timer(RUN_SECONDS, process.kill)
        limit.start()
        try:
            for line in process.stdout:
                order = ORDERS.get(line.strip())
                if order is None:
                    lines.append(line.rstrip("\n"))
                else:
                    order(broker)
                    process.stdin.write("done\n")
                    process.stdin.flush()
            code = process.wait()
        finally:
            limit.cancel()
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
    assert code == 0, errors.read_text("utf-8")[-4000:]
    return lines


def add_users(directory: Path) -> None:
    """Add the users that Logins.java uses."""
    directory.mkdir(parents=True)
    store = UserStore(directory / "users.json")
    allowed = Permission("allowed*", frozenset({Operation.PRODUCE, Operation.CONSUME}))
    for name, superuser in (("guest", True), ("limited", False)):
        record = UserRecord(
            password=hash_password(name),
            digest=digest_form(name, name),
            superuser=superuser,
            permissions=() if superuser else (allowed,),
            created=1,
            updated=1,
        )
        store.change(partial(records.add_user, name=name, user=record), "the tests")


@pytest.mark.parametrize("name", CASES)
def test_case(verdicts: Mapping[str, Verdict], name: str) -> None:
    assert name in verdicts, "it did not run"
    assert verdicts[name].word == "PASS", verdicts[name].reason


def test_every_case_is_listed(verdicts: Mapping[str, Verdict]) -> None:
    assert sorted(verdicts) == sorted(CASES)
