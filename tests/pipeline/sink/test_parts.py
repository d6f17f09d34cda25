"""Parts and frames depend on the rows, not on the batches in which they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.admin.batches import MAX_PROPERTIES
from sluicemq.admin.endpoints import ApiLimits
from sluicemq.management.settings import HttpSettings
from sluicemq.model.rows import DEFAULT_FRAME_ROWS, FRAME_ROWS, RowValues, decode, frames, row
from sluicemq.pipeline.sink.delivery import PART_DESTINATIONS, ROW_BYTES, EncodedPart, Parts
from sluicemq.pipeline.sink.options import PART_BYTES, PART_ROWS


def collect(sizes: Sequence[int], cuts: Sequence[int], rows: int, size: int) -> list[EncodedPart]:
    """Return the parts of rows with bodies of these sizes, in batches that end at `cuts`."""
    parts = Parts(rows, size)
    values = [row("q", bytes(length), timestamp=n) for n, length in enumerate(sizes)]
    encoded: list[EncodedPart] = []
    start = 0
    for end in [*cuts, len(values)]:
        encoded += parts.add(values[start:end])
        start = end
    last = parts.cut(final=True)
    return [*encoded, last] if last else encoded


def parts_of(rows: Sequence[RowValues]) -> list[EncodedPart]:
    """Return the parts of rows within the default limits."""
    parts = Parts(PART_ROWS, PART_BYTES)
    encoded = list(parts.add(rows))
    last = parts.cut(final=True)
    return [*encoded, last] if last else encoded


def numbers(part: EncodedPart) -> list[int]:
    """Return the numbers of the rows in a part."""
    data = b"".join(part.frames)
    return [message.timestamp for frame in frames(memoryview(data)) for message in decode(frame)]


def test_no_rows_make_no_part() -> None:
    assert collect([], [], 10, 10) == []


def test_partition_within_limits_is_one_part() -> None:
    (part,) = collect([10] * 1000, [3, 3, 700], 1000, 1000 * (10 + ROW_BYTES))
    assert numbers(part) == list(range(1000))
    assert (part.number, part.rows) == (0, 1000)
    assert (
        max(map(len, map(decode, frames(memoryview(b"".join(part.frames)))))) == DEFAULT_FRAME_ROWS
    )
    assert DEFAULT_FRAME_ROWS <= FRAME_ROWS


def test_row_above_limit_begins_another_part() -> None:
    parts = collect([10] * 1001, [], 1000, 1 << 30)
    assert [part.rows for part in parts] == [1000, 1]
    parts = collect([100] * 10, [], 100, 5 * (100 + ROW_BYTES))
    assert [part.rows for part in parts] == [5, 5]
    assert [part.number for part in parts] == [0, 1]


def test_huge_row_is_part_of_its_own() -> None:
    parts = collect([1, 5_000_000, 1, 1], [], 100, 1_000_000)
    assert [numbers(part) for part in parts] == [[0], [1], [2, 3]]
    (part,) = collect([1, 500_000, 1, 1], [], 100, 1_000_000)
    assert numbers(part) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "fields",
    [
        {"message_id": "i" * 6000},
        {"properties": {"header": "v" * 6000}},
        {"properties": {"header": b"v" * 6000}},
        {"properties": {f"header{number}": "" for number in range(150)}},
    ],
    ids=["text", "property", "bytes", "names"],
)
def test_texts_and_properties_count_as_bytes(fields: dict[str, Any]) -> None:
    """The broker limits the bytes and the properties of a part."""
    parts = parts_of([row("q", **fields)] * 6000)
    assert len(parts) > 1
    count = len(fields.get("properties", ()))
    for part in parts:
        assert sum(map(len, part.frames)) <= ApiLimits().part
        assert part.rows * count <= MAX_PROPERTIES


def test_destinations_of_part_are_limited() -> None:
    assert HttpSettings().max_batch_destinations == PART_DESTINATIONS
    names = [f"q{number}" for number in range(PART_DESTINATIONS)]
    queues = [row(name) for name in names]
    topics = [row(name, topic=True) for name in names]
    assert [part.rows for part in parts_of(queues * 3)] == [3000]
    parts = parts_of(queues + topics + queues)
    assert [part.rows for part in parts] == [1000, 1000, 1000]


@given(
    st.lists(st.integers(0, 3000) | st.just(300_000), max_size=40),
    st.lists(st.integers(0, 40)),
    st.integers(1, 50),
    st.integers(1, 400_000),
)
def test_batches_do_not_matter(sizes: list[int], cuts: list[int], rows: int, size: int) -> None:
    """A partition that is written again has the same bytes in the same parts."""
    once = collect(sizes, [], rows, size)
    repeated = collect(sizes, sorted(min(cut, len(sizes)) for cut in cuts), rows, size)
    assert [part.frames for part in repeated] == [part.frames for part in once]
    assert [number for part in once for number in numbers(part)] == list(range(len(sizes)))
    assert all(part.rows <= rows for part in once)
    totals = [sum(sizes[number] + ROW_BYTES for number in numbers(part)) for part in once]
    assert all(total <= size or part.rows == 1 for part, total in zip(once, totals, strict=True))
    for (part, total), (after, _) in pairwise(zip(once, totals, strict=True)):
        assert part.rows == rows or total + sizes[numbers(after)[0]] + ROW_BYTES > size
