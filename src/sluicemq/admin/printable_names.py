"""Names and other texts of clients, as JSON can hold them and people can read them."""

from __future__ import annotations

import base64

from sluicemq.model.destination import encode_name


def printable(text: str) -> str:
    """The text itself if it can be printed; else with escapes, as in Python."""
    return text if text.isprintable() else ascii(text)[1:-1]


def base64_of(name: str) -> str | None:
    """A name's bytes in base64, if `printable` is not the name itself; else None."""
    if name.isprintable():
        return None
    try:
        raw = encode_name(name)
    except UnicodeEncodeError:  # half a character, as Java has them: no bytes stand for it
        return None
    return base64.b64encode(raw).decode()
