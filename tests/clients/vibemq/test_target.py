from __future__ import annotations

import ssl

import pytest

from sluicemq.clients.vibemq.connection import Target
from sluicemq.model.errors import ConfigurationError
from sluicemq.protocols.vibemq.compression import Compression

LOCAL = ("127.0.0.1", 2925)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("vibemq://", Target((LOCAL,))),
        ("vibemq://broker", Target((("broker", 2925),))),
        ("VIBEMQ://broker:9/", Target((("broker", 9),))),
        ("vibemq+tls://a,b:9,[::1]:7,[::2]", Target(
            (("a", 2925), ("b", 9), ("::1", 7), ("::2", 2925)), tls=True
        )),
        ("vibemq://me:p%40ss@broker", Target((("broker", 2925),), username="me", password="p@ss")),
        ("vibemq://me@broker?token=t", Target((("broker", 2925),), username="me", token="t")),
        ("vibemq+unix:///run/x.sock?timeout=2", Target((), "/run/x.sock", timeout=2.0)),
        ("vibemq://?keep-alive=00:01:30&compression=gzip&threshold=0", Target(
            (LOCAL,), keep_alive=90.0, compression=(Compression.GZIP,), threshold=0
        )),
        ("", Target((LOCAL,))),
        ("Host=broker", Target((("broker", 2925),))),
        ("host = a:1, b ; PORT = 7; ", Target((("a", 1), ("b", 7)))),
        (
            "Host=h;Username=me;Password=a=b c;UseTls=True;SkipCertificateValidation=true;"
            "PreferredCompressions=gzip, brotli;CompressionThreshold=100;"
            "KeepAliveInterval=0:1:0.5;CommandTimeout=3.5",
            Target(
                (("h", 2925),),
                username="me",
                password="a=b c",
                tls=True,
                insecure=True,
                compression=(Compression.GZIP, Compression.BROTLI),
                threshold=100,
                keep_alive=60.5,
                timeout=3.5,
            ),
        ),
        ("Username=me;Password=p://q", Target((LOCAL,), username="me", password="p://q")),
        ("User ID=me;Pwd=p;Auth_Token=t;Compression=none", Target(
            (LOCAL,), username="me", password="p", token="t", compression=()
        )),
    ],
)  # fmt: skip
def test_targets(text: str, target: Target) -> None:
    assert Target.parse(text) == target


@pytest.mark.parametrize(
    "text",
    [
        *("broker", "Host=a;Colour=red", "Port=x", "Port=0", "Port=65536", "Port=1.5", "Host=,"),
        *("Host=[::1", "Host=[::1]9", "UseTls=yes", "Timeout=0", "Timeout=-1", "Timeout=1:2"),
        *("Compression=zip", "Threshold=x", "vibemq://a:b:c@h:x", "vibemq://h?colour=red"),
        *("vibemq+unix://x", "vibemq+ssl://h", "phpmq://h"),
    ],
)
def test_invalid_targets_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        Target.parse(text)


def test_error_does_not_contain_password() -> None:
    for text in ("Password=secret;Port=x", "Password=secret;oops", "vibemq://me:secret@h:x"):
        with pytest.raises(ConfigurationError) as error:
            Target.parse(text)
        assert "secret" not in str(error.value)


def test_tls() -> None:
    assert not Target().tls
    context = Target(tls=True).tls_context()
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    insecure_context = Target(tls=True, insecure=True).tls_context()
    assert insecure_context is not None
    assert insecure_context.verify_mode is ssl.CERT_NONE
    unnamed = Target((), "/x", tls=True).tls_context()
    assert unnamed is not None
    assert not unnamed.check_hostname
    assert unnamed.verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(ConfigurationError, match="/nowhere"):
        Target(tls=True, ca="/nowhere").tls_context()
