"""Connections of all protocols by URL.

    async with await connect("phpmq://127.0.0.1:9100") as client:
        await client.send("orders", b"one pizza")

    phpmq[+tls]://host[:port][?option=value&…]       phpmq+unix:///path[?…]       PhpmqClient
    msglite[+tls]://host[:port][?…]                  msglite+unix:///path[?…]     MsgliteClient
    vibemq[+tls]://[user:password@]host[:port][?…]   vibemq+unix:///path[?…]      VibeMQClient
    jmq[+tls]://[user:password@]host[:port][?…]      jmq+unix:///path[?…]         JmqClient
    mq://host[:port]/service                         as Open MQ's clients         JmqClient

The client's `open` lists the options. All clients have the options `timeout` (seconds) and, with
TLS, `ca` (a file of trusted certificates), `insecure` (do not verify the broker's certificate),
`certificate`, `key` and `password_file` (the client's own certificate, PEM or PKCS#12).
`blocking.connect` returns a blocking client for the same URLs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from sluicemq.model.errors import ConfigurationError

_CLIENTS: Final = {
    "phpmq": ("phpmq", "PhpmqClient"),
    "msglite": ("msglite", "MsgliteClient"),
    "vibemq": ("vibemq", "VibeMQClient"),
    "jmq": ("jmq", "JmqClient"),
    "mq": ("jmq", "JmqClient"),
    "mqtcp": ("jmq", "JmqClient"),
    "mqssl": ("jmq", "JmqClient"),
}
"""Module and client by the scheme of a URL. Modules are imported on first use: they are slow to
load."""


async def connect(url: str, **options: Any) -> Any:
    """Return a connected client of the URL's protocol.

    `options` are passed to the client's `open`. Raises as that; ConfigurationError for a URL of
    another protocol.
    """
    scheme = url.partition("://")[0].lower().split("+")[0]
    if scheme not in _CLIENTS:
        raise ConfigurationError("the URL of a broker begins with jmq, msglite, phpmq or vibemq")
    module, name = _CLIENTS[scheme]
    client = getattr(import_module(f"sluicemq.clients.{module}"), name)
    return await client.open(url, **options)
