"""Rows of the port mapper of a listener."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from sluicemq.model.url import Url
from sluicemq.protocols.jmq.wire import encode_services
from sluicemq.server.listener_settings import Listener
from sluicemq.server.loading import load
from sluicemq.server.session_factories import services


class Bound(NamedTuple):
    """A listener, and where it is."""

    options: Listener
    url: Url


def bound(url: str, port: int) -> Bound:
    (options,) = load(listen=[url]).config.listeners
    return Bound(options, options.url._replace(port=port))


def rows(asked: int, *opened: Bound) -> list[str]:
    """Return the rows that a client of that listener reads."""
    response = encode_services("x", services(opened, opened[asked].options)).decode()
    head, *lines, dot, end = response.split("\n")
    assert (head, dot, end) == ("101 x 301", ".", "")
    return lines


def test_one_listener_leads_to_itself() -> None:
    lines = rows(0, bound("jmq://", 4321))
    assert lines == ["portmapper tcp PORTMAPPER 4321", "jms tcp NORMAL 4321"]


@pytest.mark.parametrize(("asked", "port"), [(0, 1), (1, 2)])
def test_one_of_several_listeners_leads_to_itself(asked: int, port: int) -> None:
    lines = rows(asked, bound("jmq://:0", 1), bound("jmq://:0", 2))
    assert lines == [f"portmapper tcp PORTMAPPER {port}", f"jms tcp NORMAL {port}"]


def test_with_tls_both_services_are_listed_at_both_port_mappers() -> None:
    listeners = (
        bound("phpmq://:0", 9),
        bound("jmq://:0", 1),
        bound("jmq+tls://:0?certificate=c", 2),
        bound("jmq+tls://:0?certificate=c", 3),
    )
    assert rows(1, *listeners) == [
        "portmapper tcp PORTMAPPER 1",
        "jms tcp NORMAL 1",
        "ssljms tls NORMAL 2",
    ]
    assert rows(3, *listeners) == [
        "portmapper tls PORTMAPPER 3",
        "jms tcp NORMAL 1",
        "ssljms tls NORMAL 3",
    ]


def test_only_tls_publishes_no_plain_service() -> None:
    lines = rows(0, bound("jmq+tls://:0?certificate=c", 5))
    assert lines == ["portmapper tls PORTMAPPER 5", "ssljms tls NORMAL 5"]


def test_a_mapper_of_its_own_leads_to_the_other_port() -> None:
    listeners = bound("jmq://:0?services=portmapper", 1), bound("jmq://:0?services=jms", 2)
    assert rows(0, *listeners) == ["portmapper tcp PORTMAPPER 1", "jms tcp NORMAL 2"]


def test_an_auto_listener_serves_jms_too_and_other_protocols_do_not() -> None:
    listeners = bound("vibemq://:0", 7), bound("auto://:1", 8)
    assert rows(1, *listeners) == ["portmapper tcp PORTMAPPER 8", "jms tcp NORMAL 8"]


def test_the_port_can_be_announced_as_another() -> None:
    lines = rows(0, bound("jmq://:0?advertised_port=32000", 1))
    assert lines == ["portmapper tcp PORTMAPPER 32000", "jms tcp NORMAL 32000"]


def test_a_unix_socket_has_no_port_to_list() -> None:
    listeners = bound("jmq+unix:///run/j.sock", 0), bound("jmq://:0", 2)
    assert rows(0, *listeners) == ["jms tcp NORMAL 2"]
