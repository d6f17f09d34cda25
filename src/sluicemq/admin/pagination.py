"""Pagination of lists."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

Item = TypeVar("Item")


class PageQuery(msgspec.Struct, kw_only=True, frozen=True):
    """Parameters of all lists. The query of a list extends it (`class Q(PageQuery, kw_only=True,
    frozen=True)`, with a `sort: Literal[…]`)."""

    page: Annotated[int, Meta(ge=1, le=1_000_000, description="The first page is 1.")] = 1
    page_size: Annotated[int, Meta(ge=1, le=500, description="Number of items per page.")] = 100
    order: Annotated[Literal["asc", "desc"], Meta(description="Order of the `sort` field.")] = "asc"

    @property
    def part(self) -> slice:
        """Slice of the whole list that the page contains."""
        return slice((self.page - 1) * self.page_size, self.page * self.page_size)


class Page(msgspec.Struct, Generic[Item], kw_only=True, frozen=True):
    """A page of a list, and the total number of items."""

    items: list[Item]
    page: int
    page_size: int
    total: int


def page_of(items: list[Item], query: PageQuery) -> Page[Item]:
    """Return the requested page of `items`, which are in order."""
    return page_with(items[query.part], query, len(items))


def page_with(items: list[Item], query: PageQuery, total: int) -> Page[Item]:
    """Return the requested page, whose items are given."""
    return Page(items=items, page=query.page, page_size=query.page_size, total=total)
