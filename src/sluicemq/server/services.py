"""Addresses that the broker announces: those of the JMS services and of the console.

The port mapper directs JMS clients to listeners of this broker:

    row                          listener
    portmapper tcp PORTMAPPER    the one the client is connected to
    jms        tcp NORMAL        the same if it serves JMS, else the first listener that does
    ssljms     tls NORMAL        like jms, with TLS

A service without a listener gets no row, because port 0 means that the service is paused.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from sluicemq.protocols.jmq.wire import Service
from sluicemq.server.address import Url, is_wildcard
from sluicemq.server.listener_settings import Listener

_WITH_JMS: Final = ("jmq", "auto")


class Opened(Protocol):
    """Open listener, whose `url` has the bound port."""

    @property
    def options(self) -> Listener: ...

    @property
    def url(self) -> Url: ...


def services(opened: Iterable[Opened], asked: Listener) -> Iterator[Service]:
    """Yield the rows for a client of the listener whose options are `asked`."""
    reachable = [each for each in opened if _is_reachable(each)]
    # The sort is stable: the client's listener comes first, the others keep their order.
    reachable.sort(key=lambda each: each.options is not asked)
    if reachable and reachable[0].options is asked:
        protocol = "tls" if asked.url.tls else "tcp"
        yield Service("portmapper", protocol, "PORTMAPPER", _port(reachable[0]))
    for name, protocol, tls in (("jms", "tcp", False), ("ssljms", "tls", True)):
        for each in reachable:
            if each.url.tls == tls and each.options.services != "portmapper":
                yield Service(name, protocol, "NORMAL", _port(each))
                break


def jms_address(opened: Iterable[Opened]) -> tuple[str, int]:
    """Return host and port that identify the broker; ("localhost", 0) if it serves no JMS."""
    for each in opened:
        if _is_reachable(each):
            host = each.url.host
            return socket.gethostname() if is_wildcard(host) else host, _port(each)
    return "localhost", 0


def console_addresses(opened: Iterable[Opened]) -> Iterator[str]:
    """Yield the URLs of the console, one for each HTTP listener with a port."""
    for each in opened:
        url = each.url
        if url.protocol == "http" and not url.path:
            host = socket.gethostname() if is_wildcard(url.host) else url.host
            bracketed = f"[{host}]" if ":" in host else host
            yield f"{'https' if url.tls else 'http'}://{bracketed}:{url.port}/console/"


def _is_reachable(listener: Opened) -> bool:
    return listener.url.protocol in _WITH_JMS and not listener.url.path


def _port(listener: Opened) -> int:
    return listener.options.advertised_port or listener.url.port
