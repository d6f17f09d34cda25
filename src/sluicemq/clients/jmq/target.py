"""Connection targets of a JMQ client: URLs and Open MQ broker addresses.

    jmq[+tls]://[user[:password]@]host[:port][,host[:port]…][?option=value&…]
    jmq+unix:///path[?option=value&…]
    mq://host:7676/jms mq://other:7676/ssljms       as imqAddressList, separated by blanks or commas
    mqtcp://host:port/jms, mqssl://host:port/ssljms      the service's port, no port mapper
    mq+ssl://host:port                                   TLS, also for the port mapper

The port is that of the host's port mapper, which returns the service's port; with `direct` it is
the service's own port. The client uses TLS for a service that the port mapper lists with `tls`.

Option names ignore letter case, `_`, `-` and blanks between words:

    username (user), password
    client id                    needed for durable subscriptions
    share client id              true or false: other connections may use the client id too
    service                      jms, ssljms, …; the service looked up in the port mapper
    direct                       true or false
    insecure                     true or false
    ca                           file of trusted certificates
    timeout, keep alive (ping interval)     seconds, or hh:mm:ss
    flow                         messages the broker may send before the client requests more
"""

from __future__ import annotations

import re
import ssl
from typing import Final, NamedTuple

from sluicemq.clients import urls
from sluicemq.model.errors import ConfigurationError
from sluicemq.protocols.jmq.fields import GUEST

DEFAULT_PORT: Final = 7676

_ADDRESS: Final = re.compile(r"(mq|mqtcp|mqssl|mq\+ssl)://([^/?@]*)(?:/(\w*))?\Z", re.IGNORECASE)
_SPACES: Final = re.compile(r"[\s,]+")


class Target(NamedTuple):
    """One broker, or several equivalent ones.

    hosts            tried in this order; a name or address, and a port
    path             of a Unix socket, instead of hosts; without a port mapper
    client_id        "" = none
    share_client_id  other connections may use the client id and share its subscriptions
    service          name of the service; "" = jms, or ssljms over TLS
    direct           the port is the service's own
    tls              use TLS, also for the port mapper
    ca               file of trusted certificates; "" = the system's
    insecure         do not verify the broker's certificate
    timeout          seconds
    keep_alive       idle seconds before a ping; 0 = no pings
    flow             messages in transit for the whole connection; 0 = no limit
    """

    hosts: urls.Hosts = (("127.0.0.1", DEFAULT_PORT),)
    path: str = ""
    username: str = GUEST
    password: str = GUEST
    client_id: str = ""
    share_client_id: bool = False
    service: str = ""
    direct: bool = False
    tls: bool = False
    ca: str = ""
    insecure: bool = False
    timeout: float = 10.0
    keep_alive: float = 30.0
    flow: int = 0

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse a URL or an address list. Raises ConfigurationError, never with a password."""
        if text[:3].lower() != "jmq":
            return _parse_addresses(text)
        target = cls(**urls.parse(text, "jmq", DEFAULT_PORT, _OPTIONS))
        return target._replace(direct=target.direct or bool(target.path))


def _parse_addresses(text: str) -> Target:
    """Parse a list of addresses of the same scheme and service."""
    found: list[Target] = []
    for item in filter(None, _SPACES.split(text)):
        address = _ADDRESS.match(item)
        if address is None:
            raise ConfigurationError(
                "a broker is named as jmq://host:port or mq://host:port/service"
            )
        scheme, host, service = address.groups()
        scheme = scheme.lower()
        found.append(
            Target(
                urls.hosts(host or "127.0.0.1", DEFAULT_PORT),
                service=service or "",
                direct=scheme in ("mqtcp", "mqssl"),
                tls=scheme in ("mqssl", "mq+ssl"),
            )
        )
    if not found:
        raise ConfigurationError("there is no address of a broker")
    hosts = tuple(host for target in found for host in target.hosts)
    if any(target != found[0]._replace(hosts=target.hosts) for target in found):
        raise ConfigurationError("addresses that stand for each other differ in their hosts only")
    return found[0]._replace(hosts=hosts)


_OPTIONS: Final[urls.Known] = {
    "username": ("username", urls.text),
    "user": ("username", urls.text),
    "password": ("password", urls.text),
    "clientid": ("client_id", urls.text),
    "shareclientid": ("share_client_id", urls.truth),
    "service": ("service", urls.text),
    "direct": ("direct", urls.truth),
    "insecure": ("insecure", urls.truth),
    "ca": ("ca", urls.text),
    "timeout": ("timeout", urls.seconds),
    "keepalive": ("keep_alive", urls.seconds),
    "pinginterval": ("keep_alive", urls.seconds),
    "flow": ("flow", urls.integer),
}


def tls_context(target: Target) -> ssl.SSLContext:
    """Return the TLS context for the target's certificates. Raises ConfigurationError."""
    return urls.tls_context(target.ca, insecure=target.insecure, named=not target.path)
