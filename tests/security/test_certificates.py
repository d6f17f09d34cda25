"""Certificates, keys and passwords in files: accepted forms, errors and warnings."""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import AuthorityInformationAccessOID, NameOID

from sluicemq.model.errors import ConfigurationError
from sluicemq.security.certificates import peer_user, read_authorities, read_chain
from tests.server.authority import Authority, serial_of

NOW = datetime(2030, 6, 1, tzinfo=UTC)


def read_serial(certificate: Path, key: Path | None = None, password: Path | None = None) -> int:
    """Return the serial number of a certificate that OpenSSL accepts."""
    chain = read_chain(certificate, key, password)
    chain.install(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    return chain.own.serial_number


def error_of(certificate: Path, key: Path | None = None, password: Path | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_serial(certificate, key, password)
    return str(caught.value)


def test_all_file_formats_are_read(authority: Authority) -> None:
    leaf = authority.issue()
    serial, password = serial_of(leaf), authority.password_file()
    plain_key = authority.file("plain.key", leaf.private_key_pem.bytes())
    chain, encrypted = authority.chain(leaf), authority.encrypted_key(leaf)
    # in one file, in either order
    assert read_serial(authority.pem(leaf)) == serial
    combined = authority.file("both.pem", chain.read_bytes() + plain_key.read_bytes())
    assert read_serial(combined) == serial
    locked = authority.file("locked.pem", encrypted.read_bytes() + chain.read_bytes())
    assert read_serial(locked, None, password) == serial
    assert read_serial(chain, plain_key) == serial
    assert read_serial(chain, plain_key, password) == serial
    assert read_serial(chain, encrypted, password) == serial
    assert read_serial(authority.pkcs12(leaf), None, password) == serial
    assert read_serial(authority.pkcs12(leaf, "UPPER.PFX"), None, password) == serial


def test_chain_of_a_pkcs12_file_is_sorted(authority: Authority) -> None:
    intermediate = authority.ca.create_child_ca().create_child_ca()
    leaf = intermediate.issue_cert("localhost")
    shuffled = [leaf.cert_chain_pems[0], *reversed(leaf.cert_chain_pems[1:])]
    leaf = trustme.LeafCert(
        leaf.private_key_pem.bytes(),
        shuffled[0].bytes(),
        [certificate.bytes() for certificate in shuffled[1:]],
    )
    chain = read_chain(authority.pkcs12(leaf), None, authority.password_file())
    assert len(chain.certificates) == 3
    for subject, issuer in zip(chain.certificates, chain.certificates[1:], strict=False):
        assert subject.issuer == issuer.subject


def test_errors_have_distinct_messages(authority: Authority, tmp_path: Path) -> None:
    leaf, other = authority.issue(), authority.issue()
    chain, key = authority.chain(leaf), authority.encrypted_key(leaf)
    password = authority.password_file()
    wrong_password = authority.file("wrong", b"sesame")
    junk = authority.file("junk.pem", b"this is no certificate")
    assert f"{junk} has no certificate" in error_of(junk)
    assert f"{chain} has no private key" in error_of(chain)
    assert "is encrypted; set password_file" in error_of(chain, key)
    assert f"not decrypted by the password in {wrong_password}" in error_of(
        chain, key, wrong_password
    )
    assert "does not belong to the certificate" in error_of(chain, authority.pem(other))
    bundle = authority.pkcs12(leaf)
    assert "needs a password" in error_of(bundle)
    assert f"the password in {wrong_password} does not decrypt it" in error_of(
        bundle, None, wrong_password
    )
    assert "leave out key" in error_of(bundle, key, password)
    assert "cannot be read: No such file" in error_of(tmp_path / "none.pem")
    assert "is larger than" in error_of(authority.file("huge.pem", bytes(2 << 20)))
    damaged = chain.read_bytes().replace(b"\nMII", b"\nMIX")
    assert "has no certificate" in error_of(authority.file("broken.pem", damaged))
    with pytest.raises(ConfigurationError, match="has no certificate"):
        read_authorities(junk)


@pytest.mark.parametrize(
    ("part", "replacement", "message"),
    [
        ("a003020102", "a003020104", "has an unsupported certificate: 4 is not a valid"),
        ("2a8648ce3d0201", "2a8648ce3d0207", "has a certificate with an unsupported key"),
    ],
)
def test_unsupported_certificate_is_an_error(
    authority: Authority, part: str, replacement: str, message: str
) -> None:
    leaf = authority.issue()
    der = ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())
    changed = der.replace(bytes.fromhex(part), bytes.fromhex(replacement))
    content = leaf.private_key_pem.bytes() + ssl.DER_cert_to_PEM_cert(changed).encode()
    assert message in error_of(authority.file("unsupported.pem", content))


def test_certificate_with_duplicate_extension_has_no_other_warning(authority: Authority) -> None:
    extensions = [
        x509.UnrecognizedExtension(x509.ObjectIdentifier(f"1.2.3.{last}"), b"\x05\x00")
        for last in (4, 5)
    ]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    key = ec.generate_private_key(ec.SECP256R1())
    der = certificate_of(subject, *extensions, key=key).replace(
        bytes.fromhex("06032a0305"), bytes.fromhex("06032a0304")
    )
    content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem_file = authority.file("twice.pem", content + ssl.DER_cert_to_PEM_cert(der).encode())
    assert warnings(pem_file) == ["the certificate CN=broker expires on 2030-06-01"]


def test_exhausted_descriptors_are_an_error(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    pem_file = authority.pem(authority.issue())
    monkeypatch.setattr(os, "memfd_create", fail)
    assert "Too many open files" in error_of(pem_file)


def test_authority_before_the_broker_is_an_error(authority: Authority) -> None:
    leaf = authority.issue()
    content = authority.ca.cert_pem.bytes() + leaf.private_key_and_cert_chain_pem.bytes()
    assert "must be the first" in error_of(authority.file("order.pem", content))


def warnings(chain: Path, now: datetime = NOW) -> list[str]:
    return list(read_chain(chain, None, None).warnings(now))


@pytest.mark.parametrize(
    ("first_day", "last_day", "warning"),
    [
        (-10, 100, ""),
        (-10, 13, "expires on 2030-06-14"),
        (-10, -1, "expired on 2030-05-31; clients will refuse it"),
        (1, 100, "is valid only from 2030-06-02 00:00 UTC"),
    ],
)
def test_validity_period_is_checked(
    authority: Authority, first_day: int, last_day: int, warning: str
) -> None:
    leaf = authority.ca.issue_cert(
        "localhost",
        common_name="broker.example",
        not_before=NOW + timedelta(days=first_day),
        not_after=NOW + timedelta(days=last_day),
    )
    messages = warnings(authority.pem(leaf))
    assert bool(messages) == bool(warning)
    if warning:
        assert warning in messages[0]
        assert "CN=broker.example" in messages[0]


def test_unrelated_certificate_in_the_chain_is_a_warning(authority: Authority) -> None:
    now = datetime.now(UTC)
    leaf = authority.ca.create_child_ca().issue_cert("localhost")
    content = leaf.private_key_and_cert_chain_pem.bytes()
    assert warnings(authority.file("whole.pem", content), now) == []
    foreign_certificate = authority.ca.create_child_ca().issue_cert("x").cert_chain_pems[1].bytes()
    mixed = leaf.private_key_pem.bytes() + leaf.cert_chain_pems[0].bytes() + foreign_certificate
    (warning,) = warnings(authority.file("torn.pem", mixed), now)
    assert warning.startswith("certificate 2 of the chain is")


def open_files() -> Iterator[str]:
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue


def test_decrypted_key_is_not_left_in_files(authority: Authority) -> None:
    leaf = authority.issue()
    files = {authority.pkcs12(leaf), authority.password_file(), authority.ca_file}
    read_serial(authority.directory / "broker.p12", None, authority.directory / "password")
    assert set(authority.directory.iterdir()) == files
    assert not any("certificate" in name for name in open_files())


def test_missing_intermediate_certificate_is_a_warning(authority: Authority) -> None:
    """Certificates of public authorities contain the URL of the issuer's certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(authority.ca.cert_pem.bytes()).subject
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker.example")])
    location = x509.UniformResourceIdentifier("http://ca.example/issuer.der")
    access = x509.AccessDescription(AuthorityInformationAccessOID.CA_ISSUERS, location)
    certificate = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), 1)
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=90))
        .add_extension(x509.AuthorityInformationAccess([access]), critical=False)
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    )
    content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem_file = authority.file("alone.pem", content + certificate.public_bytes(Encoding.PEM))
    (warning,) = warnings(pem_file)
    assert "the chain is missing" in warning


# --- names of clients ------------------------------------------------------------------------


def certificate_of(
    subject: x509.Name,
    *extensions: x509.ExtensionType,
    key: ec.EllipticCurvePrivateKey | None = None,
) -> bytes:
    key = key or ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, NOW, NOW)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("cn", "alice"),
        ("san-dns", "one.example"),
        ("san-email", "a@example"),
        ("subject", "CN=alice,CN=people\\, all,OU=\\#1+UID=\\ x\\ ,O=Example"),
    ],
)
def test_certificate_names_a_user(kind: str, name: str) -> None:
    relatives = (
        [(NameOID.ORGANIZATION_NAME, "Example")],
        [(NameOID.ORGANIZATIONAL_UNIT_NAME, "#1"), (NameOID.USER_ID, " x ")],
        [(NameOID.COMMON_NAME, "people, all")],
        [(NameOID.COMMON_NAME, "alice")],
    )
    subject = x509.Name(
        x509.RelativeDistinguishedName(x509.NameAttribute(*attribute) for attribute in relative)
        for relative in relatives
    )
    alternatives = x509.SubjectAlternativeName(
        [
            x509.IPAddress(ip_address("::1")),
            x509.DNSName("one.example"),
            x509.RFC822Name("a@example"),
            x509.DNSName("two.example"),
        ]
    )
    assert peer_user(certificate_of(subject, alternatives), kind) == name


@pytest.mark.parametrize("kind", ["cn", "san-dns", "san-email", "subject"])
def test_certificate_may_name_no_user(kind: str) -> None:
    certificate = certificate_of(x509.Name([]))
    assert peer_user(certificate, kind) == ""
    assert peer_user(certificate[:-1], kind) == ""
    other_version = certificate.replace(b"\xa0\3\2\1\2", b"\xa0\3\2\1\4")
    assert other_version != certificate
    assert peer_user(other_version, kind) == ""
    extension = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"broken")
    assert peer_user(certificate_of(x509.Name([]), extension), kind) == ""
