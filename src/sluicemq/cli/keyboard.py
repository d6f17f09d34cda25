"""Single key presses from a terminal while a live display is shown."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any, Final, Self

_ESCAPED: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
}
_NAMED: Final = {
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
}
_MOST: Final = 64
"""Number of bytes read at a time."""


class Keyboard:
    """Key reader: within `with`, keys arrive one by one without echo. Without a terminal no keys
    arrive."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if self._input is not None:
            self._before = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._input is not None:
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def keys(self, seconds: float) -> list[str]:
        """Return the keys pressed so far as soon as there are any; none after the timeout."""
        if self._input is None:
            time.sleep(seconds)
            return []
        ready, _, _ = select.select([self._input], [], [], seconds)
        if not ready:
            return []
        data = os.read(self._input, _MOST)
        if not data:
            # the terminal has been closed
            raise KeyboardInterrupt
        return named(data.decode(errors="ignore"))


def named(text: str) -> list[str]:
    """Return keys by their names; keys without a name by the characters they write."""
    keys = []
    while text:
        for sequence, name in _ESCAPED.items():
            if text.startswith(sequence):
                keys.append(name)
                text = text[len(sequence) :]
                break
        else:
            keys.append(_NAMED.get(text[0], text[0]))
            text = text[1:]
    return keys
