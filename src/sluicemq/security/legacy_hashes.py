"""bcrypt hashes that were taken over from VibeMQ, and the work that keeps their users unknown.

    $2b$12$j8a3swuct5DkpugvSoWLb.mjnS.T/XmzrFJM4kIYZvevPkri6fOlK
     |  |  |                     hash, 31 characters
     |  |  salt, 22 characters
     |  cost: 2 ** cost rounds, 4 to 15
     version: 2a, 2b, 2x and 2y mean the same here, as they do to BCrypt.Net

BCrypt.Net hashes the first 72 bytes of the password in UTF-8 and a NUL behind it. NULs within the
password count. It refuses text that has no UTF-8 form, and so does this module.

A check of another hash, or for a user who does not exist, is 2 to 100 times as fast as one of a
bcrypt hash. The time of a failed login would tell who has one. Therefore each failed check is made
as long as the longest that the user database can cause, see `equalise`.
"""

from __future__ import annotations

import hmac
import re
from typing import Final

import bcrypt

MAX_PASSWORD: Final = 72
"""Bytes of a password that count."""
COSTS: Final = range(4, 16)
"""Costs that are verified. 15 takes 2 s of a processor, and each further step twice as long."""

# The last characters of salt and hash stand for 2 and 4 bits: others are not what bcrypt writes.
_FORM: Final = re.compile(
    r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{30}[.CGKOSWaeimquy26]\Z"
)
_SALT: Final = "u" * 21 + "e"
"""Salt of hashes that are computed only to spend time."""


def bcrypt_cost(stored: str) -> int:
    """Return the cost of a bcrypt hash; 0 if it is none that can be verified."""
    form = _FORM.match(stored)
    cost = int(form[1]) if form is not None else 0
    return cost if cost in COSTS else 0


def verify_bcrypt(stored: str, password: bytes) -> bool:
    """Return whether `stored`, which has a cost, was made of this password. Slow on purpose; from
    any thread: the interpreter lock is released."""
    made = bcrypt.hashpw(password[:MAX_PASSWORD], stored.encode())
    return hmac.compare_digest(made, stored.encode())


def equalise(stored: str, highest: int) -> None:
    """Spend the time by which bcrypt at cost `highest` takes longer than a check of `stored` did.

    2 ** c rounds, and once more those of the costs from c to `highest` - 1, are 2 ** `highest`.
    """
    cost = bcrypt_cost(stored)
    for more in range(cost, highest) if cost else (highest,):
        bcrypt.hashpw(b"", f"$2b${more:02}${_SALT}".encode())
