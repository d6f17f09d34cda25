from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicemq.model.destination import decode_name
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.url import MAX_SOCKET_PATH, PROTOCOLS, Url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("msglite://", Url("msglite", "127.0.0.1", 9813)),
        ("msglite://:1234", Url("msglite", "127.0.0.1", 1234)),
        ("msglite-http://", Url("msglite-http", "127.0.0.1", 9814)),
        ("phpmq://broker", Url("phpmq", "broker", 9100)),
        ("phpmq://BROKER.example", Url("phpmq", "broker.example", 9100)),
        ("phpmq-maintenance://", Url("phpmq-maintenance", "127.0.0.1", 9101)),
        ("vibemq://", Url("vibemq", "127.0.0.1", 2925)),
        ("jmq://", Url("jmq", "127.0.0.1", 7676)),
        ("http://", Url("http", "127.0.0.1", 7680)),
        ("auto://:5000", Url("auto", "127.0.0.1", 5000)),
        ("phpmq://h:0", Url("phpmq", "h", 0)),
        ("phpmq://[::1]", Url("phpmq", "::1", 9100)),
        ("phpmq://[0:0::1]:7", Url("phpmq", "::1", 7)),
        ("phpmq://[fe80::1%25eth0]:7", Url("phpmq", "fe80::1%eth0", 7)),
        ("msglite+unix://", Url("msglite", "", 0, "/tmp/msglite.socket")),
        ("msglite+unix:///run/a%20b", Url("msglite", "", 0, "/run/a b")),
        ("phpmq+unix:///s?queue=a%3Fb", Url("phpmq", "", 0, "/s", queue="a?b")),
        ("phpmq://h/a/b%20c", Url("phpmq", "h", 9100, queue="a/b c")),
        ("phpmq://h/%FF", Url("phpmq", "h", 9100, queue=decode_name(b"\xff"))),
        ("phpmq+unix:///s?queue=%FF", Url("phpmq", "", 0, "/s", queue=decode_name(b"\xff"))),
        ("phpmq://h/n\udcff", Url("phpmq", "h", 9100, queue="n\udcff")),
        ("phpmq+unix:///%FF", Url("phpmq", "", 0, "/\udcff")),
        ("phpmq+unix:///\udcff?queue=\udcfe", Url("phpmq", "", 0, "/\udcff", queue="\udcfe")),
        ("vibemq://a%40b:p%3Aq@h", Url("vibemq", "h", 2925, user="a@b", password="p:q")),
        (
            "phpmq+tls://0.0.0.0:9100?certificate=/x.pem&max-connections=5",
            Url(
                "phpmq",
                "0.0.0.0",
                9100,
                tls=True,
                options=(("certificate", "/x.pem"), ("max_connections", "5")),
            ),
        ),
        ("phpmq+unix+tls:///s", Url("phpmq", "", 0, "/s", True)),
        ("phpmq+tls+unix:///s", Url("phpmq", "", 0, "/s", True)),
    ],
)
def test_parse(text: str, expected: Url) -> None:
    assert Url.parse(text) == expected
    assert Url.parse(expected.format()) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begin with a protocol"),
        ("localhost:9813", "msglite://localhost:9813"),
        ("msglight://h", "did you mean msglite"),
        ("xyz://h", "there are msglite"),
        ("phpmq+ssl://h", "+ssl is unknown"),
        ("phpmq+tls+tls://h", "once"),
        ("auto://h", "no traditional port"),
        ("phpmq://h:65536", "not a port"),
        ("phpmq://h:-1", "not a port"),
        ("phpmq://h:", "not a port"),
        ("phpmq://h:٩", "not a port"),
        ("phpmq://::1", "brackets"),
        ("phpmq://[::1", "[address]:port"),
        ("phpmq://[::1]9", "[address]:port"),
        ("phpmq://[127.0.0.1]:9", "not an IPv6"),
        ("phpmq://ho st", "%20"),
        ("phpmq://h\n", "%0A"),
        ("phpmq://h/100%", "%25"),
        ("phpmq://h/a#b", "%23"),
        ("phpmq://höst", "neither a host name"),
        ("phpmq://*:9100", "neither a host name"),
        ("vibemq://broker..example", "neither a host name"),
        ("http://broker.:80,broker..:80", "neither a host name"),
        (f"jmq://{64 * 'x'}.example", "neither a host name"),
        ("vibemq://@h", "no user name"),
        ("vibemq://u:@h", "no password"),
        ("phpmq://h?tls", "name=value"),
        ("phpmq://h?mode=", "name=value"),
        ("phpmq://h?a=1&a=2", "twice"),
        ("phpmq://h?max-x=1&max_x=2", "twice"),
        ("phpmq://h?a=%FF", "the option a is not UTF-8"),
        ("vibemq://u\udcff@h", "the user is not UTF-8"),
        ("vibemq://u:%FF@h", "the password is not UTF-8"),
        ("phpmq://h?a%2Fb=1", "name of an option"),
        ("phpmq://h?queue=a", "is its path"),
        ("phpmq+unix://", "give the path"),
        ("phpmq+unix://run/x", "three slashes"),
        ("phpmq+unix:///a%00b", "character 0"),
        ("phpmq+unix:///" + "x" * MAX_SOCKET_PATH, "at most 107"),
        ("phpmq://h/" + "x" * 9000, "longer than"),
    ],
)
def test_invalid_urls_are_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Url.parse(text)
    assert message in str(caught.value)


