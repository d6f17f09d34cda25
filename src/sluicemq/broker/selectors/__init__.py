"""Message selectors: conditions over the properties and header fields of messages.

The language is that of JMS 1.1 section 3.8.1; clients of other protocols may use it too. The reader
parses the text (grammar.lark -> nodes) and the compiler makes closures of the nodes; the equalities
that a matching message must fulfil are derived as well, for the routing of topics.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from sluicemq.broker.selectors.compiler import Test, compile_condition
from sluicemq.broker.selectors.equality import Equality, equalities
from sluicemq.model.errors import SelectorError
from sluicemq.model.message import Message

__all__ = ["CompiledSelector", "SelectorLimits", "compile_selector"]

_SHORT: Final = 1024
_RECENT: Final = 256


class SelectorLimits(NamedTuple):
    """Limits of the cost of a selector. None = no limit.

    text   bytes of its text in UTF-8, which determine the time to compile it
    nodes  identifiers, literals, operations, which determine the time to evaluate it (nodes.py)
    """

    text: int | None = 8 * 1024
    nodes: int | None = 512

    def check_text(self, text: str) -> None:
        """Raise SelectorError if the text is too long."""
        size = len(text.encode("utf-8", "surrogatepass"))
        if self.text is not None and size > self.text:
            raise SelectorError(
                f"the selector has {size} bytes, at most {self.text} are allowed "
                "(broker.max_selector_bytes)",
                0,
            )

    def check_nodes(self, nodes: int) -> None:
        """Raise SelectorError if there are too many nodes."""
        if self.nodes is not None and nodes > self.nodes:
            raise SelectorError(
                f"the selector has {nodes} identifiers, literals and operations, at most "
                f"{self.nodes} are allowed (broker.max_selector_nodes)",
                0,
            )


NO_LIMITS: Final = SelectorLimits(None, None)


class CompiledSelector:
    """Predicate over messages: True if the condition is TRUE, not FALSE or UNKNOWN.

    text        text as given; selectors with equal text are equal
    nodes       number of nodes; see nodes.py
    equalities  equalities that every matching message fulfils; see equality.py
    """

    __slots__ = ("__weakref__", "_test", "equalities", "nodes", "text")

    def __init__(self, text: str, test: Test, nodes: int, equalities: tuple[Equality, ...]) -> None:
        self.text = text
        self.nodes = nodes
        self.equalities = equalities
        self._test = test

    def __call__(self, message: Message) -> bool:
        return self._test(message)

    def __repr__(self) -> str:
        return f"<CompiledSelector {self.text!r}>"


_in_use: Final[WeakValueDictionary[str, CompiledSelector]] = WeakValueDictionary()
_recent: Final[deque[CompiledSelector]] = deque(maxlen=_RECENT)
"""Keeps short selectors in memory that were in use recently."""


def known_selector(text: str) -> CompiledSelector | None:
    """Return the selector of that text if it is in use, or was recently."""
    return _in_use.get(text)


def compile_selector(text: str, limits: SelectorLimits = NO_LIMITS) -> CompiledSelector:
    """Return the selector of that text, the same object as long as it is in use. Thread-safe.

    A blank text is not a condition: a caller that treats it as "no selector", as JMS does, must not
    call this. Raises SelectorError, also if the limits are exceeded.
    """
    limits.check_text(text)
    selector = _in_use.get(text)
    if selector is not None:
        limits.check_nodes(selector.nodes)
    else:
        # imported here because importing lark takes longer than most commands run
        from sluicemq.broker.selectors.reader import read

        condition = read(text)
        limits.check_nodes(condition.size)
        selector = CompiledSelector(
            text, compile_condition(condition, True), condition.size, equalities(condition)
        )
        _in_use[text] = selector
        if len(text) <= _SHORT:
            _recent.append(selector)
    return selector
