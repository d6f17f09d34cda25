"""TLS over sockets: every protocol, server and client certificates, and reload."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.x509 import load_pem_x509_certificate

from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import main
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.errors import ConfigurationError, ConnectionLost, RequestTimeout
from sluicemq.server.config import Config
from sluicemq.server.listener_settings import Listener
from sluicemq.server.loading import load
from sluicemq.server.tls import Tls
from tests.server.authority import Authority, serial_of
from tests.server.conftest import Start
from tests.server.tls_clients import open_socket, phpmq, read_log, send_and_receive, wait_for_log
from tests.support.polling import wait_until

LONG_PAST = datetime(2020, 1, 1, tzinfo=UTC)
PAST = datetime(2020, 6, 1, tzinfo=UTC)


def test_tls_with_every_protocol(start: Start, authority: Authority) -> None:
    pem = authority.pem(authority.issue())
    schemes = ("phpmq", "phpmq-maintenance", "msglite", "msglite-http", "auto")
    broker = start(*(f"{name}+tls://127.0.0.1:0?certificate={pem}" for name in schemes))
    trust = authority.trust()
    body = bytes(range(256)) * 4096
    for scheme in ("phpmq+tls", "auto+tls"):
        with phpmq(broker.port(scheme), trust) as client:
            send_and_receive(client, scheme, body)
    for scheme in ("msglite+tls", "auto+tls"):
        port = broker.port(scheme)
        with BlockingClient(MsgliteClient.connect, "localhost", port, ssl_context=trust) as lite:
            lite.send("lite", body, timeout=60)
            message = lite.ready("lite", timeout=30)
            assert message is not None
            assert message.body == body
            lite.send("left", b"for the maintenance port", timeout=60)
    with open_socket(broker.port("phpmq-maintenance+tls"), trust) as operator:
        operator.sendall(b"monitor\n")
        received = b""
        while b"left" not in received:
            received += operator.recv(4096)
    with (
        BlockingClient(
            MsgliteClient.connect, "localhost", broker.port("msglite+tls"), ssl_context=trust
        ) as worker,
        open_socket(broker.port("msglite-http+tls"), trust) as browser,
    ):
        browser.sendall(b"GET /hello HTTP/1.0\r\n\r\n")
        request = worker.ready("msglite.httpRequests", timeout=30)
        assert request is not None
        assert b"/hello" in request.body
        assert request.reply_to is not None
        worker.send(request.reply_to, b'["200", []]', timeout=30)
        worker.send(request.reply_to, b"hello", timeout=30)
        worker.send(request.reply_to, b"", timeout=30)
        answer = b""
        while data := browser.recv(4096):
            answer += data
        assert answer.endswith(b"hello")
    assert "error" not in broker.log.read_text()


def test_tls_on_unix_socket(start: Start, authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "tls.sock"
    broker = start(f"phpmq+unix+tls://{path}?certificate={authority.pem(authority.issue())}")
    with BlockingClient(
        PhpmqClient.connect, "localhost", path=str(path), ssl_context=authority.trust()
    ) as client:
        send_and_receive(client, "a", b"x")
    broker.stop()
    assert not path.exists()


def test_pkcs12_and_encrypted_keys(start: Start, authority: Authority) -> None:
    leaf = authority.issue()
    password = authority.password_file()
    bundle, chain, key = (
        authority.pkcs12(leaf),
        authority.chain(leaf),
        authority.encrypted_key(leaf),
    )
    broker = start(
        f"phpmq+tls://127.0.0.1:0?certificate={bundle}&password_file={password}",
        f"auto+tls://127.0.0.1:0?certificate={chain}&key={key}&password_file={password}",
    )
    for scheme in ("phpmq+tls", "auto+tls"):
        with phpmq(broker.port(scheme), authority.trust()) as client:
            send_and_receive(client, "a", b"x")
    assert "open sesame" not in broker.log.read_text()


def test_unusable_certificate_prevents_start(tmp_path: Path, authority: Authority) -> None:
    wrong_password = authority.file("wrong", b"not it")
    bundle = authority.pkcs12(authority.issue())
    url = f"phpmq+tls://127.0.0.1:0?certificate={bundle}&password_file={wrong_password}"
    with pytest.raises(ConnectionLost, match="exit code 2") as caught:
        LocalBroker(tmp_path / "b", [url]).start()
    assert "Traceback" not in str(caught.value)
    assert f"{wrong_password} does not decrypt it" in str(caught.value)


def test_expired_certificate_is_served_with_warning(start: Start, authority: Authority) -> None:
    expired = authority.ca.issue_cert("localhost", not_after=PAST, not_before=LONG_PAST)
    url = f"phpmq+tls://127.0.0.1:0?certificate={authority.pem(expired)}"
    result = subprocess.run(
        [sys.executable, "-m", "sluicemq.cli", "config", "check", "--listen", url],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "expired on 2020-06-01" in result.stderr
    broker = start(url)
    assert "expired on 2020-06-01" in broker.log.read_text()
    with pytest.raises(ConnectionLost, match="not trusted: certificate has expired"):
        phpmq(broker.port("phpmq+tls"), authority.trust())
    # asyncio closes the connection without the alert that gives the reason
    with (
        socket.create_connection(("127.0.0.1", broker.port("phpmq+tls"))) as connection,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        authority.trust().wrap_socket(connection, server_hostname="localhost")
    wait_for_log(broker, "certificate expired")


# --- versions and ciphers --------------------------------------------------------------------


def restrict_version(context: ssl.SSLContext, version: ssl.TLSVersion) -> ssl.SSLContext:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python does not like TLS 1.1 either
        context.minimum_version = version
        context.maximum_version = version
    return context


def test_old_tls_versions_are_rejected(start: Start, authority: Authority) -> None:
    pem = authority.pem(authority.issue())
    broker = start(
        f"phpmq+tls://127.0.0.1:0?certificate={pem}",
        f"auto+tls://127.0.0.1:0?certificate={pem}&tls_min_version=1.3",
    )
    default_port, strict = broker.port("phpmq+tls"), broker.port("auto+tls")

    def version(port: int, version: ssl.TLSVersion) -> str | None:
        context = restrict_version(authority.trust(), version)
        context.set_ciphers("ALL:@SECLEVEL=0")  # or this side would not even offer TLS 1.1
        with open_socket(port, context) as client:
            return client.version()

    assert version(default_port, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    assert version(default_port, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    assert version(strict, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    for port, refused_version in (
        (default_port, ssl.TLSVersion.TLSv1_1),
        (strict, ssl.TLSVersion.TLSv1_2),
    ):
        with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
            version(port, refused_version)
    wait_for_log(broker, "unsupported protocol")


def test_ciphers_of_tls_1_2(start: Start, authority: Authority) -> None:
    pem = authority.pem(authority.issue())
    cipher = "ECDHE-ECDSA-AES256-GCM-SHA384"
    broker = start(f"phpmq+tls://127.0.0.1:0?certificate={pem}&ciphers={cipher}")
    port = broker.port("phpmq+tls")
    with open_socket(port, restrict_version(authority.trust(), ssl.TLSVersion.TLSv1_2)) as client:
        assert client.cipher() == (cipher, "TLSv1.2", 256)
    other = restrict_version(authority.trust(), ssl.TLSVersion.TLSv1_2)
    other.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
        open_socket(port, other)
    wait_for_log(broker, "no shared cipher")


# --- certificates of clients -----------------------------------------------------------------


def client_options(authority: Authority, client_certificate: str, user: str = "cn") -> str:
    return (
        f"certificate={authority.pem(authority.issue())}&client_ca={authority.ca_file}"
        f"&client_certificate={client_certificate}&client_user={user}"
    )


def is_rejected(port: int, context: ssl.SSLContext) -> bool:
    """Return whether the broker rejects the client; with TLS 1.3 only a read shows it."""
    try:
        with phpmq(port, context) as client:
            client.subscribe("a", 1)
            client.receive(30)
    except ConnectionLost:
        return True
    except RequestTimeout:
        return False
    return False


def test_required_client_certificates(start: Start, authority: Authority, tmp_path: Path) -> None:
    broker = start(
        f"phpmq+tls://127.0.0.1:0?{client_options(authority, 'required')}",
        options=("--log-level", "debug"),
    )
    port = broker.port("phpmq+tls")
    alice = authority.issue("client.example", common_name="alice")
    with phpmq(port, authority.trust(alice)) as client:
        send_and_receive(client, "a", b"x")
    assert "certified=alice" in read_log(broker)
    (tmp_path / "other").mkdir()
    untrusted = Authority(tmp_path / "other").issue("client.example", common_name="alice")
    for context, reason in (
        (authority.trust(), "peer did not return a certificate"),
        (authority.trust(untrusted), "its certificate was refused: self-signed certificate"),
    ):
        assert is_rejected(port, context)
        wait_for_log(broker, reason.split(":")[0])

    def connected() -> int:
        lines = [line for line in read_log(broker).splitlines() if "peer=unix" not in line]
        return "\n".join(lines).count("connected")

    wait_until(lambda: connected() == 2, "alice's lines are not the only ones")  # she came and went


def test_optional_client_certificates(start: Start, authority: Authority) -> None:
    broker = start(
        f"phpmq+tls://127.0.0.1:0?{client_options(authority, 'optional', 'san-email')}",
        options=("--log-level", "debug"),
    )
    port = broker.port("phpmq+tls")
    with phpmq(port, authority.trust()) as client:
        send_and_receive(client, "a", b"x")
    assert "certified" not in read_log(broker)
    bob = authority.issue("bob@example.org", "eve@example.org", common_name="alice")
    with phpmq(port, authority.trust(bob)) as client:
        send_and_receive(client, "a", b"x")
    assert "certified=bob@example.org" in read_log(broker)
    # a certificate without a name in the configured field must not pass for none
    unnamed = authority.issue("client.example", common_name="alice")
    assert is_rejected(port, authority.trust(unnamed))
    wait_for_log(broker, "no san-email in its certificate")


@pytest.mark.parametrize("kind", ["cn", "subject"])
def test_client_certificate_grants_permissions_of_its_user(
    start: Start, authority: Authority, tmp_path: Path, kind: str
) -> None:
    """Also in protocols without logins."""
    issued = authority.issue("client.example", common_name="alice")
    subject = load_pem_x509_certificate(issued.cert_chain_pems[0].bytes()).subject
    name = {"cn": "alice", "subject": subject.rfc4514_string()}[kind]
    options = ("--data-dir", str(tmp_path / "broker"))
    assert main(["users", "add", name, "--no-password", *options]) == 0
    assert main(["permissions", "grant", name, "jobs.*", "produce", "consume", *options]) == 0
    broker = start(f"phpmq+tls://0.0.0.0:0?{client_options(authority, 'required', kind)}")
    port = broker.port("phpmq+tls")
    alice = authority.trust(issued)
    mallory = authority.trust(authority.issue("client.example", common_name="mallory"))
    with phpmq(port, alice) as client:
        send_and_receive(client, "jobs.a", b"x")
        client.send("other", b"x")
        with pytest.raises(ConnectionLost):
            client.receive(30)
    with phpmq(port, mallory) as client:
        client.send("jobs.a", b"x")
        with pytest.raises(ConnectionLost):
            client.receive(30)
    names = {
        destination["name"]: destination["published"]
        for destination in broker.status()["destinations"]
    }
    assert names.get("jobs.a") == 1
    assert "other" not in names


# --- replacement -----------------------------------------------------------------------------


def served_serial(port: int, context: ssl.SSLContext) -> int:
    """Return the serial number of the certificate that a new connection sees."""
    with open_socket(port, context) as client:
        certificate = client.getpeercert()
        assert certificate is not None
        return int(str(certificate["serialNumber"]), 16)


def test_reload_under_traffic(start: Start, authority: Authority) -> None:
    first, second = authority.issue(), authority.issue()
    pem = authority.pem(first)
    broker = start(
        f"phpmq+tls://127.0.0.1:0?certificate={pem}",
        f"auto+tls://127.0.0.1:0?certificate={pem}",
    )
    trust = authority.trust()
    ports = [broker.port("phpmq+tls"), broker.port("auto+tls")]
    with phpmq(ports[0], trust) as client:
        send_and_receive(client, "a", b"before")
        authority.pem(second)
        assert [served_serial(port, trust) for port in ports] == [serial_of(first)] * 2
        os.kill(broker.pid, signal.SIGHUP)
        number = 0
        while [served_serial(port, trust) for port in ports] != [serial_of(second)] * 2:
            client.send("a", b"%d" % number)
            assert client.receive(30).ack() is None
            number += 1
            assert number < 1000
        client.send("a", b"after")
        assert client.receive(30).body == b"after"
    wait_until(lambda: read_log(broker).count("certificate replaced") == 2, "no two lines")
    assert f"{serial_of(second):x}" in read_log(broker)


def test_failed_reload_keeps_certificate(start: Start, authority: Authority) -> None:
    first, second = authority.issue(), authority.issue()
    pem = authority.pem(first)
    broker = start(f"phpmq+tls://127.0.0.1:0?certificate={pem}")
    port, trust = broker.port("phpmq+tls"), authority.trust()
    mismatch = first.private_key_pem.bytes() + second.cert_chain_pems[0].bytes()
    der = ssl.PEM_cert_to_DER_cert(first.cert_chain_pems[0].bytes().decode())
    other_version = ssl.DER_cert_to_PEM_cert(der.replace(b"\xa0\3\2\1\2", b"\xa0\3\2\1\4"))
    unsupported = first.private_key_pem.bytes() + other_version.encode()
    for count, content in enumerate((b"junk", b"", mismatch, unsupported), 1):
        authority.file("broker.pem", content)
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(
            lambda n=count: read_log(broker).count("certificate rejected") == n, "no refusal"
        )
        assert served_serial(port, trust) == serial_of(first)
    pem.unlink()
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: read_log(broker).count("certificate rejected") == 5, "no refusal")
    assert "Traceback" not in read_log(broker)
    authority.pem(second)
    os.kill(broker.pid, signal.SIGHUP)
    wait_for_log(broker, "certificate replaced")
    assert served_serial(port, trust) == serial_of(second)


def listener(url: str) -> Listener:
    config: Config = load(Path("/dev/null"), listen=[url]).config
    return config.listeners[0]


def test_changed_files_are_reloaded_once(authority: Authority) -> None:
    first, second = authority.issue(), authority.issue()
    authority.pem(first)

    async def main() -> None:
        tls = Tls(listener(f"phpmq+tls://:0?certificate={authority.directory / 'broker.pem'}"))
        before = tls.context
        await tls.reload_if_changed()
        assert tls.context is before
        authority.file("broker.pem", b"half of it")
        await tls.reload_if_changed()
        assert tls.context is before
        authority.pem(second)
        await tls.reload_if_changed()
        replaced = tls.context
        assert replaced is not before
        await tls.reload_if_changed()
        assert tls.context is replaced

    asyncio.run(main())


# --- the configuration -----------------------------------------------------------------------


def problems(url: str) -> str:
    try:
        load(Path("/dev/null"), listen=[url]).check()
    except ConfigurationError as error:
        return str(error)
    return ""


def test_invalid_tls_settings_are_reported(authority: Authority) -> None:
    pem = authority.pem(authority.issue())
    url = f"phpmq+tls://:0?certificate={pem}"
    assert problems(url) == ""
    assert "needs client_ca" in problems(f"{url}&client_certificate=required")
    assert "client_ca has no effect" in problems(f"{url}&client_ca={authority.ca_file}")
    assert "OpenSSL knows no cipher" in problems(f"{url}&ciphers=rot13")
    assert "there are 1.2, 1.3" in problems(f"{url}&tls_min_version=1.1")
    assert "ciphers requires TLS" in problems("phpmq://:0?ciphers=ALL")
    assert "tls_min_version requires TLS" in problems("phpmq://:0?tls_min_version=1.3")
    base_url = f"{url}&client_certificate=optional&client_ca="
    assert problems(f"{base_url}{authority.ca_file}") == ""
    assert "has no certificate" in problems(f"{base_url}{authority.password_file()}")


def test_tls_version_may_be_number_in_file(authority: Authority) -> None:
    pem = authority.pem(authority.issue())
    text = (
        "[[listeners]]\nurl = 'phpmq+tls://:0'\n"
        + f"certificate = '{pem}'\ntls_min_version = 1.3\n"
    )
    config = load(authority.file("sluicemq.toml", text.encode())).config
    assert config.listeners[0].tls_min_version == "1.3"
    assert not list(config.problems())
