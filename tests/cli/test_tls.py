"""`send` and `receive` over TLS: options of the URL, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from sluicemq.cli.local import LocalBroker
from tests.cli.conftest import Run
from tests.server.authority import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Start a broker with TLS, with required client certificates and without TLS."""
    pem = authority.pem(authority.issue("localhost"))
    parameters = f"certificate={pem}&client_ca={authority.ca_file}&client_certificate=required"
    with LocalBroker(
        tmp_path_factory.mktemp("tls"),
        [
            f"phpmq+tls://127.0.0.1:0?certificate={pem}",
            f"msglite+tls://127.0.0.1:0?{parameters}",
            "auto://127.0.0.1:0",
            f"vibemq+tls://127.0.0.1:0?certificate={pem}",
            f"auto+tls://127.0.0.1:0?certificate={pem}",
            f"jmq+tls://127.0.0.1:0?certificate={pem}",
            f"http+tls://127.0.0.1:0?certificate={pem}",
        ],
    ) as broker:
        yield broker


@pytest.fixture
def url(broker: LocalBroker) -> str:
    return f"phpmq+tls://localhost:{broker.port('phpmq+tls')}/q"


def test_broker_is_verified(run: Run, url: str, authority: Authority) -> None:
    assert run("send", f"{url}?ca={authority.ca_file}", "hello").code == 0
    assert run("receive", f"{url}?ca={authority.ca_file}").out == "hello\n"
    result = run("send", url, "x")
    assert result.code == 1
    assert "the broker's certificate is not trusted: unable to get local issuer" in result.err
    assert "?ca=FILE" in result.err
    assert "sluicemq serve" not in result.err
    other_name = url.replace("localhost", "127.0.0.1")
    result = run("send", f"{other_name}?ca={authority.ca_file}", "x")
    assert result.code == 1
    assert "IP address mismatch" in result.err


def test_vibemq_over_tls(run: Run, broker: LocalBroker, authority: Authority) -> None:
    for listener in ("vibemq+tls", "auto+tls"):
        url = f"vibemq+tls://localhost:{broker.port(listener)}/v?ca={authority.ca_file}"
        assert run("send", url, "hello").code == 0
        assert run("receive", url).out == "hello\n"


def test_jmq_over_tls(run: Run, broker: LocalBroker, authority: Authority) -> None:
    for listener in ("jmq+tls", "auto+tls"):
        url = f"jmq+tls://localhost:{broker.port(listener)}/j?ca={authority.ca_file}"
        assert run("send", url, "hello").code == 0
        assert run("receive", url).out == "hello\n"


def test_verification_can_be_disabled(run: Run, url: str) -> None:
    assert run("send", f"{url}?insecure=true", "anyhow").code == 0
    assert run("receive", f"{url}?insecure=true").out == "anyhow\n"
    assert run("send", f"{url}?insecure=false", "x").code == 1


def test_client_certificate_is_sent(run: Run, broker: LocalBroker, authority: Authority) -> None:
    port = broker.port("msglite+tls")
    url = f"msglite+tls://localhost:{port}/mine?ca={authority.ca_file}"
    alice = authority.issue("client.example", common_name="alice")
    password = authority.password_file()
    bundle, chain = authority.pkcs12(alice, "alice.p12"), authority.chain(alice, "alice.pem")
    key = authority.encrypted_key(alice, "alice.key")
    with_bundle = f"{url}&certificate={bundle}&password_file={password}"
    assert run("send", with_bundle, "one", "two").code == 0
    assert run("receive", with_bundle).out == "one\n"
    parts = f"{url}&certificate={chain}&key={key}&password_file={password}"
    assert run("receive", parts).out == "two\n"
    result = run("receive", url, "--timeout", "1")
    assert result.code == 1
    assert "Traceback" not in result.err


def test_https_of_a_listener_without_tls_is_an_error(run: Run, broker: LocalBroker) -> None:
    url = f"https://127.0.0.1:{broker.port('auto')}"
    result = run("queues", "--url", url)
    assert result.code == 1
    assert "_ssl.c" not in result.err
    assert "check that the port uses TLS" in result.err or "reset" in result.err
    assert "with a listener http+tls://" in result.err


def test_listener_without_tls_is_an_error(run: Run, broker: LocalBroker) -> None:
    result = run("send", f"phpmq+tls://127.0.0.1:{broker.port('auto')}/q?insecure=true", "x")
    assert result.code == 1
    assert "_ssl.c" not in result.err
    assert "check that the port uses TLS" in result.err or "reset" in result.err


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("insecure=maybe", "insecure is true or false"),
        ("insecure=true&ca=/x", "leave out ca"),
        ("key=/x", "key requires a certificate"),
        ("password_file=/x", "password_file requires a certificate"),
        ("certificate=/none.pem", "/none.pem: the file cannot be read"),
        ("certifcate=/x", "did you mean certificate?"),
    ],
)
def test_invalid_arguments_are_usage_errors(run: Run, url: str, options: str, error: str) -> None:
    result = run("send", f"{url}?{options}", "x")
    assert result.code == 2
    assert error in result.err


def test_tls_options_require_tls(run: Run) -> None:
    for option in ("insecure=true", "certificate=/x"):
        result = run("send", f"phpmq://127.0.0.1:1/q?{option}", "x")
        assert result.code == 2
        assert "requires TLS" in result.err


def test_check_warns_of_an_expired_certificate(run: Run, authority: Authority) -> None:
    """A certificate that only clients may reject is not an error."""
    certificate = authority.ca.issue_cert(
        "localhost",
        not_before=datetime(2020, 1, 1, tzinfo=UTC),
        not_after=datetime(2020, 6, 1, tzinfo=UTC),
    )
    pem = authority.pem(certificate, "past.pem")
    result = run("config", "check", "--listen", f"phpmq+tls://?certificate={pem}")
    assert result.code == 0
    assert "warning: phpmq+tls://127.0.0.1:9100: the certificate" in result.err
    assert "expired on 2020-06-01" in result.err


def test_api_over_tls(run: Run, broker: LocalBroker, authority: Authority) -> None:
    url = f"https://localhost:{broker.port('http+tls')}"
    trust_option = ["--ca", str(authority.ca_file)]
    assert run("queues", "--url", url, *trust_option).code == 0
    untrusted = run("queues", "--url", url)
    assert untrusted.code == 1
    assert f"the certificate of {url} is not trusted" in untrusted.err
    assert "--ca FILE" in untrusted.err
    other_name = run("queues", "--url", url.replace("localhost", "127.0.0.1"), *trust_option)
    assert other_name.code == 1
    assert "IP address mismatch" in other_name.err
    assert "must be one of its names" in other_name.err
    result = run("queues", "--url", url.replace("https", "http"))
    assert result.code == 1
    assert "Traceback" not in result.err
    missing = run("queues", "--url", url, "--ca", "none.pem")
    assert missing.code == 2
    assert "none.pem" in missing.err
