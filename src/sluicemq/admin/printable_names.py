"""Names and texts of clients in a form that JSON can represent and users can read."""

from __future__ import annotations

import base64

from sluicemq.model.destination import encode_name


def printable(text: str) -> str:
    """Return the text if it is printable, else with escapes as in Python."""
    return text if text.isprintable() else ascii(text)[1:-1]


def base64_of(name: str) -> str | None:
    """Return the name's bytes in base64; None if `printable` returns the name unchanged."""
    if name.isprintable():
        return None
    try:
        raw = encode_name(name)
    except UnicodeEncodeError:  # a lone surrogate of a Java string
        return None
    return base64.b64encode(raw).decode()
