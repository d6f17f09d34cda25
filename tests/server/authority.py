"""Certificates for the tests, as the files an administrator has."""

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
    """An authority of its own, and a directory for what it issues."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = trustme.CA()
        self.ca_file = directory / "ca.pem"
        self.ca.cert_pem.write_to_path(str(self.ca_file))

    def issue(self, *names: str, common_name: str | None = None) -> trustme.LeafCert:
        """A certificate of the broker at `localhost` and 127.0.0.1, or of the given names."""
        return self.ca.issue_cert(*(names or ("localhost", "127.0.0.1")), common_name=common_name)

    def file(self, name: str, content: bytes) -> Path:
        """Write a file the way administration tools do: complete, then in its place."""
        new = self.directory / f"{name}.new"
        new.write_bytes(content)
        return new.rename(self.directory / name)

    def pem(self, leaf: trustme.LeafCert, name: str = "broker.pem") -> Path:
        """Key and chain in one file."""
        return self.file(name, leaf.private_key_and_cert_chain_pem.bytes())

    def chain(self, leaf: trustme.LeafCert, name: str = "chain.pem") -> Path:
        """The chain alone."""
        return self.file(
            name, b"".join(certificate.bytes() for certificate in leaf.cert_chain_pems)
        )

    def encrypted_key(self, leaf: trustme.LeafCert, name: str = "key.pem") -> Path:
        """The key, encrypted with PASSWORD."""
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
        """A file as editors leave it: with a line end."""
        return self.file("password", password + b"\n")

    def trust(self, client: trustme.LeafCert | None = None) -> ssl.SSLContext:
        """A client that trusts the authority, and has a certificate of its own or none."""
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if client is not None:
            client.configure_cert(context)
        return context


def key_of(leaf: trustme.LeafCert) -> PrivateKeyTypes:
    """The private key."""
    return load_pem_private_key(leaf.private_key_pem.bytes(), None)


def serial_of(leaf: trustme.LeafCert) -> int:
    """The number of a certificate."""
    return load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes()).serial_number
