"""Queue of login checks: few at a time, fair between addresses, off the event loop.

Password checks are slow on purpose. argon2 and bcrypt release the interpreter lock, so that
messages are processed while a thread checks; everything else happens on the event loop's thread and
needs no lock.

    submit ── the queue is full ──────────> LoginBusy, to the newest check of the address that has
       │                                    the most waiting (the new one, if that is its own)
       └─ waits ── its connection ends ───> leaves the queue (`cancel`)
            └─ turn ── decide() knows ────> settled without a check
                 └─ thread ── conclude() ─> settled

Addresses take turns. Within an address checks keep their order, but of each pair of address and
user only one runs at a time. Waiting checks of the same address with the same key (the same user
and the same secret) share the outcome of the first of them, which counts once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any

import structlog

from sluicemq.model.errors import AccessError, AuthenticationFailed, LoginBusy
from sluicemq.security.passwords import verify

CallSoon = Callable[..., Any]
"""Schedules a call on the event loop's thread: `loop.call_soon_threadsafe`."""

Verdict = bool | AccessError
"""Result of a check of credentials, or the reason why they were not checked."""

Verify = Callable[[str, str, int], bool]
"""Checks a password in a thread: `passwords.verify`."""

log = structlog.get_logger("sluicemq.identity")


@dataclass(slots=True, eq=False)
class LoginCheck:
    """One attempt to log in that has to be checked.

    address   of the client, see `failures.address_of`
    user      the name in the failure table
    key       equal for the same user and secret
    stored    the hash, and
    password  what is compared with it
    highest   the highest cost of a bcrypt hash in the user database, see `passwords.verify`
    decide    called at its turn: return the verdict if no check is needed, else None
    conclude  called once with the result of the check, or of `decide`; return the final verdict
    answer    called once with the verdict
    """

    address: str
    user: str
    key: bytes
    _: KW_ONLY
    stored: str
    password: str
    highest: int
    decide: Callable[[], Verdict | None]
    conclude: Callable[[bool], bool]
    answer: Callable[[Verdict], None]


class LoginQueue:
    """Queue of one broker."""

    __slots__ = (
        "_call_soon",
        "_checks",
        "_most",
        "_pool",
        "_running",
        "_verify",
        "_waiting",
        "size",
    )

    def __init__(
        self,
        call_soon: CallSoon,
        *,
        checks: int,
        most: int,
        verify: Verify = verify,
    ) -> None:
        """Create an empty queue: up to `checks` run at a time, and up to `most` wait."""
        self._call_soon = call_soon
        self._checks = checks
        self._most = most
        self._verify = verify
        self._pool = ThreadPoolExecutor(checks, "password")
        self._running: set[tuple[str, str]] = set()
        """Address and user of the running checks."""
        self._waiting: OrderedDict[str, dict[LoginCheck, None]] = OrderedDict()
        """Waiting checks by address, the next address first; no entry is empty."""
        self.size = 0
        """Number of waiting checks."""

    def submit(self, check: LoginCheck) -> None:
        """Queue a check. Its `answer` may be called at once."""
        own = len(self._waiting.get(check.address, ()))
        if self.size >= self._most:
            heaviest = max(self._waiting, key=lambda address: len(self._waiting[address]))
            if len(self._waiting[heaviest]) <= own + 1:
                check.answer(LoginBusy())
                return
            displaced = next(reversed(self._waiting[heaviest]))
            self._remove(displaced)
            displaced.answer(LoginBusy())
        self._waiting.setdefault(check.address, {})[check] = None
        self.size += 1
        self._advance()

    def cancel(self, check: LoginCheck) -> None:
        """Remove a check from the queue because its connection closes. A running check is
        completed, and counts."""
        if check in self._waiting.get(check.address, ()):
            self._remove(check)
            check.answer(AuthenticationFailed("the connection ends before the login is checked"))

    def close(self) -> None:
        """Stop all checks without calling `answer`."""
        self._waiting.clear()
        self.size = 0
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _remove(self, check: LoginCheck) -> None:
        checks = self._waiting[check.address]
        del checks[check]
        self.size -= 1
        if not checks:
            del self._waiting[check.address]

    def _next(self) -> LoginCheck | None:
        """Remove the next check from the queue and return it."""
        for address, checks in self._waiting.items():
            for check in checks:
                if (address, check.user) not in self._running:
                    self._waiting.move_to_end(address)
                    self._remove(check)
                    return check
        return None

    def _advance(self) -> None:
        while len(self._running) < self._checks and (check := self._next()) is not None:
            verdict = check.decide()
            if verdict is None:
                self._running.add((check.address, check.user))
                self._pool.submit(self._run, check)
            elif isinstance(verdict, AccessError):
                check.answer(verdict)
            else:
                self._settle(check, verdict)

    def _run(self, check: LoginCheck) -> None:
        """Verify the password; runs in a thread."""
        try:
            right = self._verify(check.stored, check.password, check.highest)
        except Exception as error:
            # otherwise the slot would not be released until the restart
            log.error("a password cannot be checked", exc_info=error)
            right = False
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            self._call_soon(self._finish, check, right)

    def _finish(self, check: LoginCheck, right: bool) -> None:
        self._running.discard((check.address, check.user))
        try:
            self._settle(check, right)
        finally:
            self._advance()

    def _settle(self, check: LoginCheck, right: bool) -> None:
        verdict = check.conclude(right)
        same = [other for other in self._waiting.get(check.address, ()) if other.key == check.key]
        for other in same:
            self._remove(other)
        for each in (check, *same):
            each.answer(verdict)
