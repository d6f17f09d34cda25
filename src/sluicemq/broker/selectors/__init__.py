"""Message selectors: conditions over the properties and header fields of messages.

The language is that of JMS 1.1 section 3.8.1, and whoever speaks another protocol may use it too.
Text goes through reader (grammar.lark -> nodes) and compiler (nodes -> closures); equalities that a
message must fulfil are found on the way, for the routing of topics.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from sluicemq.broker.selectors.compiler import Test, compile_condition
from sluicemq.broker.selectors.equality import Equality, equalities

if TYPE_CHECKING:
    from sluicemq.model.message import Message

__all__ = ["CompiledSelector", "compile_selector"]

_SHORT: Final = 1024
_RECENT: Final = 256


class CompiledSelector:
    """A predicate over messages: TRUE of them, not FALSE and not UNKNOWN.

    text        as it was given; selectors with equal text are equal
    equalities  what is true of every message that it selects; see there
    """

    __slots__ = ("__weakref__", "_test", "equalities", "text")

    def __init__(self, text: str, test: Test, equalities: tuple[Equality, ...]) -> None:
        self.text = text
        self.equalities = equalities
        self._test = test

    def __call__(self, message: Message) -> bool:
        return self._test(message)

    def __repr__(self) -> str:
        return f"<CompiledSelector {self.text!r}>"


_in_use: Final[WeakValueDictionary[str, CompiledSelector]] = WeakValueDictionary()
_recent: Final[deque[CompiledSelector]] = deque(maxlen=_RECENT)
"""Keeps short ones that nobody uses at the moment."""


def compile_selector(text: str) -> CompiledSelector:
    """The selector of that text, the same object as long as it is in use.

    A text without anything but blanks is no condition: whoever takes it for "no selector", as JMS
    does, must not ask. Raises SelectorError.
    """
    selector = _in_use.get(text)
    if selector is None:
        # here, because lark takes longer to import than most commands to run
        from sluicemq.broker.selectors.reader import read

        condition = read(text)
        selector = CompiledSelector(text, compile_condition(condition, True), equalities(condition))
        _in_use[text] = selector
        if len(text) <= _SHORT:
            _recent.append(selector)
    return selector
