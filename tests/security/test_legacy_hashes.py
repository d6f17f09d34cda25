"""bcrypt hashes are verified as BCrypt.Net does, and failed checks do not reveal who has one."""

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
SETTING = "$2b$04$abcdefghijklmnopqrstuu"
CUT = SETTING + "B6OyPRV.a4jQqxN4taK8jbgMieZdxYe"
"""Hash of `a` and 36 times é, 73 bytes, by the system's crypt(3)."""
SIGNS = "5Lsw3NhahtP.Dmt.0s0R7.9cXhv2e.."
"""The hash of `pässword €` with the salt of SETTING, by the same."""


def bcrypt_of(password: str, cost: int = 4) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


@pytest.mark.parametrize(
    ("stored", "password", "right"),
    [
        (VIBEMQ, "one-secret", True),
        (VIBEMQ, "one-secreT", False),
        (VIBEMQ, "", False),
        # published with the first implementations of bcrypt
        ("$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW", "U*U", True),
        (CUT, "a" + "é" * 36, True),
        # only 72 bytes count, and they end within a character
        (CUT, "a" + "é" * 35 + "è", True),
        (CUT, "a" + "é" * 35 + "è" + "x" * 2000, True),
        (CUT, "a" + "é" * 34 + "è" + "é", False),
        (SETTING + SIGNS, "pässword €", True),
        # a version that marks another mistake of another program means nothing to BCrypt.Net
        ("$2a" + SETTING[3:] + SIGNS, "pässword €", True),
        ("$2x" + SETTING[3:] + SIGNS, "pässword €", True),
        ("$2y" + SETTING[3:] + SIGNS, "pässword €", True),
        # text without a form in UTF-8
        (SETTING + SIGNS, "\udc80", False),
    ],
)
def test_bcrypt_is_verified(stored: str, password: str, right: bool) -> None:
    assert verify(stored, password) is right


def test_a_nul_counts_and_does_not_end_the_password() -> None:
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
        (VIBEMQ[:-1] + "L", 0),  # bits that no hash has
        (VIBEMQ.replace("Lb.", "Lb/"), 0),  # and no salt
        (UNMATCHABLE_HASH, 0),
        ("", 0),
    ],
)
def test_the_cost_of_what_can_be_verified(stored: str, cost: int) -> None:
    assert bcrypt_cost(stored) == cost


def test_the_scheme_of_a_hash() -> None:
    assert [scheme_of(password_hash) for password_hash in (VIBEMQ, hash_password("x"), "")] == [
        "bcrypt",
        "argon2id",
        "",
    ]


@pytest.mark.parametrize("password", ["wrong", "x" * 3000, "\udc80", "a\0"])
def test_a_failed_check_is_the_same_work_for_everybody(
    monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    """The rounds of bcrypt and the checks of argon2 are counted, not timed."""
    rounds = []
    argon2 = []
    original = bcrypt.hashpw

    def hashpw(secret: bytes, salt: bytes) -> bytes:
        rounds.append(1 << int(salt[4:6]))
        return original(secret, b"$2b$04$" + salt[7:])  # as slow as need be for a test

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
    assert rounds == [], "a broker without bcrypt hashes has nothing to hide"


def test_a_right_password_is_not_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    password_hash = hash_password("right")
    monkeypatch.setattr(passwords.bcrypt, "hashpw", lambda *a: calls.append(a))
    assert verify(password_hash, "right", 12)
    assert calls == []


def test_the_interpreter_runs_on_during_a_check() -> None:
    """A check of 0.25 s that kept the lock would stop all messages for that time."""
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
    # with the lock kept, the loop would be entered only before and after the check
    assert iterations > 10_000
