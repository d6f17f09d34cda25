"""Names as JMS can say them.

A JMS property is named by an identifier (JMS 1.1 section 3.8.1.1): a Java letter, `_` or `$`, then
the same or digits; and the names of destinations that Open MQ's Java client takes are identifiers
that may have dots. Other protocols name headers and queues as they like. What an identifier lacks
is written

    -  _HYPHEN_      .  _DOT_      anything else  _xHHHH_, 4 to 6 upper-case hex digits

so that `content-type` is `content_HYPHEN_type`. (The first two are what Apache Camel writes.) An
underscore that would read as the beginning of one of these is written `_x005F_`: every name has an
identifier, no two names have the same, and `from_identifier` finds the name again.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_USUAL: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*\Z")
_USUAL_DOTTED: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.]*\Z")
_LOOK_ALIKE: Final = re.compile(r"_(?=HYPHEN|DOT|x[0-9A-F]{4})")
_WRITTEN: Final = re.compile(r"_(?:(HYPHEN)|(DOT)|x([0-9A-F]{4,6}))_")
_START: Final = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Sc", "Pc"})
_PART: Final = _START | {"Nd", "Mn", "Mc"}
_WORDS: Final = {"-": "_HYPHEN_", ".": "_DOT_"}
_LAST_CHARACTER: Final = 0x10FFFF


def to_identifier(name: str, dotted: bool = False) -> str:
    """The name itself if it is an identifier already, as most are; `dotted`: where it does not
    begin with one, a dot stays a dot. "" stays ""."""
    alike = "_" in name and {match.start() for match in _LOOK_ALIKE.finditer(name)}
    if not alike and (_USUAL_DOTTED if dotted else _USUAL).match(name):
        return name
    said: list[str] = []
    for place, character in enumerate(name):
        kind = unicodedata.category(character)
        # Java looks at UTF-16, and half a pair is no letter to it
        fits = kind in (_PART if place else _START) and character <= "\uffff"
        if (fits and not (alike and place in alike)) or (dotted and place and character == "."):
            said.append(character)
        else:
            said.append(_WORDS.get(character) or f"_x{ord(character):04X}_")
    return "".join(said)


def from_identifier(identifier: str) -> str:
    """The name that `to_identifier` makes this of; the identifier itself if there is no other."""
    return _WRITTEN.sub(_read, identifier) if "_" in identifier else identifier


def _read(match: re.Match[str]) -> str:
    if match[1]:
        return "-"
    if match[2]:
        return "."
    code = int(match[3], 16)
    return chr(code) if code <= _LAST_CHARACTER else match[0]
