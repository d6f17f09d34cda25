from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from sluicemq.cli.console import UsageError
from sluicemq.cli.message_options import read_bodies
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.jmq import JavaObject, JmqClient, StatusError
from tests.cli.conftest import Run, RunningBroker, SecuredBroker


def stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.fixture(params=["phpmq", "msglite", "vibemq", "jmq"])
def url(request: pytest.FixtureRequest, broker: RunningBroker) -> str:
    """Return the URL of a queue for the test, for each protocol."""
    name = request.node.name.replace("[", "_").replace("]", "")
    return f"{getattr(broker, request.param)}?queue={name}"


def test_arguments_are_messages(run: Run, url: str) -> None:
    assert run("send", url, "one", "zwei é").code == 0
    result = run("receive", url, "--count", "2")
    assert (result.code, result.out) == (0, "one\nzwei é\n")


def test_standard_input_is_one_message(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"a\nb\n")
    assert run("send", url).code == 0
    assert run("receive", url, "--raw").out == "a\nb\n"
    assert run("receive", url, "--timeout", "0").code == 1


def test_empty_standard_input_is_no_message(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin(monkeypatch, b"")
    result = run("send", url)
    assert result.code == 2
    assert "standard input is empty" in result.err
    assert run("send", url, "").code == 0
    assert run("receive", url, "--raw").code == 0
    assert run("receive", url, "--timeout", "0").code == 1


def test_lines_are_messages(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"a\n\r\nlast")
    sent = run("send", url, "--lines", "--json")
    assert json.loads(sent.out)["sent"] == 3
    records = [json.loads(line) for line in run("receive", url, "-n3", "--json").out.splitlines()]
    assert [record["body"] for record in records] == ["a", "\r", "last"]


def test_typed_lines_are_not_erased_by_a_progress_bar(run: Run, broker: RunningBroker) -> None:
    url = f"{broker.phpmq}?queue=typed"
    terminal, process_end = pty.openpty()
    command = [sys.executable, "-m", "sluicemq.cli", "send", url, "--lines"]
    with subprocess.Popen(
        command, stdin=process_end, stdout=process_end, stderr=process_end
    ) as process:
        os.close(process_end)
        os.write(terminal, b"one\n\x04")
        screen = ""
        with suppress(OSError):  # the terminal is closed
            while data := os.read(terminal, 1000):
                screen += data.decode()
        assert process.wait(30) == 0
    os.close(terminal)
    assert "1 sent" in screen
    assert "sending" not in screen
    assert run("receive", url).out == "one\n"


def test_files_are_messages_of_any_bytes(run: Run, url: str, tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"\xff\0")
    assert run("send", url, "--file", "blob", "--count", "2").code == 0
    records = [json.loads(line) for line in run("receive", url, "-n2", "--json").out.splitlines()]
    assert [record["body_base64"] for record in records] == ["/wA="] * 2


def test_body_larger_than_any_broker_accepts_is_a_usage_error(
    run: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicemq.cli.message_options.MAX_BODY_BYTES", 3, raising=False)
    (tmp_path / "blob").write_bytes(b"four")
    for content, arguments in (
        (b"four", ["--file", "blob"]),
        (b"four", []),
        (b"four", ["--lines"]),
        (b"four\n", ["--lines"]),
    ):
        stdin(monkeypatch, content)
        result = run("send", url, *arguments)
        assert result.code == 2
        assert "a message has up to 3 B" in result.err
    assert run("receive", url, "--timeout", "0").code == 1


def test_reading_a_body_allocates_no_more_than_its_size(tmp_path: Path) -> None:
    file = tmp_path / "blob"
    file.write_bytes(b"\xff\0")
    tracemalloc.start()
    assert list(read_bodies([], [file])) == [b"\xff\0"]
    _, allocated = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert allocated < 1 << 24


def test_standard_input_that_does_not_block_and_has_no_data_is_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    with open(read_end) as stream, open(write_end, "wb"):
        monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(UsageError, match="standard input is empty"):
            list(read_bodies([], []))


def test_nothing_received_is_exit_code_1(run: Run, url: str) -> None:
    result = run("receive", url, "--timeout", "0")
    assert (result.code, result.out) == (1, "")
    assert "no message" in result.err


def test_timeout_in_errors_has_one_unit(run: Run, broker: RunningBroker) -> None:
    url = f"{broker.phpmq}?queue=silent"
    message = f"error: no message from {url}"
    assert run("receive", url, "-t", "100ms").err == f"{message} within 100ms\n"
    assert run("receive", url, "-t", "0").err == f"{message}\n"


def test_messages_beyond_the_count_stay_in_the_queue(run: Run, url: str) -> None:
    run("send", url, "1", "2", "3")
    assert run("receive", url).out == "1\n"
    assert run("receive", url, "-n0", "--timeout", "0").out == "2\n3\n"


@pytest.mark.parametrize("count", [1, 2, 20])
@pytest.mark.parametrize("protocol", ["phpmq", "jmq", "vibemq"])
def test_messages_beyond_the_count_are_not_attempted(
    run: Run, run_as_owner: Run, broker: RunningBroker, protocol: str, count: int
) -> None:
    queue = f"{protocol}-one-attempt-{count}"
    assert run_as_owner("queues", "create", queue, "max_attempts=1").code == 0
    url = f"{getattr(broker, protocol)}?queue={queue}"
    bodies = [str(number) for number in range(count + 2)]
    run("send", url, *bodies)
    assert run("receive", url, "-n", str(count)).out.splitlines() == bodies[:count]
    assert run("receive", url, "-n0", "--timeout", "0").out.splitlines() == bodies[count:]


def test_time_to_live_is_passed_on(run: Run, broker: RunningBroker) -> None:
    url = f"{broker.phpmq}?queue=ttl"
    run("send", url, "x", "--ttl", "1h")
    assert 3590 <= json.loads(run("receive", url, "--json").out)["ttl"] <= 3600


def test_time_to_live_beyond_the_format_of_jms_is_an_error(run: Run, broker: RunningBroker) -> None:
    result = run("send", f"{broker.jmq}?queue=eternal", "x", "--ttl", "199999999999d")
    assert result.code == 2
    assert "cannot send to 'eternal': ttl and delay are 0 to 4503599627370496 seconds" in result.err


def test_json_is_sent_unchanged_by_vibemq(run: Run, broker: RunningBroker) -> None:
    bodies = ['{"a": 1.0}', "[1,]", '"text"', "", "[]", "null"]
    for body in bodies:
        assert run("send", f"{broker.vibemq}?queue=json", body).code == 0
    # a body that is no object, array or null is sent as a string and delivered as its text
    assert run("receive", f"{broker.phpmq}?queue=json", "-n6").out.splitlines() == bodies
    for body in bodies:
        assert run("send", f"{broker.vibemq}?queue=json", body).code == 0
    assert run("receive", f"{broker.vibemq}?queue=json", "-n6").out.splitlines() == bodies


def test_jms_messages_have_ttl_id_and_selector(run: Run, broker: RunningBroker) -> None:
    url = f"{broker.jmq}?queue=life"
    assert run("send", url, "x", "--ttl", "1h").code == 0
    assert run("send", url, "y").code == 0
    first = json.loads(run("receive", f"{url}&selector=JMSPriority=4", "--json").out)
    assert 3590 <= first["ttl"] <= 3600
    assert first["id"].startswith("ID:")
    assert json.loads(run("receive", url, "--json").out).keys() == {"queue", "body", "id"}
    result = run("receive", f"{url}&selector=a+=", "--timeout", "30")
    assert result.code == 1
    assert "400" in result.err


def test_durable_subscription_receives_earlier_messages(run: Run, broker: RunningBroker) -> None:
    topic = f"{broker.jmq}?queue=news&topic=true"
    durable = f"{topic}&durable=d&client_id=me"
    assert run("receive", durable, "--timeout", "0").code == 1
    assert run("send", topic, "hello").code == 0
    assert run("receive", topic, "--timeout", "0").code == 1
    assert run("receive", durable).out == "hello\n"


def test_maps_and_streams_are_printed_as_json(run: Run, broker: RunningBroker) -> None:
    with BlockingClient(JmqClient.open, broker.jmq) as client:
        producer = client.session().producer("shown")
        producer.send_all([{"a": 1, "b": "ü"}, [1, None, "x"], JavaObject.of("x")])
    result = run("receive", f"{broker.jmq}?queue=shown", "-n3", "--json")
    bodies = [json.loads(line) for line in result.out.splitlines()]
    assert json.loads(bodies[0]["body"]) == {"a": 1, "b": "ü"}
    assert json.loads(bodies[1]["body"]) == [1, None, "x"]
    assert bodies[2]["body_base64"] == "rO0ABXQAAXg="


def test_vibemq_messages_have_no_time_to_live(run: Run, broker: RunningBroker) -> None:
    result = run("send", f"{broker.vibemq}?queue=q", "x", "--ttl", "1h")
    assert result.code == 2
    assert "messageTtl" in result.err


def test_message_is_transcoded_between_protocols(run: Run, broker: RunningBroker) -> None:
    run("send", f"{broker.msglite}?queue=crossing", "hello")
    assert run("receive", f"{broker.phpmq}?queue=crossing").out == "hello\n"
    run("send", f"{broker.phpmq}?queue=crossing", "hello")
    assert run("receive", f"{broker.vibemq}?queue=crossing").out == "hello\n"
    run("send", f"{broker.vibemq}?queue=crossing", "hello")
    assert run("receive", f"{broker.jmq}?queue=crossing").out == "hello\n"
    run("send", f"{broker.jmq}?queue=crossing", "hello")
    assert run("receive", f"{broker.msglite}?queue=crossing").out == "hello\n"


def test_sent_messages_are_listed(run: Run, broker: RunningBroker) -> None:
    run("send", f"{broker.phpmq}?queue=listed", "hello")
    result = run("queues", "listed", "--data-dir", str(broker.data_dir), "--json")
    (queue,) = json.loads(result.out)
    assert (queue["ready"], queue["bytes"]) == (1, 5)
    assert "listed" in run("top", "--data-dir", str(broker.data_dir), "--count", "1").out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["send", "phpmq://127.0.0.1", "x"], "name the queue, as in phpmq://127.0.0.1:9100/orders"),
        (["send", "http://127.0.0.1/q", "x"], "no client for http"),
        (["send", "phpmq://127.0.0.1:0/q", "x"], "port 0"),
        (["send", "phpmq://h/q?dispatch_verison=1", "x"], "did you mean dispatch_version?"),
        (["send", "phpmq://h/q?timeout=0", "x"], "timeout must be longer than 0"),
        (["send", "phpmq://h/q", "x", "--connect-timeout", "nan"], "nan is not a number"),
        (["send", "phpmq://h/q", "x", "--connect-timeout", "1e9"], "is not in the range"),
        (["send", "phpmq://h/q?dispatch_version=3", "x"], "dispatch_version is 1 or 2"),
        (["send", "vibemq://h/q?tokn=1", "x"], "did you mean token?"),
        (["send", "jmq://h/q?topik=true", "x"], "unknown option topik"),
        (["send", "jmq://h/q?topic=yes", "x"], "topic is true or false, not yes"),
        (["receive", "jmq://h/q?durable=d&client_id=me"], "durable needs topic=true"),
        (["receive", "jmq://h/q?durable=d&topic=true"], "durable needs topic=true and client_id"),
        (["send", "jmq://h/%FF", "x"], "JMS destination must be UTF-8"),
        (["send", "phpmq://h/q?ca=/x", "x"], "requires TLS"),
        (["send", "phpmq+tls://h/q?ca=/none.pem", "x"], "/none.pem cannot be used"),
        (["send", "phpmq://h/q", "x", "--ttl", "soon"], "is not a number of s"),
        (["send", "phpmq://h/q", "x", "--ttl", "10ms"], "whole number of seconds"),
        (["send", "phpmq://h/q", "x", "--lines"], "--lines"),
        (["receive", "phpmq://h/q", "--timeout", "-1"], "is not a number of s"),
    ],
)
def test_invalid_arguments_are_usage_errors(run: Run, arguments: list[str], error: str) -> None:
    result = run(*arguments)
    assert result.code == 2
    assert error in result.err
    assert "sluicemq config show" not in result.err


