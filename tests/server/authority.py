"""A certificate authority for tests, and its certificates as files."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate

PASSWORD = b"open sesame"


class Authority:
    """A certificate authority, and the directory of its files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = trustme.CA()
        self.ca_file = directory / "ca.pem"
        self.ca.cert_pem.write_to_path(str(self.ca_file))

    def issue(self, *names: str, common_name: str | None = None) -> trustme.LeafCert:
        """Issue a certificate for the given names, by default `localhost` and 127.0.0.1."""
        return self.ca.issue_cert(*(names or ("localhost", "127.0.0.1")), common_name=common_name)

    def file(self, name: str, content: bytes) -> Path:
        """Write a file atomically, as administration tools do, and return its path."""
        new = self.directory / f"{name}.new"
        new.write_bytes(content)
        return new.rename(self.directory / name)

    def pem(self, leaf: trustme.LeafCert, name: str = "broker.pem") -> Path:
        """Write key and certificate chain to one file."""
        return self.file(name, leaf.private_key_and_cert_chain_pem.bytes())

    def chain(self, leaf: trustme.LeafCert, name: str = "chain.pem") -> Path:
        """Write the certificate chain without the key."""
        return self.file(
            name, b"".join(certificate.bytes() for certificate in leaf.cert_chain_pems)
        )

    def encrypted_key(self, leaf: trustme.LeafCert, name: str = "key.pem") -> Path:
        """Write the key, encrypted with PASSWORD."""
        encoding = (Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSWORD))
        return self.file(name, key_of(leaf).private_bytes(*encoding))

    def pkcs12(self, leaf: trustme.LeafCert, name: str = "broker.p12") -> Path:
        """Write certificates and key to one PKCS #12 file, encrypted with PASSWORD."""
        certificate, *chain = [
            load_pem_x509_certificate(certificate_pem.bytes())
            for certificate_pem in leaf.cert_chain_pems
        ]
        key = key_of(leaf)
        assert isinstance(key, pkcs12.PKCS12PrivateKeyTypes)
        data = pkcs12.serialize_key_and_certificates(
            b"broker", key, certificate, chain, BestAvailableEncryption(PASSWORD)
        )
        return self.file(name, data)

    def password_file(self, password: bytes = PASSWORD) -> Path:
        """Write a password file that ends with a line feed, as editors write it."""
        return self.file("password", password + b"\n")

    def trust(self, client: trustme.LeafCert | None = None) -> ssl.SSLContext:
        """Return a client context that trusts the authority, with `client` as its certificate."""
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if client is not None:
            client.configure_cert(context)
        return context


def key_of(leaf: trustme.LeafCert) -> PrivateKeyTypes:
    """Return the private key of a certificate."""
    return load_pem_private_key(leaf.private_key_pem.bytes(), None)


def serial_of(leaf: trustme.LeafCert) -> int:
    """Return the serial number of a certificate."""
    return load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes()).serial_number
