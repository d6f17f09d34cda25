"""Trace context in the message property `traceparent` (W3C Trace Context):

00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
version  trace                      span              flags: 01 = sampled
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
"""Property with the data of tracing systems; the broker forwards it unchanged."""
SAMPLED: Final = 1

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")


class TraceContext(NamedTuple):
    """Reference to a span of a trace."""

    trace: int
    span: int
    sampled: bool


def read(text: object) -> TraceContext | None:
    """Return the context in the property's value, or None if the value is not a valid one."""
    if not isinstance(text, str):
        return None
    match = _FORM.match(text)
    if match is None:
        return None
    version, trace, span, flags, extra = match.groups()
    if version == "ff" or (version == "00" and extra):
        return None
    context = TraceContext(int(trace, 16), int(span, 16), bool(int(flags, 16) & SAMPLED))
    return context if context.trace and context.span else None


def write(trace: int, span: int) -> str:
    """Return the property's value for a span of a sampled trace."""
    return f"00-{trace:032x}-{span:016x}-01"
