"""Targets of JMQ clients: URLs and lists of Open MQ broker addresses.

    jmq[+tls]://[user[:password]@]host[:port][,host[:port]…][?option=value&…]
    jmq+unix:///path[?option=value&…]
    mq://host:7676/jms mq://other:7676/ssljms       as imqAddressList, separated by blanks or commas
    mqtcp://host:port/jms, mqssl://host:port/ssljms      the service's port, no port mapper
    mq+ssl://host:port                                   TLS, also for the port mapper

The port is that of the host's port mapper, which returns the service's port; with `direct` it is
the service's own port. The client uses TLS for a service that the port mapper lists with `tls`, and
with `+tls` for any service.

Option names ignore letter case, `_`, `-` and blanks between words:

    username (user), password
    client id                    needed for durable subscriptions
    share client id              true or false: other connections may use the client id too
    service                      jms, ssljms, …; the service looked up in the port mapper
    direct                       true or false
    insecure                     true or false
    ca                           file of trusted certificates
    certificate, key, password file     the client's own certificate
    timeout, keep alive (ping interval)     seconds, or hh:mm:ss
    flow                         messages the broker may send before the client requests more
"""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from sluicemq.clients import urls
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.url import parse_hosts
from sluicemq.protocols.jmq.fields import GUEST

DEFAULT_PORT: Final = 7676

_ADDRESS: Final = re.compile(r"(mq|mqtcp|mqssl|mq\+ssl)://([^/?@]*)(?:/(\w*))?\Z", re.IGNORECASE)
_SPACES: Final = re.compile(r"[\s,]+")


class Target(urls.Target, frozen=True):
    """A broker's address and login. `tls`: also for the port mapper.

    client_id        "" = none
    share_client_id  other connections may use the client id and share its subscriptions
    service          name of the service; "" = jms, or ssljms over TLS
    direct           the port is the service's own, as a Unix socket always is
    flow             messages in transit for the whole connection; 0 = no limit
    """

    username: str = GUEST
    password: str = GUEST
    client_id: str = ""
    share_client_id: bool = False
    service: str = ""
    direct: bool = False
    flow: int = 0

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse a URL or an address list. Raises ConfigurationError, never with a password."""
        if text[:3].lower() != "jmq":
            return _parse_addresses(text)
        target = cls(**urls.parse(text, "jmq", _OPTIONS, tls_optional=True))
        return replace(target, direct=target.direct or bool(target.path))


def _parse_addresses(text: str) -> Target:
    """Parse a list of addresses of the same scheme and service."""
    targets: list[Target] = []
    for part in filter(None, _SPACES.split(text)):
        match = _ADDRESS.match(part)
        if match is None:
            raise ConfigurationError(
                "the URL of a broker is jmq://host:port or mq://host:port/service"
            )
        scheme, host, service = match.groups()
        scheme = scheme.lower()
        targets.append(
            Target(
                urls.check_ports(parse_hosts(host, DEFAULT_PORT)),
                service=service or "",
                direct=scheme in ("mqtcp", "mqssl"),
                tls=scheme in ("mqssl", "mq+ssl"),
            )
        )
    if not targets:
        raise ConfigurationError("there is no address of a broker")
    hosts = tuple(host for target in targets for host in target.hosts)
    if any(target != replace(targets[0], hosts=target.hosts) for target in targets):
        raise ConfigurationError("the addresses of a list may differ in their hosts and ports only")
    return replace(targets[0], hosts=hosts)


_OPTIONS: Final[urls.Known] = {
    **urls.RECONNECTING,
    "clientid": ("client_id", urls.text),
    "shareclientid": ("share_client_id", urls.boolean),
    "service": ("service", urls.text),
    "direct": ("direct", urls.boolean),
    "pinginterval": ("keep_alive", urls.seconds),
    "flow": ("flow", urls.integer),
}
