"""Settings of VibeMQ that become options of the listener and need a conversion.

| VibeMQ                            | listener                                               |
|-----------------------------------|--------------------------------------------------------|
| SupportedCompressions             | compression = false if there is none of ours           |
| QueueDefaults.DefaultDeliveryMode | default_mode                                           |
| QueueDefaults.MaxQueueSize        | default_max_queue_size                                 |
| Tls.SslProtocols                  | tls_min_version                                        |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from sluicemq.protocols.vibemq.queues import Mode, spelled
from sluicemq.protocols.vibemq.wire import NO_LIMIT

_ALGORITHMS: Final = {"gzip": "gzip", "1": "gzip", "brotli": "Brotli", "2": "Brotli"}
"""Supported compressions, by name and number of VibeMQ."""
_TLS_VERSIONS: Final = {"tls12": "1.2", "3072": "1.2", "tls13": "1.3", "12288": "1.3"}
_SYSTEMS_CHOICE: Final = frozenset({"none", "0", ""})
_MODES: Final = {
    spelling: mode for mode in Mode for spelling in (spelled(mode).lower(), str(mode.value))
}


class ConvertedOptions(NamedTuple):
    """Options of the listener, and the part of the setting that they do not cover; "" = none."""

    options: dict[str, str | int | bool]
    left: str = ""


def compression(values: list[str]) -> ConvertedOptions:
    """Convert SupportedCompressions."""
    supported = {_ALGORITHMS.get(value.lower()) for value in values} - {None}
    if not supported:
        return ConvertedOptions({"compression": False})
    if len(supported) == 1:
        return ConvertedOptions(
            {},
            "gzip and Brotli are both offered, and the list of each client decides; "
            "compression = false offers none",
        )
    return ConvertedOptions({})


def delivery_mode(values: list[str]) -> ConvertedOptions:
    """Convert QueueDefaults.DefaultDeliveryMode."""
    mode = _MODES.get(values[0].lower()) if values else None
    if mode is None:
        return ConvertedOptions({}, "there is no such delivery mode")
    return ConvertedOptions({"default_mode": spelled(mode)})


def queue_size(values: list[str]) -> ConvertedOptions:
    """Convert QueueDefaults.MaxQueueSize: 0 and less are 1, as there."""
    try:
        size = int(values[0])
    except (ValueError, IndexError):
        return ConvertedOptions({}, "this is no number")
    return ConvertedOptions({"default_max_queue_size": min(max(1, size), NO_LIMIT)})


def tls_versions(values: list[str]) -> ConvertedOptions:
    """Convert Tls.SslProtocols: names separated by commas, or one number."""
    names = [name.strip().lower() for value in values for name in value.split(",")]
    known = sorted(_TLS_VERSIONS[name] for name in names if name in _TLS_VERSIONS)
    others = [name for name in names if name not in _TLS_VERSIONS and name not in _SYSTEMS_CHOICE]
    return ConvertedOptions(
        {"tls_min_version": known[0]} if known else {},
        f"TLS 1.2 and 1.3 are offered here, not {', '.join(others)}" if others else "",
    )


CONVERSIONS: Final[dict[str, Callable[[list[str]], ConvertedOptions]]] = {
    "supportedcompressions": compression,
    "queuedefaults.defaultdeliverymode": delivery_mode,
    "queuedefaults.maxqueuesize": queue_size,
}
TLS_CONVERSIONS: Final[dict[str, Callable[[list[str]], ConvertedOptions]]] = {
    "tls.sslprotocols": tls_versions,
}
"""Options of listeners with TLS only."""
