"""Protocol detection by the first bytes of a connection.

    first bytes                     protocol
    'H' then a digit                PHPMQ: message header "H01…"
    a method and a blank            HTTP: "GET /…"
    > < ? .  blank, tab, CR, LF     msglite: a sigil, or blanks before one
    1B                              JMQ: packet magic 1B FF E3 C2
    '1'-'9'                         JMQ's port mapper: the client sends its version in digits
    00                              VibeMQ: big-endian length of a frame below 16 MiB
    two other characters of text    msglite too, which answers unknown commands with an error

In all of them the client speaks first, so nothing is sent before the protocol is known.
"""

from __future__ import annotations

from typing import Final

MSGLITE_FIRST = b"><?. \t\r\n"

PORT_MAPPER = "jmq-portmapper"
"""Protocol name of JMQ's port mapper."""

HTTP_METHODS: Final = (
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"PATCH ",
    b"DELETE ",
    b"OPTIONS ",
    b"CONNECT ",
    b"TRACE ",
)
_TEXT: Final = frozenset(range(0x20, 0x7F)) | frozenset(b"\t\r\n")


def detect_protocol(first: bytes) -> str | None:
    """Return the protocol's name; "" if it is unknown; None if more bytes are needed."""
    if not first:
        return None
    byte = first[:1]
    if byte == b"H" and (len(first) < 2 or first[1:2].isdigit()):
        return "phpmq" if len(first) > 1 else None
    if byte in MSGLITE_FIRST:
        return "msglite"
    if byte == b"\x1b":
        return "jmq"
    if byte in b"123456789":
        return PORT_MAPPER
    if byte == b"\0":
        return "vibemq"
    for method in HTTP_METHODS:
        if first.startswith(method):
            return "http"
        if method.startswith(first):
            return None
    if byte == b"0" or first[0] not in _TEXT:
        return ""
    if len(first) < 2:
        return None
    return "msglite" if first[1] in _TEXT else ""


def detect_jmq_protocol(first: bytes) -> str | None:
    """Return the protocol on a JMQ listener: packets, or requests to the port mapper.

    A request to the port mapper may be an empty line.
    """
    if not first:
        return None
    if first[:1] == b"\x1b":
        return "jmq"
    return PORT_MAPPER if first[:1] in b"0123456789\r\n" else ""
