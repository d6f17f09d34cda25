"""Lists are given a page at a time."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

Item = TypeVar("Item")


class PageQuery(msgspec.Struct, kw_only=True, frozen=True):
    """Parameters of all lists; the query of one adds its own (`class Q(PageQuery, kw_only=True,
    frozen=True)`, with a `sort: Literal[…]`)."""

    page: Annotated[int, Meta(ge=1, le=1_000_000, description="The first page is 1.")] = 1
    page_size: Annotated[int, Meta(ge=1, le=500, description="Items of a page.")] = 100
    order: Annotated[Literal["asc", "desc"], Meta(description="Of what `sort` names.")] = "asc"

    @property
    def part(self) -> slice:
        """Of the whole list."""
        return slice((self.page - 1) * self.page_size, self.page * self.page_size)


class Page(msgspec.Struct, Generic[Item], kw_only=True, frozen=True):
    """Some items of a list, and how many there are in all."""

    items: list[Item]
    page: int
    page_size: int
    total: int


def page_of(items: list[Item], query: PageQuery) -> Page[Item]:
    """The page that was asked for, of all items in their order."""
    return page_with(items[query.part], query, len(items))


def page_with(items: list[Item], query: PageQuery, total: int) -> Page[Item]:
    """The page that was asked for, of which only the items have been made."""
    return Page(items=items, page=query.page, page_size=query.page_size, total=total)
