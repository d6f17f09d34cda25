"""Services that the port mapper of a JMQ listener lists."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from sluicemq.model.url import Url
from sluicemq.protocols.jmq.wire import encode_services
from sluicemq.server.listener_settings import Listener
from sluicemq.server.loading import load
from sluicemq.server.session_factories import services


class BoundListener(NamedTuple):
    """A listener with its bound address."""

    options: Listener
    url: Url


def bound_listener(url: str, port: int) -> BoundListener:
    (options,) = load(listen=[url]).config.listeners
    return BoundListener(options, options.url._replace(port=port))


def port_mapper_rows(listener_index: int, *listeners: BoundListener) -> list[str]:
    """Return the service rows in the response of a listener's port mapper."""
    response = encode_services("x", services(listeners, listeners[listener_index].options)).decode()
    head, *lines, dot, end = response.split("\n")
    assert (head, dot, end) == ("101 x 301", ".", "")
    return lines


def test_single_listener_lists_itself() -> None:
    lines = port_mapper_rows(0, bound_listener("jmq://", 4321))
    assert lines == ["portmapper tcp PORTMAPPER 4321", "jms tcp NORMAL 4321"]


@pytest.mark.parametrize(("listener_index", "port"), [(0, 1), (1, 2)])
def test_each_of_several_listeners_lists_itself(listener_index: int, port: int) -> None:
    lines = port_mapper_rows(
        listener_index, bound_listener("jmq://:0", 1), bound_listener("jmq://:0", 2)
    )
    assert lines == [f"portmapper tcp PORTMAPPER {port}", f"jms tcp NORMAL {port}"]


def test_plain_and_tls_port_mappers_list_both_services() -> None:
    listeners = (
        bound_listener("phpmq://:0", 9),
        bound_listener("jmq://:0", 1),
        bound_listener("jmq+tls://:0?certificate=c", 2),
        bound_listener("jmq+tls://:0?certificate=c", 3),
    )
    assert port_mapper_rows(1, *listeners) == [
        "portmapper tcp PORTMAPPER 1",
        "jms tcp NORMAL 1",
        "ssljms tls NORMAL 2",
    ]
    assert port_mapper_rows(3, *listeners) == [
        "portmapper tls PORTMAPPER 3",
        "jms tcp NORMAL 1",
        "ssljms tls NORMAL 3",
    ]


def test_tls_listener_alone_lists_no_plain_service() -> None:
    lines = port_mapper_rows(0, bound_listener("jmq+tls://:0?certificate=c", 5))
    assert lines == ["portmapper tls PORTMAPPER 5", "ssljms tls NORMAL 5"]


def test_separate_port_mapper_lists_port_of_service() -> None:
    listeners = (
        bound_listener("jmq://:0?services=portmapper", 1),
        bound_listener("jmq://:0?services=jms", 2),
    )
    assert port_mapper_rows(0, *listeners) == ["portmapper tcp PORTMAPPER 1", "jms tcp NORMAL 2"]


def test_auto_listener_lists_itself_and_ignores_other_protocols() -> None:
    listeners = bound_listener("vibemq://:0", 7), bound_listener("auto://:1", 8)
    assert port_mapper_rows(1, *listeners) == ["portmapper tcp PORTMAPPER 8", "jms tcp NORMAL 8"]


def test_advertised_port_replaces_port() -> None:
    lines = port_mapper_rows(0, bound_listener("jmq://:0?advertised_port=32000", 1))
    assert lines == ["portmapper tcp PORTMAPPER 32000", "jms tcp NORMAL 32000"]


def test_unix_socket_is_not_listed() -> None:
    listeners = bound_listener("jmq+unix:///run/j.sock", 0), bound_listener("jmq://:0", 2)
    assert port_mapper_rows(0, *listeners) == ["jms tcp NORMAL 2"]
