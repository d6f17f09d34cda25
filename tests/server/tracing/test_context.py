"""Detection of trace context in properties (W3C Trace Context, section 3.2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.server.tracing.span_recorder import (
    TraceContext,
    format_traceparent,
    parse_traceparent,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    "text",
    [
        f"00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-03",  # a flag of later versions
        f"cc-{TRACE}-{SPAN}-01-what-comes-later",
    ],
)
def test_sampled_trace_contexts(text: str) -> None:
    assert parse_traceparent(text) == TraceContext(int(TRACE, 16), int(SPAN, 16))


@pytest.mark.parametrize(
    "text",
    [
        None,
        17,
        b"00-" + TRACE.encode() + b"-" + SPAN.encode() + b"-01",
        "",
        "yes",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-00",
        f"00-{TRACE}-{SPAN}-02",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
    ],
)
def test_invalid_and_unsampled_trace_contexts(text: object) -> None:
    assert parse_traceparent(text) is None


@given(st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1))
def test_trace_context_round_trip(trace: int, span: int) -> None:
    assert parse_traceparent(format_traceparent(trace, span)) == TraceContext(trace, span)
