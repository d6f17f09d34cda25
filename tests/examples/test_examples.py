"""Run every program in examples/ against a broker, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from sluicemq.cli.local import LocalBroker
from tests.interop.test_jms import PROJECT, REQUIRED, jdk_program, missing_program
from tests.support.programs import PHP

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
PROTOCOLS: Final = ("phpmq", "msglite", "vibemq", "jmq")
TIMEOUT_SECONDS: Final = 120.0

PYTHON: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "phpmq_work_queue.py": (
        ("phpmq",),
        "requeued resize 1.png\nprocessed resize 2.png\ndead-lettered damaged\n"
        "processed resize 1.png\n",
    ),
    "msglite_request_reply.py": (("msglite",), "reply: HELLO\n"),
    "jms_transaction.py": (
        ("jmq",),
        "Oslo {'pizza': 'margherita', 'count': 2}\nBergen {'pizza': 'margherita', 'count': 1}\n",
    ),
    "transcoding.py": (("jmq", "phpmq"), "received a JMS text message\n"),
}
"""Name of each example: the protocols whose ports are its arguments, and its output."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    listeners = [f"{protocol}://127.0.0.1:0" for protocol in PROTOCOLS]
    with LocalBroker(tmp_path_factory.mktemp("examples"), listeners) as running:
        yield running


def run(*command: str | Path) -> str:
    """Return the output of a program that must end with status 0 and print nothing to stderr."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def test_every_example_is_listed_and_tested() -> None:
    readme = (EXAMPLES / "README.md").read_text("utf-8")
    programs = {
        str(path.relative_to(EXAMPLES))
        for path in EXAMPLES.glob("*/*")
        if path.suffix in (".py", ".pl", ".php", ".java")
    }
    tested_programs = {f"python/{name}" for name in (*PYTHON, "vibemq_publish_subscribe.py")}
    tested_programs |= {"java/OrderExample.java", "perl/msglite_request_reply.pl"}
    assert programs == tested_programs | {"php/phpmq_work_queue.php"}
    for name in programs:
        assert f"`{name}`" in readme


@pytest.mark.parametrize("name", PYTHON)
def test_python_example(broker: LocalBroker, name: str) -> None:
    protocols, expected = PYTHON[name]
    ports = [str(broker.port(protocol)) for protocol in protocols]
    assert run(sys.executable, EXAMPLES / "python" / name, *ports) == expected


def test_python_fan_out_example(broker: LocalBroker) -> None:
    script = EXAMPLES / "python" / "vibemq_publish_subscribe.py"
    output = run(sys.executable, script, str(broker.port("vibemq")))
    # the lines of the two subscribers may alternate in any way
    for name in ("first", "second"):
        lines = [line for line in output.splitlines() if line.startswith(name)]
        assert lines == [f"{name} received {{'number': {number}}}" for number in (1, 2, 3)]


def test_perl_example(broker: LocalBroker) -> None:
    script = EXAMPLES / "perl" / "msglite_request_reply.pl"
    assert run("perl", script, str(broker.port("msglite"))) == "reply: olleh\n"


def test_php_example(broker: LocalBroker) -> None:
    script = EXAMPLES / "php" / "phpmq_work_queue.php"
    output = run(PHP.path_or_skip(), script, str(broker.port("phpmq")))
    assert output == "processed resize 1.png\nprocessed resize 2.png\n"


def test_java_example(broker: LocalBroker, tmp_path: Path) -> None:
    if reason := missing_program():
        if REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)
    sources = f"-Dsources={EXAMPLES / 'java'}"
    maven = ["mvn", "-q", "-B", "-f", str(PROJECT), "package", f"-Dout={tmp_path}", sources]
    built = subprocess.run(maven, capture_output=True, text=True, timeout=600)
    if built.returncode and not REQUIRED:
        pytest.skip(f"Maven cannot build the example: {built.stdout.strip()[-300:]}")
    assert built.returncode == 0, built.stdout + built.stderr
    classpath = f"{tmp_path}/jakarta/lib/*:{tmp_path}/jakarta/classes"
    output = run(
        jdk_program("java") or "java", "-cp", classpath, "OrderExample", str(broker.port("jmq"))
    )
    assert output.endswith("Bergen: one pizza\n")
