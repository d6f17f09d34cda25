"""Credentials in the bodies of AUTHENTICATE (section 5.2).

    basic   user:str  base64 of the password:str
    digest  user:str  H(H(user ":" password) ":" nonce):str

H is the MD5 as a signed hexadecimal number without leading zeros, so it may begin with `-`. The
published protocol page has 32 hexadecimal digits instead; a broker accepts both forms.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from struct import Struct
from typing import Final

from sluicemq.model.errors import ConfigurationError, ProtocolError
from sluicemq.protocols.java import decode_utf, encode_utf

GUEST: Final = "guest"
"""Default user name and password, as in Open MQ's clients."""
BASIC: Final = "basic"
DIGEST: Final = "digest"
PAGE_SPELLINGS: Final = {"jmqbasic": BASIC, "jmqdigest": DIGEST}
"""JMQAuthType values of the published protocol page. AUTHENTICATE may use either spelling; the
broker sends the short names, because Open MQ's clients know no others."""

_length: Final = Struct(">H")
_LONGEST: Final = 65_535


def basic(user: str, password: str) -> bytes:
    """Encode a `basic` login, with a readable password. Raises ConfigurationError if too long."""
    return _text(user) + _text(base64.b64encode(password.encode()).decode())


def digest(user: str, password: str, nonce: bytes) -> bytes:
    """Encode a `digest` login, valid for this nonce. Raises ConfigurationError if too long."""
    form = _md5(f"{user}:{password}".encode())
    return _text(user) + _text(_md5(f"{form}:".encode() + nonce))


def _md5(data: bytes) -> str:
    digest = hashlib.md5(data, usedforsecurity=False).digest()
    return f"{int.from_bytes(digest, 'big', signed=True):x}"


def _text(text: str) -> bytes:
    raw = encode_utf(text)
    if len(raw) > _LONGEST:
        raise ConfigurationError("a user name or a password is too long")
    return _length.pack(len(raw)) + raw


# --- the broker's side -------------------------------------------------------------------------


def read_body(body: bytes) -> tuple[str, str]:
    """Return the user name and the credential of a body; ignore trailing bytes.

    Raises ProtocolError.
    """
    user, position = _read(body, 0)
    return user, _read(body, position)[0]


def password(text: str) -> str:
    """Decode the password of a `basic` login. Raises ProtocolError.

    Line breaks are ignored, because C clients insert them.
    """
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode()
    except (binascii.Error, ValueError):
        raise ProtocolError("this is no password in base64") from None


def _read(body: bytes, position: int) -> tuple[str, int]:
    start = position + _length.size
    end = start + int.from_bytes(body[position:start], "big")
    if start > len(body) or end > len(body):
        raise ProtocolError("a string is not complete")
    return decode_utf(body[start:end]), end
