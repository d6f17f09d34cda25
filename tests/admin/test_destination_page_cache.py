"""Pages of destinations for many streams: made once for all that ask the same, and with rests."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from sluicemq.admin import destination_page_cache
from sluicemq.admin.destination_page_cache import DestinationPageCache
from sluicemq.admin.destinations import DestinationQuery
from sluicemq.model.access import EVERYBODY, Identity
from tests.support.api import ApiFixture, looped


class Pages:
    """Counts what it is asked for, and takes its time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.asked: list[tuple[str, int]] = []
        self.at: list[float] = []
        self.seconds = seconds

    async def page(self, identity: Identity, query: DestinationQuery) -> dict[str, Any]:
        self.at.append(time.perf_counter())
        self.asked.append((identity.name, query.page))
        await asyncio.sleep(self.seconds)
        return {"page": query.page}


@looped
async def test_who_asks_the_same_is_told_the_same(api_fixture: ApiFixture) -> None:
    pages: Any = Pages()
    made = DestinationPageCache(pages)
    query = DestinationQuery()
    told = await asyncio.gather(*(made.of(EVERYBODY, DestinationQuery()) for _ in range(20)))
    assert set(told) == {b'{"page":1}'}
    assert pages.asked == [("", 1)]
    anna = Identity("anna")
    await made.of(anna, query)
    await made.of(EVERYBODY, DestinationQuery(page=2))
    # others see other things, even if they are called the same
    await made.of(Identity("anna"), query)
    assert pages.asked == [("", 1), ("anna", 1), ("", 2), ("anna", 1)]


@looped
async def test_nothing_old_is_told(api_fixture: ApiFixture) -> None:
    pages: Any = Pages()
    made = DestinationPageCache(pages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(destination_page_cache, "FRESH_SECONDS", 0.0)
        for _ in range(3):
            await made.of(EVERYBODY, DestinationQuery())
    assert len(pages.asked) == 3


@looped
async def test_whoever_works_long_rests_long(api_fixture: ApiFixture) -> None:
    pages: Any = Pages(0.01)
    made = DestinationPageCache(pages)
    queries = [DestinationQuery(page=number) for number in range(1, 4)]
    await asyncio.gather(*(made.of(EVERYBODY, query) for query in queries))
    first, second, third = pages.at
    assert second - first >= 0.09
    assert third - second >= 0.09


@looped
async def test_who_leaves_waits_for_nothing(api_fixture: ApiFixture) -> None:
    pages: Any = Pages(60.0)
    made = DestinationPageCache(pages)
    leaving = asyncio.Event()
    waiting = asyncio.ensure_future(made.unless(leaving, EVERYBODY, DestinationQuery()))
    await asyncio.sleep(0)
    leaving.set()
    assert await waiting is None
    pages.seconds = 0.0
    # and holds up nobody else
    assert await made.unless(asyncio.Event(), EVERYBODY, DestinationQuery()) == b'{"page":1}'


@looped
async def test_a_mistake_is_told(api_fixture: ApiFixture) -> None:
    class Broken:
        async def page(self, identity: Identity, query: DestinationQuery) -> None:
            raise ValueError("a mistake")

    pages: Any = Broken()
    with pytest.raises(ValueError, match="a mistake"):
        await DestinationPageCache(pages).unless(asyncio.Event(), EVERYBODY, DestinationQuery())
