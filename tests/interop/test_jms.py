"""The published Java clients of Open MQ: release 6 (jakarta.jms) and release 5 (javax.jms).

Maven fetches them and compiles the cases in jms/src. Each client runs all cases in one Java process
(see Runner.java) against a broker of its own, which a case can request to be killed. jms/cases.txt
lists the cases that must have run.

Without Maven or a JDK, or if nothing can be fetched, the tests are skipped; with
JMS_INTEROP=required they fail.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
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
from tests.interop.other_protocols import LISTEN, OtherProtocolClients
from tests.protocols.sockets import unused_port
from tests.server.authority import Authority

PROJECT: Final = Path(__file__).with_name("jms")
CASES: Final = (PROJECT / "cases.txt").read_text("utf-8").split()
CLIENTS: Final = ("jakarta", "javax")
MIN_JAVA_VERSION: Final = 17
MAX_PACKET_BYTES: Final = 12 << 20
"""Largest packet that the broker accepts, in bytes; the cases send bodies of 10 MB."""
REQUIRED: Final = os.environ.get("JMS_INTEROP") == "required"
COMPILE_SECONDS: Final = 600.0
RUN_SECONDS: Final = 600.0
JAVA_OPTIONS: Final = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options for the least processor time: the cases mostly wait."""


class CaseResult(NamedTuple):
    verdict: str
    reason: str


def missing_program() -> str:
    """Return which program must be installed, or ""."""
    if shutil.which("mvn") is None:
        return "Maven was not found (Debian, Ubuntu: apt install maven openjdk-17-jdk-headless)"
    if (javac := jdk_program("javac")) is None:
        return "no JDK was found (Debian, Ubuntu: apt install openjdk-17-jdk-headless)"
    version = subprocess.run([javac, "-version"], capture_output=True, text=True, check=True)
    match = re.search(r"\d+", version.stdout + version.stderr)
    if match is None or int(match[0]) < MIN_JAVA_VERSION:
        return f"Java {MIN_JAVA_VERSION} or newer is needed (apt install openjdk-17-jdk-headless)"
    return ""


def jdk_program(name: str) -> str | None:
    """Return the path of a program of the JDK that Maven uses."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(name, path=f"{home}/bin" if home else None)


def maven(phase: str, out: Path) -> subprocess.CompletedProcess[str]:
    command = ["mvn", "-q", "-B", "-f", str(PROJECT), phase, f"-Dout={out}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS)


@pytest.fixture(scope="module")
def compiled_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the cases for each client and return their directory."""
    if reason := missing_program():
        if REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)
    output_directory = tmp_path_factory.mktemp("jms")
    packaged = maven("package", output_directory)
    if packaged.returncode and not REQUIRED:
        fetched = maven("generate-sources", output_directory)
        if fetched.returncode:
            pytest.skip(f"Maven cannot fetch the clients: {fetched.stdout.strip()[-300:]}")
    assert packaged.returncode == 0, packaged.stdout + packaged.stderr
    return output_directory


@pytest.fixture(scope="module")
def results_by_client(
    compiled_cases: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[Mapping[str, CaseResult]]]]:
    """Run all cases with each of the clients, at the same time, as the cases mostly wait."""
    with ThreadPoolExecutor(len(CLIENTS)) as executor:
        yield {
            client: executor.submit(
                run_cases, compiled_cases / client, tmp_path_factory.mktemp(client)
            )
            for client in CLIENTS
        }


@pytest.fixture(scope="module", params=CLIENTS)
def results(
    request: pytest.FixtureRequest,
    results_by_client: Mapping[str, Future[Mapping[str, CaseResult]]],
) -> Mapping[str, CaseResult]:
    """Return the verdicts of all cases with one of the clients."""
    return results_by_client[request.param].result()


def run_cases(client: Path, directory: Path) -> Mapping[str, CaseResult]:
    """Run all cases with the client and return their verdicts."""
    with ExitStack() as stack:
        # the ports stay the same after a restart
        port, tls_port = unused_port(), unused_port()
        authority = Authority(directory)
        pem = authority.pem(authority.issue())
        open_broker = LocalBroker(
            directory / "open",
            [
                f"jmq://127.0.0.1:{port}?max_frame_bytes={MAX_PACKET_BYTES}&producer_flow=50",
                f"jmq+tls://127.0.0.1:{tls_port}?certificate={pem}",
                *LISTEN,
            ],
            environment={"SLUICEMQ_JMQ__METRICS_INTERVAL": "1s"},
        )
        stack.enter_context(open_broker)
        other_protocols = OtherProtocolClients(open_broker)
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
            f"limit={MAX_PACKET_BYTES}",
            f"tls=127.0.0.1:{tls_port}",
            "metrics",
            "restarts",
            "others",
        ]
        errors = directory / "errors.txt"
        with other_protocols:
            try:
                lines = run(client, arguments, open_broker, errors)
            finally:
                open_broker.stop()
        results = {}
        for line in lines:
            verdict, name, _, reason = line.split("\t")
            results[name] = CaseResult(verdict, reason)
        return results


def restart(broker: LocalBroker) -> None:
    broker.kill()
    broker.start()


def stop(broker: LocalBroker) -> None:
    broker.stop()
    broker.start()


RUNNER_COMMANDS: Final[Mapping[str, Callable[[LocalBroker], None]]] = {
    "RESTART": restart,
    "STOP": stop,
    "FREEZE": lambda broker: os.kill(broker.pid, signal.SIGSTOP),
    "THAW": lambda broker: os.kill(broker.pid, signal.SIGCONT),
}
"""Commands that Runner.java prints."""


def run(client: Path, arguments: list[str], broker: LocalBroker, errors: Path) -> list[str]:
    """Run the Java runner, execute its commands on the broker, and return the other lines."""
    java = jdk_program("java")
    assert java is not None
    path = os.pathsep.join([str(client / "classes"), str(client / "lib" / "*")])
    lines = []
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [java, *JAVA_OPTIONS, "-cp", path, "interop.Runner", *arguments],
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
                command = RUNNER_COMMANDS.get(line.strip())
                if command is None:
                    lines.append(line.rstrip("\n"))
                else:
                    command(broker)
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
def test_case(results: Mapping[str, CaseResult], name: str) -> None:
    assert name in results, "the case did not run"
    assert results[name].verdict == "PASS", results[name].reason


def test_every_case_is_listed(results: Mapping[str, CaseResult]) -> None:
    assert sorted(results) == sorted(CASES)
