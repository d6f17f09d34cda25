"""Addresses that clients are told: of the services of JMS, and of the console.

The port mapper sends JMS clients to listeners of this broker:

    row                          listener
    portmapper tcp PORTMAPPER    the one that was asked
    jms        tcp NORMAL        the one that was asked if it serves that, else the first that does
    ssljms     tls NORMAL        the same with TLS

A service that no listener has gets no row: a port of 0 would mean that it is paused.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from sluicemq.protocols.jmq.portmapper import Service
from sluicemq.server.address import Url, is_wildcard
from sluicemq.server.listener_settings import Listener

_WITH_JMS: Final = ("jmq", "auto")


class Opened(Protocol):
    """A listener in service: its `url` has the port it really has."""

    @property
    def options(self) -> Listener: ...

    @property
    def url(self) -> Url: ...


def services(opened: Iterable[Opened], asked: Listener) -> Iterator[Service]:
    """The rows for a client that has connected to the listener with those options."""
    reachable = [each for each in opened if _is_reachable(each)]
    # stable: the listener that was asked comes first, the others in their order
    reachable.sort(key=lambda each: each.options is not asked)
    if reachable and reachable[0].options is asked:
        protocol = "tls" if asked.url.tls else "tcp"
        yield Service("portmapper", protocol, "PORTMAPPER", _port(reachable[0]))
    for name, protocol, tls in (("jms", "tcp", False), ("ssljms", "tls", True)):
        for each in reachable:
            if each.url.tls == tls and each.options.serves != "portmapper":
                yield Service(name, protocol, "NORMAL", _port(each))
                break


def jms_address(opened: Iterable[Opened]) -> tuple[str, int]:
    """Host and port by which monitors know the broker; ("localhost", 0) if it serves no JMS."""
    for each in opened:
        if _is_reachable(each):
            host = each.url.host
            return socket.gethostname() if is_wildcard(host) else host, _port(each)
    return "localhost", 0


def console_addresses(opened: Iterable[Opened]) -> Iterator[str]:
    """URLs of the console for a browser, one for each HTTP listener with a port."""
    for each in opened:
        url = each.url
        if url.protocol == "http" and not url.path:
            host = socket.gethostname() if is_wildcard(url.host) else url.host
            shown = f"[{host}]" if ":" in host else host
            yield f"{'https' if url.tls else 'http'}://{shown}:{url.port}/console/"


def _is_reachable(listener: Opened) -> bool:
    return listener.url.protocol in _WITH_JMS and not listener.url.path


def _port(listener: Opened) -> int:
    return listener.options.announced_port or listener.url.port
