"""Replacement of bcrypt hashes by argon2 ones after their users' first successful login.

    login ──> offer() ── waits ──> thread: hash, change the file ──> loop: next ones
                          │                     └ cannot be written ──> paused
                          └ paused, or too many wait: at a later login

The password stays the same, so nothing may end or fail because its hash changes: a session that was
begun with the old hash, a parallel login that is being checked against it, a remembered proof.
They compare the hash that `mark` returns: of a hash that this process has written in place of
another one, that other one.

A user file that cannot be written is left alone until it changes or the broker restarts; bcrypt
hashes go on being verified.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

import structlog

from sluicemq.model.errors import AccessError
from sluicemq.security.changes import MOST_USERS, replace_hashes
from sluicemq.security.login_queue import CallSoon
from sluicemq.security.passwords import MAX_PASSWORD, bcrypt_cost, hash_password
from sluicemq.security.store import UserStore

BY: Final = "the broker (bcrypt replaced by argon2id at the first login)"
"""Author of these changes in the audit log."""
AT_ONCE: Final = 16
"""Maximum number of hashes replaced by one change of the file, which takes 0.4 s."""
MOST_WAITING: Final = 1000
"""Maximum number of users whose hash waits for its replacement; their passwords are in memory until
then."""

log = structlog.get_logger("sluicemq.identity")


class PasswordUpgrades:
    """Replacements of one broker. All methods are called on the event loop's thread."""

    __slots__ = (
        "_call_soon",
        "_closed",
        "_executor",
        "_paused",
        "_replaced",
        "_running",
        "_store",
        "_waiting",
        "_written",
    )

    def __init__(
        self,
        store: UserStore,
        executor: Executor,
        call_soon: CallSoon,
        written: Callable[[], None],
    ) -> None:
        """Create the replacements of a broker.

        `executor` is the thread that changes the file; `written` is called on the event loop's
        thread after each change.
        """
        self._store = store
        self._executor = executor
        self._call_soon = call_soon
        self._written = written
        self._replaced: dict[str, str] = {}
        """New hash of each replaced hash. Entries are added before the file is written, so that
        every replaced hash in the file is known."""
        self._waiting: dict[str, tuple[str, str]] = {}
        """Stored hash and password by user."""
        self._running = False
        self._paused = False
        self._closed = False

    def mark(self, stored: str) -> str:
        """Return the hash that identifies a user's password in comparisons."""
        return self._replaced.get(stored, stored)

    def offer(self, user: str, stored: str, password: str) -> None:
        """Note that `password` is what `stored` was made of; replace that if it is bcrypt's."""
        if self._paused or not bcrypt_cost(stored) or len(self._waiting) >= MOST_WAITING:
            return
        if len(password.encode()) > MAX_PASSWORD:  # bcrypt takes longer ones, argon2 is given none
            return
        self._waiting[user] = stored, password
        self._advance()

    def resume(self) -> None:
        """Try again to write: the file has changed."""
        self._paused = False

    def close(self) -> None:
        """Begin no more replacements."""
        self._closed = True
        self._waiting.clear()

    def _advance(self) -> None:
        if self._waiting and not self._running and not self._closed:
            part = dict(islice(self._waiting.items(), AT_ONCE))
            for user in part:
                del self._waiting[user]
            self._running = True
            self._executor.submit(self._replace, part)

    def _replace(self, part: dict[str, tuple[str, str]]) -> None:
        """Hash and write, in the thread."""
        fault = ""
        try:
            hashes = {
                user: (old, hash_password(password)) for user, (old, password) in part.items()
            }
            for old, new in hashes.values():
                self._remember(old, new)
            self._store.change(partial(replace_hashes, hashes=hashes), BY)
        except AccessError as error:
            # another process is changing the file: these users are offered again
            log.info("bcrypt hashes are not replaced yet", error=str(error))
        except Exception as error:
            # any error: if this never ended, no further hash would be replaced
            fault = str(error) or type(error).__name__
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            self._call_soon(self._done, fault)

    def _remember(self, old: str, new: str) -> None:
        if len(self._replaced) >= MOST_USERS:
            del self._replaced[next(iter(self._replaced))]
        self._replaced[new] = old

    def _done(self, fault: str) -> None:
        self._running = False
        if fault:
            self._paused = True
            self._waiting.clear()
            log.warning(
                "bcrypt hashes stay, because the user database cannot be changed", error=fault
            )
        else:
            self._written()
        self._advance()