@pytest.mark.parametrize("protocol", ["vibemq", "jmq"])
def test_credentials_are_read_from_files_and_the_environment(
    run: Run, secured_broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    url = f"{getattr(secured_broker, protocol)}?queue=login-{protocol}"
    for refused in (run("send", url, "x"), run("receive", url)):
        assert refused.code == 1
        assert "Log in with --user NAME" in refused.err
    shop, login = (
        ("--user", user, "--password-file", str(secured_broker.secret)) for user in ("shop", "root")
    )
    assert "sluicemq permissions grant" in run("send", url, "x", *shop).err
    assert run("send", url, "by file", *login) == (0, "", "")
    token = run("users", "token", "add", "root", "--label", protocol, *secured_broker.location).out
    Path("token").write_text(token)
    assert run("send", url, "by token", "--token-file", "token") == (0, "", "")
    for name, value in secured_broker.environment_of("root").items():
        monkeypatch.setenv(name, value)
    assert run("receive", url, "-n2").out == "by file\nby token\n"


def test_permission_is_not_advised_for_other_refusals(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = StatusError("authenticate reply", 403, "too many failed logins; try again in 9 s")
    monkeypatch.setattr("sluicemq.cli.send_receive.connect", Mock(side_effect=error))
    assert run("send", "jmq://h/q", "x") == (1, "", f"error: {error}\n")


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("phpmq://h/q", "phpmq has no login; leave out --user and --token-file"),
        ("jmq://anna:secret@h/q", "the URL contains the user"),
        ("vibemq+unix:///s?queue=q&Auth-Token=secret", "the URL contains the user"),
        ("jmq://h/q", "there is no terminal to ask for the password of anna; give --password-file"),
    ],
)
def test_credentials_are_given_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, url: str, error: str
) -> None:
    stdin(monkeypatch, b"")
    result = run("receive", url, "--user", "anna")
    assert result.code == 2
    assert error in result.err