def test_several_hosts_are_parsed_on_request_only() -> None:
    text = "jmq+tls://me:pw@a,b:9,[::1]:7?timeout=2"
    urls = Url.parse_all(text)
    assert [(url.host, url.port) for url in urls] == [("a", 7676), ("b", 9), ("::1", 7)]
    assert {url._replace(host="", port=0) for url in urls} == {
        Url("jmq", "", tls=True, user="me", password="pw", options=(("timeout", "2"),))
    }
    for mistake in (text, "jmq://a,,b"):
        with pytest.raises(ConfigurationError, match="host"):
            Url.parse(mistake)


def test_errors_contain_neither_password_nor_options() -> None:
    for text in (
        "vibemq://u:secret@h:x",
        "vibemq://h:x?token=secret",
        f"jmq://u:secret{'x' * 9000}@h",
    ):
        with pytest.raises(ConfigurationError) as caught:
            Url.parse(text)
        assert "secret" not in str(caught.value)


def test_passwords_are_included_by_format_only() -> None:
    url = Url.parse("vibemq://ann:s3cret@h")
    assert str(url) == "vibemq://ann:***@h:2925"
    assert url.format() == "vibemq://ann:s3cret@h:2925"
    with pytest.raises(ConfigurationError) as caught:
        Url.parse("vibemq://ann:s3cret@h:99999")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("phpmq://127.0.0.1", False),
        ("phpmq://127.8.0.1", False),
        ("phpmq://localhost", False),
        ("phpmq://[::1]", False),
        ("phpmq+unix:///s", False),
        ("phpmq://0.0.0.0", True),
        ("phpmq://[::]", True),
        ("phpmq://10.0.0.1", True),
        ("phpmq://broker", True),
    ],
)
def test_public_addresses(text: str, public: bool) -> None:
    assert Url.parse(text).public is public


@pytest.mark.parametrize(
    ("one", "other", "collides"),
    [
        ("phpmq://h:1", "msglite://h:1", True),
        ("phpmq://h:1", "phpmq://h:2", False),
        ("phpmq://127.0.0.1:1", "phpmq://0.0.0.0:1", True),
        ("phpmq://127.0.0.1:1", "phpmq://127.0.0.2:1", False),
        ("phpmq://[::]:1", "phpmq://0.0.0.0:1", False),
        ("phpmq://[::]:1", "phpmq://127.0.0.1:1", False),
        ("phpmq://0.0.0.0:1", "phpmq://[::1]:1", False),
        ("phpmq://[::]:1", "phpmq://[::1]:1", True),
        ("phpmq://[::]:1", "phpmq://h:1", True),
        ("phpmq://0.0.0.0:1", "phpmq://h:1", True),
        ("phpmq://h:0", "phpmq://h:0", False),
        ("phpmq+unix:///a", "msglite+unix:///a", True),
        ("phpmq+unix:///a", "phpmq+unix:///b", False),
        ("phpmq+unix:///a", "phpmq://h:0", False),
    ],
)
def test_colliding_addresses(one: str, other: str, collides: bool) -> None:
    assert Url.parse(one).collides(Url.parse(other)) is collides
    assert Url.parse(other).collides(Url.parse(one)) is collides


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_names = st.binary(max_size=30).map(decode_name)
_options = st.dictionaries(
    st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(lambda name: name != "queue"),
    _text.filter(bool),
    max_size=3,
).map(lambda items: tuple(items.items()))
_tcp = st.builds(
    Url,
    protocol=st.sampled_from(sorted(PROTOCOLS)),
    host=st.one_of(
        st.ip_addresses().map(str),
        st.from_regex(r"[a-z0-9_][a-z0-9_-]{0,9}(\.[a-z0-9_-]{1,9}){0,2}", fullmatch=True),
    ),
    port=st.integers(0, 65535),
    path=st.just(""),
    tls=st.booleans(),
    user=_text.filter(bool),
    password=_text,
    queue=_names,
    options=_options,
)
_unix = st.builds(
    Url,
    protocol=st.sampled_from(sorted(PROTOCOLS)),
    host=st.just(""),
    port=st.just(0),
    user=st.just(""),
    password=st.just(""),
    path=_text.filter(lambda text: "\0" not in text and len(text.encode()) < 100).map("/".__add__),
    tls=st.booleans(),
    queue=_names,
    options=_options,
)


@given(st.one_of(_tcp, _unix))
def test_format_and_parse_are_inverse(url: Url) -> None:
    assert Url.parse(url.format()) == url


@given(
    st.one_of(
        st.text(max_size=200),
        st.tuples(
            st.sampled_from(["phpmq://", "msglite+unix://", "auto+tls://"]),
            st.text("[]:@/?&=%#0aé٣\0 .", max_size=40),
        ).map("".join),
    )
)
@example("phpmq://[::ffff:127.0.0.1%25]")
def test_any_text_is_an_address_or_a_configuration_error(text: str) -> None:
    try:
        url = Url.parse(text)
    except ConfigurationError:
        return
    assert Url.parse(url.format()) == url
