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

from typing import Any

from sluicemq.model.errors import ConfigurationError


async def connect(url: str, **options: Any) -> Any:
    """Return a connected client of the URL's protocol.

    `options` are passed to the client's `open`. Raises as that; ConfigurationError for a URL of
    another protocol.
    """
    # imported only for the protocol in use, because the modules are slow to load
    match url.partition("://")[0].lower().split("+")[0]:
        case "phpmq":
            from sluicemq.clients.phpmq import PhpmqClient

            return await PhpmqClient.open(url, **options)
        case "msglite":
            from sluicemq.clients.msglite import MsgliteClient

            return await MsgliteClient.open(url, **options)
        case "vibemq":
            from sluicemq.clients.vibemq import VibeMQClient

            return await VibeMQClient.open(url, **options)
        case "jmq" | "mq" | "mqtcp" | "mqssl":
            from sluicemq.clients.jmq import JmqClient

            return await JmqClient.open(url, **options)
    raise ConfigurationError("the URL of a broker begins with jmq, msglite, phpmq or vibemq")
