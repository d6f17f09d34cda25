"""Pages of destinations for many streams: created once per query, with intervals between them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from sluicemq.admin import overview
from sluicemq.admin.overview import DestinationPageCache
from sluicemq.management.destinations import DestinationQuery
from sluicemq.model.access import EVERYBODY, Identity
from tests.support.api import ApiFixture, looped


class Pages:
    """A source of pages that records its calls, with a delay."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.asked: list[tuple[str, int]] = []
        self.at: list[float] = []
        self.seconds = seconds

    async def page(self, identity: Identity, query: DestinationQuery) -> dict[str, Any]:
        self.at.append(time.perf_counter())
        self.asked.append((identity.name, query.offset))
        await asyncio.sleep(self.seconds)
        return {"offset": query.offset}


@looped
async def test_equal_queries_share_one_page(api_fixture: ApiFixture) -> None:
    pages: Any = Pages()
    cache = DestinationPageCache(pages)
    query = DestinationQuery()
    responses = await asyncio.gather(*(cache.of(EVERYBODY, DestinationQuery()) for _ in range(20)))
    assert set(responses) == {b'{"offset":0}'}
    assert pages.asked == [("", 0)]
    anna = Identity("anna")
    await cache.of(anna, query)
    await cache.of(EVERYBODY, DestinationQuery(offset=100))
    # identities with the same name do not share pages
    await cache.of(Identity("anna"), query)
    assert pages.asked == [("", 0), ("anna", 0), ("", 100), ("anna", 0)]


@looped
async def test_a_stale_page_is_not_returned(api_fixture: ApiFixture) -> None:
    pages: Any = Pages()
    cache = DestinationPageCache(pages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overview, "FRESH_SECONDS", 0.0)
        for _ in range(3):
            await cache.of(EVERYBODY, DestinationQuery())
    assert len(pages.asked) == 3


@looped
async def test_queries_are_spaced_by_their_duration(api_fixture: ApiFixture) -> None:
    pages: Any = Pages(0.01)
    cache = DestinationPageCache(pages)
    queries = [DestinationQuery(offset=number) for number in range(1, 4)]
    await asyncio.gather(*(cache.of(EVERYBODY, query) for query in queries))
    first, second, third = pages.at
    assert second - first >= 0.09
    assert third - second >= 0.09


@looped
async def test_a_client_that_disconnects_stops_waiting(api_fixture: ApiFixture) -> None:
    pages: Any = Pages(60.0)
    cache = DestinationPageCache(pages)
    leaving = asyncio.Event()
    waiting = asyncio.ensure_future(cache.unless(leaving, EVERYBODY, DestinationQuery()))
    await asyncio.sleep(0)
    leaving.set()
    assert await waiting is None
    pages.seconds = 0.0
    # other clients are not delayed
    assert await cache.unless(asyncio.Event(), EVERYBODY, DestinationQuery()) == b'{"offset":0}'


@looped
async def test_an_error_is_raised(api_fixture: ApiFixture) -> None:
    class Broken:
        async def page(self, identity: Identity, query: DestinationQuery) -> None:
            raise ValueError("a mistake")

    pages: Any = Broken()
    with pytest.raises(ValueError, match="a mistake"):
        await DestinationPageCache(pages).unless(asyncio.Event(), EVERYBODY, DestinationQuery())
