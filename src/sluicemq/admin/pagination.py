"""Pagination, the same for all lists.

GET …?limit=100                  -> {"items": […], "total": 250, "next_cursor": "100"}
GET …?limit=100&cursor=100       -> {"items": […], "total": 250, "next_cursor": "200"}
GET …?limit=100&offset=200       -> {"items": […], "total": 250, "next_cursor": null}
"""

from __future__ import annotations

from typing import Annotated, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

Item = TypeVar("Item")

MOST_OFFSET: Final = (1 << 53) - 1
"""Largest number that JSON clients represent exactly."""


class PageQuery(msgspec.Struct, kw_only=True, frozen=True):
    """Parameters of all lists. The query of a list extends it (`class Q(PageQuery, kw_only=True,
    frozen=True)`). The cursor of a list in memory is an offset."""

    limit: Annotated[int, Meta(ge=1, le=500, description="Maximum number of items.")] = 100
    offset: Annotated[int, Meta(ge=0, le=MOST_OFFSET, description="Number of items to skip.")] = 0
    cursor: Annotated[
        str,
        Meta(
            pattern="^([0-9]{1,9})?$",
            description="`next_cursor` of the previous page; replaces `offset`.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        if self.offset and self.cursor:
            raise ValueError("offset and cursor exclude each other")

    @property
    def part(self) -> slice:
        """Slice of the whole list that the page contains."""
        start = int(self.cursor or self.offset)
        return slice(start, start + self.limit)


class SortedPageQuery(PageQuery, kw_only=True, frozen=True):
    """Parameters of a list whose query has a `sort: Literal[…]`, or one fixed sort field."""

    order: Annotated[Literal["asc", "desc"], Meta(description="Order of the `sort` field.")] = "asc"


class Page(msgspec.Struct, Generic[Item], kw_only=True, frozen=True):
    """A page of a list.

    total        number of items in all pages; null if unknown
    next_cursor  cursor of the next page; null on the last page
    """

    items: list[Item]
    total: int | None
    next_cursor: str | None


def page_of(items: list[Item], query: PageQuery) -> Page[Item]:
    """Return the requested page of `items`, which are in order."""
    return page_with(items[query.part], query, len(items))


def page_with(items: list[Item], query: PageQuery, total: int) -> Page[Item]:
    """Return the requested page, whose items are given."""
    end = query.part.stop
    return Page(items=items, total=total, next_cursor=str(end) if end < total else None)
