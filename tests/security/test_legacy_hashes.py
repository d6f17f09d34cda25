"""bcrypt hashes are verified like in BCrypt.Net, and failed checks do not reveal their users."""

from __future__ import annotations

import threading
from typing import Any

import bcrypt
import pytest

from sluicemq.security import passwords
from sluicemq.security.passwords import (
    UNMATCHABLE_HASH,
    bcrypt_cost,
    hash_password,
    scheme_of,
    verify,
)

VIBEMQ = "$2b$12$j8a3swuct5DkpugvSoWLb.mjnS.T/XmzrFJM4kIYZvevPkri6fOlK"
"""Written by VibeMQ 1.8 for the password `one-secret`."""
SALT = "$2b$04$abcdefghijklmnopqrstuu"
MULTIBYTE_HASH = SALT + "B6OyPRV.a4jQqxN4taK8jbgMieZdxYe"
"""Hash of `a` and 36 times é, 73 bytes, by the system's crypt(3)."""
NON_ASCII_HASH = "5Lsw3NhahtP.Dmt.0s0R7.9cXhv2e.."
"""The hash of `pässword €` with SALT, by the same function."""


def bcrypt_of(password: str, cost: int = 4) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


@pytest.mark.parametrize(
    ("stored", "password", "matches"),
    [
        (VIBEMQ, "one-secret", True),
        (VIBEMQ, "one-secreT", False),
        (VIBEMQ, "", False),
        # published with the first implementations of bcrypt
        ("$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW", "U*U", True),
        (MULTIBYTE_HASH, "a" + "é" * 36, True),
        # only the first 72 bytes count, which end within a character
        (MULTIBYTE_HASH, "a" + "é" * 35 + "è", True),
        (MULTIBYTE_HASH, "a" + "é" * 35 + "è" + "x" * 2000, True),
        (MULTIBYTE_HASH, "a" + "é" * 34 + "è" + "é", False),
        (SALT + NON_ASCII_HASH, "pässword €", True),
        # BCrypt.Net ignores the versions of other implementations
        ("$2a" + SALT[3:] + NON_ASCII_HASH, "pässword €", True),
        ("$2x" + SALT[3:] + NON_ASCII_HASH, "pässword €", True),
        ("$2y" + SALT[3:] + NON_ASCII_HASH, "pässword €", True),
        # text that is not valid UTF-8
        (SALT + NON_ASCII_HASH, "\udc80", False),
    ],
)
def test_bcrypt_is_verified(stored: str, password: str, matches: bool) -> None:
    assert verify(stored, password) is matches


def test_nul_does_not_end_the_password() -> None:
    password_hash = bcrypt_of("a\0b")
    assert verify(password_hash, "a\0b")
    assert not verify(password_hash, "a\0c")
    assert not verify(password_hash, "a")


@pytest.mark.parametrize(
    ("stored", "cost"),
    [
        (VIBEMQ, 12),
        (VIBEMQ.replace("$12$", "$04$"), 4),
        (VIBEMQ.replace("$12$", "$15$"), 15),
        (VIBEMQ.replace("$12$", "$16$"), 0),
        (VIBEMQ.replace("$12$", "$31$"), 0),
        (VIBEMQ.replace("$12$", "$03$"), 0),
        (VIBEMQ.replace("$2b$", "$2$"), 0),
        (VIBEMQ.replace("$2b$", "$2c$"), 0),
        (VIBEMQ[:-1], 0),
        (VIBEMQ + "K", 0),
        (VIBEMQ + "\n", 0),
        (VIBEMQ[:-1] + "L", 0),  # unused bits of the hash are set
        (VIBEMQ.replace("Lb.", "Lb/"), 0),  # unused bits of the salt are set
        (UNMATCHABLE_HASH, 0),
        ("", 0),
    ],
)
def test_cost_of_hashes_that_can_be_verified(stored: str, cost: int) -> None:
    assert bcrypt_cost(stored) == cost


def test_scheme_of_a_hash() -> None:
    assert [scheme_of(password_hash) for password_hash in (VIBEMQ, hash_password("x"), "")] == [
        "bcrypt",
        "argon2id",
        "",
    ]


@pytest.mark.parametrize("password", ["wrong", "x" * 3000, "\udc80", "a\0"])
def test_failed_check_has_the_same_cost_for_all_users(
    monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    """Counts rounds of bcrypt and checks of argon2 instead of measuring time."""
    rounds = []
    argon2 = []
    original = bcrypt.hashpw

    def hashpw(secret: bytes, salt: bytes) -> bytes:
        rounds.append(1 << int(salt[4:6]))
        return original(secret, b"$2b$04$" + salt[7:])  # the lowest cost, to keep the test fast

    class Hasher:
        def verify(self, stored: str, secret: bytes) -> bool:
            argon2.append(stored)
            raise passwords.VerificationError

    monkeypatch.setattr(passwords.bcrypt, "hashpw", hashpw)
    monkeypatch.setattr(passwords, "_hasher", Hasher())
    costs = [VIBEMQ.replace("$12$", f"${cost:02}$") for cost in (4, 9, 11, 12)]
    for password_hash in (UNMATCHABLE_HASH, "$argon2id$another", *costs):
        rounds.clear()
        argon2.clear()
        assert not verify(password_hash, password, 12)
        assert (sum(rounds), len(argon2)) == (1 << 12, 1)
    rounds.clear()
    assert not verify(UNMATCHABLE_HASH, password)
    assert rounds == [], "bcrypt runs although no user has a bcrypt hash"


def test_correct_argon2_password_takes_no_bcrypt_check(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    password_hash = hash_password("right")
    monkeypatch.setattr(passwords.bcrypt, "hashpw", lambda *a: calls.append(a))
    assert verify(password_hash, "right", 12)
    assert calls == []


def test_check_releases_the_interpreter_lock() -> None:
    """A check of 0.25 s that held the interpreter lock would block all messages."""
    iterations = 0
    done = threading.Event()
    password_hash = VIBEMQ

    def check() -> None:
        verify(password_hash, "one-secret")
        done.set()

    thread = threading.Thread(target=check)
    thread.start()
    while not done.is_set():
        iterations += 1
    thread.join()
    # if the lock were held, the loop would run only before and after the check
    assert iterations > 10_000
