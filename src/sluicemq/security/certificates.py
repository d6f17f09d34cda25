"""Certificate chain and private key, loaded from PEM or PKCS#12 files, and the users that clients'
certificates name.

    PEM        the broker's certificate, then those of the authorities between it and the root; the
               key in the same file or in one of its own, plain or encrypted
    PKCS#12    .p12 or .pfx: everything in one file, usually encrypted

Python's `ssl` does not read PKCS#12, and reports neither the expiry of a certificate nor the reason
for which a key does not match; the library `cryptography` does. `ssl` loads keys only from files,
so `install` uses an anonymous file in memory: a decrypted key is never written to a disk.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
from cryptography.x509.oid import AuthorityInformationAccessOID, NameOID

from sluicemq.model.errors import ConfigurationError
from sluicemq.security.files import read_bounded

PKCS12_SUFFIXES: Final = (".p12", ".pfx")
WARNING_TIME: Final = timedelta(days=14)
"""Remaining lifetime below which a certificate causes a warning."""


class KeyedChain(NamedTuple):
    """Private key and certificate chain: the key's certificate, then its issuers in order."""

    key: PrivateKeyTypes
    certificates: tuple[x509.Certificate, ...]

    @property
    def own(self) -> x509.Certificate:
        """Certificate of the key."""
        return self.certificates[0]

    def install(self, context: ssl.SSLContext) -> None:
        """Load the chain into `context`. Raises ConfigurationError if OpenSSL rejects it."""
        content = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        for certificate in self.certificates:
            content += certificate.public_bytes(Encoding.PEM)
        try:
            with open(os.memfd_create("certificate"), "wb") as file:
                file.write(content)
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or str(error)
            raise ConfigurationError(f"OpenSSL rejects the certificate: {reason}") from None

    def warnings(self, now: datetime) -> Iterator[str]:
        """Yield the reasons for which clients may reject the certificate, one sentence each."""
        for certificate in self.certificates:
            name = certificate.subject.rfc4514_string() or "without a subject"
            start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            if now > end:
                yield f"the certificate {name} expired on {end:%Y-%m-%d}; clients will refuse it"
            elif now < start:
                yield f"the certificate {name} is valid only from {start:%Y-%m-%d %H:%M} UTC"
            elif end - now < WARNING_TIME:
                yield f"the certificate {name} expires on {end:%Y-%m-%d}"
        for index, (subject, issuer) in enumerate(
            zip(self.certificates, self.certificates[1:], strict=False), 1
        ):
            if subject.issuer != issuer.subject:
                yield (
                    f"certificate {index + 1} of the chain is {issuer.subject.rfc4514_string()}, "
                    f"but certificate {index} was issued by {subject.issuer.rfc4514_string()}"
                )
        if len(self.certificates) == 1 and _names_issuer_certificate(self.own):
            yield (
                f"the chain is missing: the certificate was issued by "
                f"{self.own.issuer.rfc4514_string()}, whose certificate should follow it unless "
                "clients have it"
            )


def read_chain(certificate: Path, key: Path | None, password_file: Path | None) -> KeyedChain:
    """Load the files. Raises ConfigurationError with the file and the reason.

    certificate    PEM, or PKCS#12 if its name ends in .p12 or .pfx
    key            PEM file with the key, if that is not in `certificate`
    password_file  its first line decrypts the key
    """
    password = _first_line(password_file) if password_file is not None else None
    if certificate.suffix.lower() in PKCS12_SUFFIXES:
        if key is not None:
            raise ConfigurationError(f"{certificate} is PKCS#12 and holds its key; leave out key")
        return _read_pkcs12(certificate, password, password_file)
    content = read_bounded(certificate)
    certificates = _read_certificates(
        certificate, content, " (or PKCS#12, if the name ends in .p12 or .pfx)"
    )
    key_file = key or certificate
    private_key = _read_key(
        key_file, read_bounded(key) if key else content, password, password_file
    )
    return _matched(KeyedChain(private_key, certificates), key_file, certificate)


def read_authorities(path: Path) -> str:
    """Return the trusted certificates as PEM text. Raises ConfigurationError if there are none."""
    certificates = _read_certificates(path, read_bounded(path))
    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)


