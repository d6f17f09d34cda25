"""Selector index: targets of a message without evaluating every selector.

It serves the subscriptions of a topic and the pending queues of a queue, both called targets here.

Targets with the same selector share a route, so that the selector is evaluated once. A route whose
selector requires an equality (selectors/equality.py) is stored in the buckets of the required
values and evaluated only for messages that have one of them: of a thousand targets with `id = ...
AND price > 3` one or two are evaluated. Routes without an equality are evaluated for every message.

The cost of a message is bounded by the `load`: the nodes of all selectors that are evaluated for
every message, and for each field those of the fullest bucket. The broker limits the load, because
each publisher pays for the selectors of all consumers.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from sluicemq.broker.selectors.equality import Bucket, Equality, bucket_of
from sluicemq.broker.selectors.values import Read, reader
from sluicemq.model.message import Message

_Target = TypeVar("_Target")


class Selector(Protocol):
    """Predicate over messages. Two selectors with equal `text` are the same selector.

    Every message that it matches fulfils each of `equalities`. The evaluation time is proportional
    to `nodes`, at least 1.
    """

    text: str
    nodes: int
    equalities: tuple[Equality, ...]

    def __call__(self, message: Message) -> bool: ...


class Route(Generic[_Target]):
    """Targets with one selector, or without a selector.

    equality        equality by which the route is found, None if it is evaluated for every message
    unrestricted    targets that accept messages of all senders
    with_exclusion  targets that exclude a sender, with that sender
    """

    __slots__ = ("equality", "selector", "unrestricted", "with_exclusion")

    def __init__(self, selector: Selector | None) -> None:
        self.selector = selector
        self.equality: Equality | None = None
        self.unrestricted: dict[_Target, None] = {}
        self.with_exclusion: dict[_Target, object] = {}

    def add(self, target: _Target, exclude: object) -> None:
        """Add a target; `exclude` is the sender whose messages it does not accept, or None."""
        if exclude is None:
            self.unrestricted[target] = None
        else:
            self.with_exclusion[target] = exclude

    def remove(self, target: _Target) -> None:
        """Remove a target, which must have been added."""
        if target in self.unrestricted:
            del self.unrestricted[target]
        else:
            del self.with_exclusion[target]

    def collect(self, message: Message, chosen: list[_Target]) -> None:
        """Append the targets that accept a message which the selector matches."""
        chosen.extend(self.unrestricted)
        for target, exclude in self.with_exclusion.items():
            if message.sender != exclude:
                chosen.append(target)


class RouteIndex(Generic[_Target]):
    """Routes that require a value of one field; a route may be in several buckets.

    peak  nodes of the selectors in the fullest bucket
    """

    __slots__ = ("_nodes", "_totals", "buckets", "peak", "read")

    def __init__(self, read: Read) -> None:
        self.read = read
        self.buckets: dict[Bucket, dict[str, Route[_Target]]] = {}
        self.peak = 0
        self._nodes: dict[Bucket, int] = {}
        """Number of nodes of the selectors in each bucket."""
        self._totals: dict[int, int] = {}
        """Number of buckets for each number of nodes."""

    def add(self, bucket: Bucket, text: str, route: Route[_Target], nodes: int) -> None:
        """Add a route to a bucket."""
        self.buckets.setdefault(bucket, {})[text] = route
        self.peak = max(self.peak, self._count(bucket, nodes))

    def remove(self, bucket: Bucket, text: str, nodes: int) -> None:
        """Remove a route from a bucket and lower the peak; amortized O(1)."""
        routes = self.buckets[bucket]
        del routes[text]
        if not routes:
            del self.buckets[bucket]
        self._count(bucket, -nodes)
        while self.peak and self.peak not in self._totals:
            self.peak -= 1

    def _count(self, bucket: Bucket, nodes: int) -> int:
        """Add to the nodes of a bucket and return their new number."""
        totals = self._totals
        before = self._nodes.pop(bucket, 0)
        if before:
            totals[before] -= 1
            if not totals[before]:
                del totals[before]
        now = before + nodes
        if now:
            self._nodes[bucket] = now
            totals[now] = totals.get(now, 0) + 1
        return now


class Routes(Generic[_Target]):
    """All routes of a topic or of a queue.

    unselective  targets without a selector
    routes       targets with a selector, by its text
    unindexed    routes that are evaluated for every message
    indexes      the other routes, by field
    load         largest number of nodes that one message may be evaluated with
    """

    __slots__ = ("indexes", "load", "routes", "unindexed", "unselective")

    def __init__(self) -> None:
        self.unselective: Route[_Target] = Route(None)
        self.routes: dict[str, Route[_Target]] = {}
        self.unindexed: dict[str, Route[_Target]] = {}
        self.indexes: dict[str, RouteIndex[_Target]] = {}
        self.load = 0

    def load_with(self, selector: Selector) -> int:
        """Return the load including that selector, which must not be present yet."""
        trial: Route[_Target] = Route(selector)
        self._index_route(selector, trial)
        load = self.load
        self._unindex_route(selector, trial)
        return load

    def add(self, target: _Target, selector: Selector | None, exclude: object = None) -> None:
        """Route messages to this target from now on."""
        route = self.unselective
        if selector is not None:
            selective_route = self.routes.get(selector.text)
            if selective_route is None:
                selective_route = self.routes[selector.text] = Route(selector)
                self._index_route(selector, selective_route)
            route = selective_route
        route.add(target, exclude)

    def remove(self, target: _Target, selector: Selector | None) -> None:
        """Stop routing to this target, which must have been added with that selector."""
        if selector is None:
            self.unselective.remove(target)
            return
        route = self.routes[selector.text]
        route.remove(target)
        if not (route.unrestricted or route.with_exclusion):
            del self.routes[selector.text]
            self._unindex_route(selector, route)

    def targets(self, message: Message) -> list[_Target]:
        """Return the targets that match the message."""
        targets: list[_Target] = []
        self.unselective.collect(message, targets)
        if not self.routes:
            return targets
        for route in self.unindexed.values():
            assert route.selector is not None
            if route.selector(message):
                route.collect(message, targets)
        for index in self.indexes.values():
            routes = index.buckets.get(bucket_of(index.read(message)))
            if routes is not None:
                for route in routes.values():
                    assert route.selector is not None
                    if route.selector(message):
                        route.collect(message, targets)
        return targets

    def _choose(self, selector: Selector) -> Equality | None:
        """Return the most selective equality: the one whose buckets hold the fewest other routes.

        `kind = 'order' AND id = 17` is indexed by id once many routes require that kind.
        """
        if not selector.equalities:
            return None
        return min(selector.equalities, key=self._largest_bucket)

    def _index_route(self, selector: Selector, route: Route[_Target]) -> None:
        equality = route.equality = self._choose(selector)
        if equality is None:
            self.unindexed[selector.text] = route
            self.load += selector.nodes
            return
        if not equality.buckets:
            return  # the condition contradicts itself: it never matches
        index = self.indexes.get(equality.field)
        if index is None:
            index = self.indexes[equality.field] = RouteIndex(reader(equality.field))
        self.load -= index.peak
        for bucket in equality.buckets:
            index.add(bucket, selector.text, route, selector.nodes)
        self.load += index.peak

    def _largest_bucket(self, equality: Equality) -> tuple[int, bool]:
        """Return the size of the fullest bucket; if equal, a field that is read anyway is
        preferred.
        """
        index = self.indexes.get(equality.field)
        if index is None:
            return 0, True
        return max((len(index.buckets.get(b, ())) for b in equality.buckets), default=0), False

    def _unindex_route(self, selector: Selector, route: Route[_Target]) -> None:
        equality = route.equality
        if equality is None:
            del self.unindexed[selector.text]
            self.load -= selector.nodes
            return
        if not equality.buckets:
            return
        index = self.indexes[equality.field]
        self.load -= index.peak
        for bucket in equality.buckets:
            index.remove(bucket, selector.text, selector.nodes)
        self.load += index.peak
        if not index.buckets:
            del self.indexes[equality.field]
