"""Identity of a peer: its address, and the user named by its certificate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

_ATTRIBUTES: Final = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "domainComponent": "DC",
    "userId": "UID",
    "streetAddress": "STREET",
}
"""Short names of RFC 4514, section 3, by OpenSSL's name."""
_SPECIAL: Final = frozenset('\\",+;<>')


def name_of(address: object) -> str:
    """Return the peer's address for logs; `unix` if it has none."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unix"


def peer_user(certificate: Mapping[str, Any], kind: str) -> str:
    """Return the user named by a client's certificate, or "" if it has no name of this kind.

    certificate  verified certificate, as returned by SSLSocket.getpeercert
    kind         see Listener.client_user. Of several names, the most specific (last) common name
                 or the first alternative name counts, as in other brokers
    """
    if kind == "subject":
        return _subject(certificate)
    if kind == "cn":
        names = [value for name, value in _attributes(certificate) if name == "commonName"]
        return names[-1] if names else ""
    entry_type = {"san-dns": "DNS", "san-email": "email"}[kind]
    for name, value in certificate.get("subjectAltName", ()):
        if name == entry_type:
            return cast(str, value)
    return ""


def _attributes(certificate: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for relative in certificate.get("subject", ()):
        yield from relative


def _subject(certificate: Mapping[str, Any]) -> str:
    """Return the subject as a string of RFC 4514: the most specific name first."""
    relatives = [
        "+".join(f"{_ATTRIBUTES.get(name, name)}={_escaped(value)}" for name, value in relative)
        for relative in certificate.get("subject", ())
    ]
    return ",".join(reversed(relatives))


def _escaped(value: str) -> str:
    """Return the value escaped according to RFC 4514, section 2.4."""
    escaped = "".join(f"\\{char}" if char in _SPECIAL else char for char in value)
    if escaped[:1] in ("#", " "):
        escaped = f"\\{escaped}"
    if escaped.endswith(" ") and len(value) > 1:
        escaped = f"{escaped[:-1]}\\ "
    return escaped.replace("\0", "\\00")