def peer_user(certificate: bytes, kind: str) -> str:
    """Return the user named by a client's certificate, or "" if it has no name of this kind.

    certificate  verified certificate in DER
    kind         see Listener.client_user. Of several names, the most specific (last) common name
                 or the first alternative name counts, as in other brokers
    """
    try:
        parsed_certificate = x509.load_der_x509_certificate(certificate)
        if kind == "subject":
            return parsed_certificate.subject.rfc4514_string()
        if kind == "cn":
            attributes = parsed_certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            return str(attributes[-1].value) if attributes else ""
        alternatives = parsed_certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except (
        x509.DuplicateExtension,
        x509.ExtensionNotFound,
        x509.InvalidVersion,
        x509.UnsupportedGeneralNameType,
        ValueError,
    ):
        return ""
    entry_type: type[x509.DNSName | x509.RFC822Name] = (
        x509.DNSName if kind == "san-dns" else x509.RFC822Name
    )
    return next(iter(alternatives.get_values_for_type(entry_type)), "")


def _read_certificates(
    path: Path, content: bytes, other_form: str = ""
) -> tuple[x509.Certificate, ...]:
    """Return the certificates of a PEM file. `other_form` is added to the advice of an error."""
    try:
        return tuple(x509.load_pem_x509_certificates(content))
    except ValueError:
        raise ConfigurationError(f"{path} has no certificate; it must be PEM{other_form}") from None
    except x509.InvalidVersion as error:
        raise ConfigurationError(f"{path} has an unsupported certificate: {error}") from None


def _read_pkcs12(path: Path, password: bytes | None, password_file: Path | None) -> KeyedChain:
    try:
        bundle = load_pkcs12(read_bounded(path), password)
    except UnsupportedAlgorithm as error:
        raise ConfigurationError(f"{path} uses an unsupported encryption: {error}") from None
    except (TypeError, ValueError):
        reason = (
            f"the password in {password_file} does not decrypt it, or it is"
            if password_file is not None
            else "it needs a password (password_file), or is"
        )
        raise ConfigurationError(f"{path} cannot be read: {reason} no PKCS#12 file") from None
    if bundle.key is None or bundle.cert is None:
        missing = "private key" if bundle.key is None else "certificate of its key"
        raise ConfigurationError(f"{path} has no {missing}")
    additional_certificates = [entry.certificate for entry in bundle.additional_certs]
    return KeyedChain(bundle.key, _in_order(bundle.cert.certificate, additional_certificates))


def _in_order(
    certificate: x509.Certificate, candidates: list[x509.Certificate]
) -> tuple[x509.Certificate, ...]:
    """Return the chain in order, without unrelated certificates. PKCS#12 defines no order."""
    chain = [certificate]
    while True:
        last = chain[-1]
        issuer = next(
            (candidate for candidate in candidates if candidate.subject == last.issuer), None
        )
        if issuer is None or issuer in chain:
            return tuple(chain)
        chain.append(issuer)


def _read_key(
    path: Path, content: bytes, password: bytes | None, password_file: Path | None
) -> PrivateKeyTypes:
    if b"PRIVATE KEY-----" not in content:
        raise ConfigurationError(f"{path} has no private key; set key to the file that has it")
    try:
        try:
            return load_pem_private_key(content, password)
        except TypeError:
            if password is None:
                raise ConfigurationError(
                    f"the private key in {path} is encrypted; set password_file to the file with "
                    "its password"
                ) from None
            return load_pem_private_key(content, None)  # ignore the password
    except UnsupportedAlgorithm as error:
        raise ConfigurationError(f"{path}: unsupported private key: {error}") from None
    except ValueError:
        reason = (
            "is damaged"
            if password_file is None
            else f"is not decrypted by the password in {password_file}, or is damaged"
        )
        raise ConfigurationError(f"the private key in {path} {reason}") from None


def _matched(chain: KeyedChain, key_file: Path, certificate_file: Path) -> KeyedChain:
    public_key = chain.key.public_key()
    try:
        if public_key == chain.own.public_key():
            return chain
        is_later = any(public_key == later.public_key() for later in chain.certificates[1:])
    except (UnsupportedAlgorithm, ValueError) as error:
        raise ConfigurationError(
            f"{certificate_file} has a certificate with an unsupported key: {error}"
        ) from None
    if is_later:
        raise ConfigurationError(
            f"the certificate of the key in {key_file} must be the first in {certificate_file}, "
            "before those of the authorities"
        )
    raise ConfigurationError(
        f"the private key in {key_file} does not belong to the certificate in {certificate_file}"
    )


def _names_issuer_certificate(certificate: x509.Certificate) -> bool:
    """Return whether the certificate has the URL of its issuer's certificate."""
    try:
        access = certificate.extensions.get_extension_for_class(x509.AuthorityInformationAccess)
    except (x509.DuplicateExtension, x509.ExtensionNotFound, ValueError):
        return False
    return any(
        description.access_method == AuthorityInformationAccessOID.CA_ISSUERS
        for description in access.value
    )


def _first_line(path: Path) -> bytes:
    return read_bounded(path).split(b"\n", 1)[0].rstrip(b"\r")
