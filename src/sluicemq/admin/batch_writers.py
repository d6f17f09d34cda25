"""Endpoint that lists the batch writers with their latest batches."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.pagination import Page, SortedPageQuery, page_with
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.admin.time_slices import TimeSlices


class WritersQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Order of the writers, by the time of their last part."""

    order: Annotated[
        Literal["asc", "desc"], Meta(description="`desc`: most recent writer first.")
    ] = "desc"


class WriterView(msgspec.Struct, frozen=True):
    """A writer, the user who owns it ("" = no owner yet), and its latest batch."""

    writer: str
    owner: str
    batch: int
    partitions_done: Annotated[int, Meta(description="Number of complete partitions.")]
    parts_open: Annotated[int, Meta(description="Number of parts of incomplete partitions.")]
    rows: Annotated[int, Meta(description="Number of rows of the batch so far.")]
    last_seen: Annotated[int, Meta(description="Time of its last part in ms since the epoch.")]


class WriterEndpoints:
    """Handlers of `GET /batches`."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def list(self, call: Call) -> Page[WriterView]:
        """GET /batches"""
        query: WritersQuery = call.query
        writers = self._context.broker.batches.writers
        ordered = writers.items() if query.order == "asc" else reversed(writers.items())
        chosen = list(islice(ordered, query.part.start, query.part.stop))
        slices = TimeSlices(self._context.broker)
        items = []
        for name, writer in chosen:
            parts = [rows for known in writer.partial.values() for _, rows in known]
            view = WriterView(
                writer=name,
                owner=writer.owner,
                batch=writer.batch,
                partitions_done=len(writer.done),
                parts_open=len(parts),
                rows=sum(writer.rows) + sum(parts),
                last_seen=writer.seen,
            )
            items.append(view)
            if slices.due:
                await slices.rest()
        return page_with(items, query, len(writers))


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoint that lists batch writers. `batches` has the one that writes parts."""
    handlers = WriterEndpoints(context)
    return [
        Endpoint(
            "GET",
            "/batches",
            "listBatchWriters",
            handlers.list,
            "List the writers of batches",
            Need.SUPERUSER,
            query=WritersQuery,
            answer=Page[WriterView],
        )
    ]
