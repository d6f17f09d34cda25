"""Responses to valid and invalid requests, generated from the OpenAPI document, conform to it.

`FUZZ=1` generates more requests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import main
from sluicemq.model.rows import row
from tests.support.http import HTTP, PHPMQ, Client

RESPONSE_TIMEOUT_SECONDS = 10.0
"""Time limit for a response."""
EXAMPLES = 300 if os.environ.get("FUZZ") else 8
EVENT_STREAM_PATH = "/events"
"""Never ends while the client is connected; tests/admin/test_event_stream.py tests it."""
NO_LOGIN_LIMITS = {
    "SLUICEMQ_AUTH__MAX_LOGIN_FAILURES": "1000",
    "SLUICEMQ_AUTH__LOGIN_BACKOFF": "0",
    "SLUICEMQ_AUTH__LOGIN_BACKOFF_MAX": "0",
}
"""Requests have random passwords, which must not lock out the test."""
QUEUE = "orders0"
"""A queue with messages."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


class Target(NamedTuple):
    """A broker, and the credentials of requests to it."""

    url: str
    headers: dict[str, str]
    broker: LocalBroker


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    """Start a broker without users and one with users; yield both, by the user of the requests."""
    with ExitStack() as stack:

        def start(name: str) -> tuple[Path, LocalBroker]:
            directory = tmp_path_factory.mktemp(name)
            broker = LocalBroker(directory / "broker", [HTTP, PHPMQ], environment=NO_LOGIN_LIMITS)
            return directory, stack.enter_context(broker)

        _, open_broker = start("open")
        directory, with_users = start("users")
        (directory / "secret").write_text("correct horse\n")
        for user, options in (("root", ["--superuser"]), ("anna", [])):
            command = ["users", "add", user, "--password-file", str(directory / "secret"), *options]
            assert main([*command, "--data-dir", str(with_users.directory)]) == 0
        grant = ["permissions", "grant", "anna", "*0*", "browse", "produce"]
        assert main([*grant, "--data-dir", str(with_users.directory)]) == 0
        rows = [row(QUEUE, b"%d" % number) for number in range(100)]
        with Client(open_broker.port("http")) as client:
            assert client.write(rows).status == 200
        targets_by_user = {
            "open": Target(f"http://127.0.0.1:{open_broker.port('http')}", {}, open_broker)
        }
        for user in ("root", "anna"):
            address = f"http://127.0.0.1:{with_users.port('http')}"
            request = requests.Request(auth=(user, "correct horse"), url=address).prepare()
            targets_by_user[user] = Target(address, dict(request.headers), with_users)
        with Client(with_users.port("http"), **targets_by_user["root"].headers) as client:
            assert client.write(rows).status == 200
        yield targets_by_user


@pytest.mark.parametrize("user", ["open", "root", "anna"])
def test_responses_match_the_document(targets: dict[str, Target], user: str) -> None:
    target = targets[user]
    schema = schemathesis.openapi.from_url(f"{target.url}/api/v1/openapi.json")
    calls = set()
    with requests.Session() as session:
        for result in schema.get_all_operations():
            operation = result.ok()
            if operation.path == EVENT_STREAM_PATH:
                continue

            @hypothesis.settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                derandomize=not os.environ.get("FUZZ"),
                suppress_health_check=list(hypothesis.HealthCheck),
                phases=[hypothesis.Phase.generate],
            )
            @hypothesis.given(case=operation.as_strategy(), use_existing_queue=st.booleans())
            def send_requests(case: Any, use_existing_queue: bool) -> None:
                if use_existing_queue and "kind" in case.path_parameters:
                    case.path_parameters |= {"kind": "queue", "name": QUEUE}
                    if "id" in case.path_parameters:
                        case.path_parameters["id"] = "2"
                    case.query.pop("name_base64", None)
                response = case.call(
                    session=session, headers=target.headers, timeout=RESPONSE_TIMEOUT_SECONDS
                )
                case.validate_response(response, checks=CHECKS)
                calls.add((case.operation.method, case.operation.path, response.status_code))

            send_requests()
    with Client(int(target.url.rpartition(":")[2]), **target.headers) as client:
        assert client.get("/status").json()["pid"] == target.broker.pid
    # the audit log contains paths of requests, which may contain these words
    assert "] internal error" not in target.broker.log.read_text()
    done = {(method, path) for method, path, status in calls if status < 300}
    assert len(done) > (5 if user == "anna" else 10), "most requests were rejected"
