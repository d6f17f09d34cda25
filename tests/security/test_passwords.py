from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from argon2 import extract_parameters
from argon2.exceptions import VerifyMismatchError
from argon2.low_level import Type, verify_secret

from sluicemq.model.errors import AccessError, ConfigurationError
from sluicemq.security.files import read_secret_file
from sluicemq.security.passwords import (
    MAX_PASSWORD,
    TOKEN_PREFIX,
    UNMATCHABLE_HASH,
    digest_answer,
    digest_form,
    hash_password,
    page_digest_answer,
    verify,
)
from sluicemq.security.records import fingerprint, make_token


def test_only_the_password_matches_its_hash() -> None:
    password_hash = hash_password("sécret")
    assert password_hash.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert "cret" not in password_hash
    assert verify(password_hash, "sécret")
    assert not verify(password_hash, "secret")
    assert not verify(password_hash, "\udc80")
    assert not verify("no hash", "secret")
    assert hash_password("sécret") != password_hash


def test_no_password_matches_the_hash_of_unknown_users() -> None:
    # the duration equals that of a real hash only if the parameters are valid and the same
    with pytest.raises(VerifyMismatchError):
        verify_secret(UNMATCHABLE_HASH.encode(), b"", Type.ID)
    assert extract_parameters(UNMATCHABLE_HASH) == extract_parameters(hash_password("x"))


@pytest.mark.parametrize(
    "password", ["", "x" * (MAX_PASSWORD + 1), "é" * 513, "\udc80", "slq_tiger"]
)
def test_invalid_passwords_are_rejected(password: str) -> None:
    with pytest.raises(AccessError) as caught:
        hash_password(password)
    assert not password or password not in str(caught.value)


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("guest", "-2c3c4a34aa2c392f39edd112333c230d"),
        ("admin", "-2d5455c8583c24eec82c7a1e273ea02e"),
    ],
)
def test_digest_form_equals_that_of_the_original_broker(user: str, expected: str) -> None:
    assert digest_form(user, user) == expected


def test_digest_response_equals_that_of_the_original_client() -> None:
    digest = digest_form("guest", "guest")
    response = digest_answer(digest, "-34b997a1a2d58a1635f2b0596f8a217")
    assert response == "-4bd2e7a6ba3de828e8bd2740b6419a98"
    assert digest_answer(digest, "another") != response


def test_page_digest_answer_has_32_digits_inside_and_outside() -> None:
    def md5(text: str) -> str:
        return hashlib.md5(text.encode()).hexdigest()

    for user in ("guest", "anna", "bert", "carl"):  # some forms are negative
        digest = digest_form(user, "secret")
        expected = md5(f"{md5(f'{user}:secret')}:nonce")
        assert page_digest_answer(digest, "nonce") == expected
        assert len(expected) == 32


def test_secret_is_the_first_line_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("first line \r\nsecond\n")
    assert read_secret_file(file) == "first line "
    file.write_text("\nsecond\n")
    with pytest.raises(ConfigurationError, match="empty"):
        read_secret_file(file)
    file.write_bytes(b"\xff\n")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        read_secret_file(file)
    with pytest.raises(ConfigurationError, match="No such file"):
        read_secret_file(tmp_path / "none")


def test_tokens_are_random_and_stored_as_fingerprints() -> None:
    token, record = make_token("ci", 5, 9)
    other, _ = make_token("ci", 5)
    assert token != other
    assert token.startswith(TOKEN_PREFIX)
    assert len(token) >= 43
    assert record.sha256 == fingerprint(token)
    assert (record.label, record.created, record.expires) == ("ci", 5, 9)
    assert record.id not in token
