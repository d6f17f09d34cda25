"""The trace that a message belongs to, as its property `traceparent` says (W3C Trace Context):

00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
version  trace                      span              flags: 01 = sampled
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
"""What tracing systems keep beside it; passed on as it is."""
SAMPLED: Final = 1

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")


class TraceContext(NamedTuple):
    """A span of a trace."""

    trace: int
    span: int
    sampled: bool


def read(text: object) -> TraceContext | None:
    """None for what is none: then the property means something else, and is nobody's business."""
    if not isinstance(text, str):
        return None
    found = _FORM.match(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more):
        return None
    context = TraceContext(int(trace, 16), int(span, 16), bool(int(flags, 16) & SAMPLED))
    return context if context.trace and context.span else None


def write(trace: int, span: int) -> str:
    """Of a trace that is sampled."""
    return f"00-{trace:032x}-{span:016x}-01"
