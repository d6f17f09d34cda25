"""Which protocol speaks, told by its first bytes.

    first byte                      protocol
    'H' then a digit                PHPMQ: message header "H01…"
    > < ? .  blank, tab, CR, LF     msglite: a sigil, or blanks before one
    1B                              JMQ: packet magic 1B FF E3 C2
    '1'-'9'                         JMQ's port mapper: the client sends its version in digits
    00                              VibeMQ: big-endian length of a frame below 16 MiB

All are clients that speak first, so nothing is sent before the protocol is known.
"""

from __future__ import annotations

MSGLITE_FIRST = b"><?. \t\r\n"

PORT_MAPPER = "jmq-portmapper"
"""What those who ask JMQ's port mapper speak."""


def recognise(first: bytes) -> str | None:
    """The protocol's name; "" if it is none of ours; None if more bytes are needed."""
    if not first:
        return None
    byte = first[:1]
    if byte == b"H":
        if len(first) < 2:
            return None
        return "phpmq" if first[1:2].isdigit() else ""
    if byte in MSGLITE_FIRST:
        return "msglite"
    if byte == b"\x1b":
        return "jmq"
    if byte in b"123456789":
        return PORT_MAPPER
    if byte == b"\0":
        return "vibemq"
    return ""


def recognise_jmq(first: bytes) -> str | None:
    """Only what a listener for JMS clients serves: packets, and questions to the port mapper, which
    may be an empty line."""
    if not first:
        return None
    if first[:1] == b"\x1b":
        return "jmq"
    return PORT_MAPPER if first[:1] in b"0123456789\r\n" else ""
