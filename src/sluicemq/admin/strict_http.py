"""Stricter parsing of HTTP/1.1 than h11's: ambiguous requests are rejected.

If a proxy and the broker disagree on where a request ends, a client can make them disagree on the
requests and their senders (request smuggling). h11 accepts some ambiguous input. Rejected here:

- a line of the head or of the trailer that ends in LF without CR
- a header line that continues the one before it (obs-fold)
- Content-Length together with Transfer-Encoding, twice, or with a list
- Transfer-Encoding in HTTP/1.0
- a chunk size followed by anything but an extension without control characters

h11 itself rejects transfer codings other than `chunked`, blanks before the colon of a header, and
control characters in headers. See RFC 9112 sections 2.2, 5.2, 6.1, 6.3 and 7.1.
"""

from __future__ import annotations

import re
from typing import Final

from h11 import LocalProtocolError
from h11._receivebuffer import ReceiveBuffer

_CHUNK_LINE: Final = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*(;[\t\x20-\x7e\x80-\xff]*)?\r\n")


class StrictReceiveBuffer(ReceiveBuffer):
    """Receive buffer of a server's h11.Connection.

    Raises LocalProtocolError, which h11 turns into RemoteProtocolError.
    """

    def __init__(self) -> None:
        super().__init__()
        self._checked = 0
        """Bytes of the incomplete head up to the end of its last complete line."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a head or trailer without their ends, None while it is incomplete."""
        data = self._data
        while (end := data.find(b"\n", self._checked)) >= 0:
            if end == 0 or data[end - 1] != 0x0D:
                raise LocalProtocolError("a line does not end in CR LF")
            if end - 1 == self._checked:  # a blank line: the end of the head
                break
            if data[self._checked] in b" \t":
                raise LocalProtocolError("a header line is folded")
            self._checked = end + 1
        lines = super().maybe_extract_lines()
        if lines is not None:
            self._checked = 0
            _check_framing(lines)
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """Return the line with a chunk's size, None while it is incomplete."""
        line = super().maybe_extract_next_line()
        if line is not None and _CHUNK_LINE.fullmatch(line) is None:
            raise LocalProtocolError("a chunk's size is not a hexadecimal number")
        return line


def _check_framing(lines: list[bytearray]) -> None:
    """Reject a head that does not determine the end of its body."""
    lengths = codings = 0
    for line in lines:
        name, _, value = line.partition(b":")
        name = name.lower()
        if name == b"content-length":
            lengths += 1
            if not value.strip(b" \t").isdigit():
                raise LocalProtocolError("the Content-Length is not a number")
        elif name == b"transfer-encoding":
            codings += 1
    if lengths + codings > 1:
        raise LocalProtocolError("there is more than one Content-Length or Transfer-Encoding")
    if codings and not lines[0].endswith(b"HTTP/1.1"):
        raise LocalProtocolError("only HTTP/1.1 has Transfer-Encoding")
