"""JSON in the dialect of .NET's configuration: with comments, and commas before a closing
bracket."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from sluicemq.migrate.source_files import Damage

_STRING_OR_COMMENT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_COMMA: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
_NOT_A_LINE_END: Final = re.compile(rb"[^\n]")
_OFFSET: Final = re.compile(r"\(byte (\d+)\)")
_BOM: Final = b"\xef\xbb\xbf"


def decode(content: bytes, where: str) -> Any:
    """Return the value. Raises Damage with the line."""
    content = content.removeprefix(_BOM)
    # comments are replaced by blanks so that errors keep their position
    plain = _STRING_OR_COMMENT.sub(_without_comment, content)
    plain = _STRING_OR_COMMA.sub(lambda match: b" " if match[0] == b"," else match[0], plain)
    try:
        return msgspec.json.decode(plain)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        found = _OFFSET.search(str(fault))
        line = content.count(b"\n", 0, int(found[1])) + 1 if found else 1
        raise Damage(f"{where}, line {line}: not JSON: {fault}") from None


def _without_comment(match: re.Match[bytes]) -> bytes:
    text: bytes = match[0]
    return text if text.startswith(b'"') else _NOT_A_LINE_END.sub(b" ", text)