def test_the_environment_is_for_protocols_with_a_login(
    run: Run, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEMQ_USER", "anna")
    assert run("send", f"{broker.phpmq}?queue=no-login", "x").code == 0
    assert run("receive", f"{broker.msglite}?queue=no-login").code == 0


def test_errors_contain_no_password(run: Run, secured_broker: SecuredBroker) -> None:
    secret = secured_broker.secret.read_text().strip().replace(" ", "%20")
    url = f"{secured_broker.vibemq}?queue=no-password&username=root&password={secret}"
    result = run("receive", url, "-t0")
    assert result.code == 1
    assert "username=root&password=***" in result.err
    assert "horse" not in result.err


@pytest.mark.parametrize("protocol", ["phpmq", "msglite", "vibemq", "jmq"])
def test_unreachable_broker_is_an_error(run: Run, tmp_path: Path, protocol: str) -> None:
    result = run("receive", f"{protocol}+unix://{tmp_path}/none?queue=q")
    assert result.code == 1
    assert "sluicemq serve" in result.err


@pytest.mark.parametrize(("protocol", "name"), [("phpmq", "x" * 2000), ("msglite", "a%20b")])
def test_name_that_the_protocol_cannot_express_is_a_usage_error(
    run: Run, broker: RunningBroker, protocol: str, name: str
) -> None:
    url = f"{getattr(broker, protocol)}?queue={name}"
    send_result, receive_result = run("send", url, "x"), run("receive", url)
    assert (send_result.code, receive_result.code) == (2, 2)
    assert "cannot send to" in send_result.err
    assert "cannot receive from" in receive_result.err


def test_name_that_vibemq_rejects_is_an_error(run: Run, broker: RunningBroker) -> None:
    url = f"{broker.vibemq}?queue=two%20words"
    for result in (run("send", url, "x"), run("receive", url)):
        assert result.code == 1
        assert "INVALID_MESSAGE" in result.err
        assert "Traceback" not in result.err


def test_name_that_msglite_cannot_express_is_in_the_error(run: Run, broker: RunningBroker) -> None:
    result = run("send", f"{broker.msglite}?queue=two%20words", "x")
    assert result.code == 2
    assert "two words" in result.err
    assert "Traceback" not in result.err
