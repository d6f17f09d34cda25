from __future__ import annotations

import ssl

import pytest

from sluicemq.clients.jmq.target import Target
from sluicemq.model.errors import ConfigurationError

LOCAL = ("127.0.0.1", 7676)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("jmq://", Target((LOCAL,))),
        ("JMQ://broker", Target((("broker", 7676),))),
        ("jmq+tls://a,b:9,[::1]:7", Target((("a", 7676), ("b", 9), ("::1", 7)), tls=True)),
        ("jmq://me:p%40ss@broker/", Target(
            (("broker", 7676),), username="me", password="p@ss"
        )),
        ("jmq+unix:///run/x.sock?timeout=2", Target((), "/run/x.sock", timeout=2.0, direct=True)),
        (
            "jmq://?client-id=me&share_client_id=true&service=ssljms&direct=false&ca=/x&insecure=true"
            "&keep-alive=00:01:30&flow=7",
            Target(
                (LOCAL,), client_id="me", share_client_id=True, service="ssljms", ca="/x",
                insecure=True, keep_alive=90.0, flow=7,
            ),
        ),
        ("mq://", Target((LOCAL,))),
        ("mq://a:1/jms, mq://b/jms", Target((("a", 1), ("b", 7676)), service="jms")),
        ("mq://a/ssljms", Target((("a", 7676),), service="ssljms")),
        ("mqtcp://a:5/jms mqtcp://b:6/jms", Target(
            (("a", 5), ("b", 6)), service="jms", direct=True
        )),
        ("mqssl://a:5/ssljms", Target((("a", 5),), service="ssljms", direct=True, tls=True)),
        ("MQ+SSL://a", Target((("a", 7676),), tls=True)),
    ],
)  # fmt: skip
def test_targets(text: str, target: Target) -> None:
    assert Target.parse(text) == target


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " , ",
            "broker",
            "jmq:broker",
            "tcp://broker",
            "mq://a:x",
            "mq://a/b/c",
            "mq://a?b=c",
        ),
        *("mq://a mqtcp://b", "jmq://a:0", "jmq://?timeout=0", "jmq://?flow=-1", "jmq://?x=y"),
        *("jmq://?direct=maybe", "jmq+unix://x", "jmq://[::1", "jmq://a,,b"),
    ],
)
def test_malformed_targets_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        Target.parse(text)


def test_password_is_not_in_text_of_target() -> None:
    for text in ("jmq://me:secret@a:x", "jmq://me:secret@a?x=y", "mq://me:secret@a x"):
        with pytest.raises(ConfigurationError) as error:
            Target.parse(text)
        assert "secret" not in str(error.value)


def test_tls_is_verified_unless_verification_is_disabled() -> None:
    context = Target().tls_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    context = Target(insecure=True).tls_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)
    assert not Target(path="/x").tls_context().check_hostname
    with pytest.raises(ConfigurationError, match="cannot be used"):
        Target(ca="/nowhere").tls_context()
