"""Who wants a message, without asking every selector: subscriptions of a topic, pending queues of a
queue.

Takers with the same selector share a route, so that it is asked once. A route whose selector
demands an equality (selectors/equality.py) lies in the bucket of the values it demands and is asked
only about messages that have one of them: of a thousand takers with `id = ... AND price > 3`
one or two are asked. Routes without an equality are asked about every message.

What a message costs is bounded by the `load`: the nodes of all selectors that are asked about every
message, and for each field those of the fullest bucket. The broker limits it, as one publisher pays
for the selectors of all consumers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from sluicemq.broker.selectors.equality import Bucket, Equality, bucket_of, field_reader

if TYPE_CHECKING:
    from sluicemq.broker.pending_queue import Selector
    from sluicemq.broker.selectors.fields import Read
    from sluicemq.model.message import Message


_Taker = TypeVar("_Taker")


class Route(Generic[_Taker]):
    """The takers with one selector, or without one.

    equality  by which it is found, None if it is asked about every message
    everyone  those that want messages whoever sent them
    choosy    those that exclude a sender, and whom
    """

    __slots__ = ("choosy", "equality", "everyone", "selector")

    def __init__(self, selector: Selector | None) -> None:
        self.selector = selector
        self.equality: Equality | None = None
        self.everyone: dict[_Taker, None] = {}
        self.choosy: dict[_Taker, object] = {}

    def add(self, taker: _Taker, exclude: object) -> None:
        """It has the selector, and wants no messages of the sender `exclude`, if not None."""
        if exclude is None:
            self.everyone[taker] = None
        else:
            self.choosy[taker] = exclude

    def remove(self, taker: _Taker) -> None:
        """It must have been added."""
        if taker in self.everyone:
            del self.everyone[taker]
        else:
            del self.choosy[taker]

    def collect(self, message: Message, chosen: list[_Taker]) -> None:
        """Add those that want a message which the selector has selected."""
        chosen.extend(self.everyone)
        for taker, exclude in self.choosy.items():
            if message.sender != exclude:
                chosen.append(taker)


class Index(Generic[_Taker]):
    """The routes that demand something of one field; a route may lie in several buckets.

    peak  nodes of the selectors in the fullest bucket
    """

    __slots__ = ("_nodes", "_totals", "buckets", "peak", "read")

    def __init__(self, read: Read) -> None:
        self.read = read
        self.buckets: dict[Bucket, dict[str, Route[_Taker]]] = {}
        self.peak = 0
        self._nodes: dict[Bucket, int] = {}
        """Nodes of the selectors in each bucket."""
        self._totals: dict[int, int] = {}
        """How many buckets have so many nodes."""

    def peak_with(self, equality: Equality, nodes: int) -> int:
        """Return the peak with a selector of so many nodes, too."""
        return max(self.peak, nodes + max(self._nodes.get(b, 0) for b in equality.buckets))

    def add(self, bucket: Bucket, text: str, route: Route[_Taker], nodes: int) -> None:
        """Put a route into a bucket."""
        self.buckets.setdefault(bucket, {})[text] = route
        self.peak = max(self.peak, self._count(bucket, nodes))

    def remove(self, bucket: Bucket, text: str, nodes: int) -> None:
        """Take a route out of a bucket. The peak falls at most as far as it has risen."""
        routes = self.buckets[bucket]
        del routes[text]
        if not routes:
            del self.buckets[bucket]
        self._count(bucket, -nodes)
        while self.peak and self.peak not in self._totals:
            self.peak -= 1

    def _count(self, bucket: Bucket, nodes: int) -> int:
        """Add to the nodes of a bucket; returns how many it has."""
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


class Routes(Generic[_Taker]):
    """All routes of a topic, or of a queue.

    unselective  the takers without a selector
    routes       those with one, by its text
    asked        those of them that are asked about every message
    indexes      the others, by field
    load         nodes that a message may have to be evaluated with, at most
    """

    __slots__ = ("asked", "indexes", "load", "routes", "unselective")

    def __init__(self) -> None:
        self.unselective: Route[_Taker] = Route(None)
        self.routes: dict[str, Route[_Taker]] = {}
        self.asked: dict[str, Route[_Taker]] = {}
        self.indexes: dict[str, Index[_Taker]] = {}
        self.load = 0

    def load_with(self, selector: Selector) -> int:
        """Return the load that there is with that selector, too; it must not be there yet."""
        equality = self._choose(selector)
        if equality is None:
            return self.load + selector.nodes
        if not equality.buckets:
            return self.load
        index = self.indexes.get(equality.field)
        if index is None:
            return self.load + selector.nodes
        return self.load + index.peak_with(equality, selector.nodes) - index.peak

    def add(self, taker: _Taker, selector: Selector | None, exclude: object = None) -> None:
        """Messages are for this one too from now on."""
        route = self.unselective
        if selector is not None:
            known = self.routes.get(selector.text)
            if known is None:
                known = self.routes[selector.text] = Route(selector)
                self._place(selector, known)
            route = known
        route.add(taker, exclude)

    def remove(self, taker: _Taker, selector: Selector | None) -> None:
        """No longer; it must have been added, with that selector."""
        if selector is None:
            self.unselective.remove(taker)
            return
        route = self.routes[selector.text]
        route.remove(taker)
        if not (route.everyone or route.choosy):
            del self.routes[selector.text]
            self._displace(selector, route)

    def targets(self, message: Message) -> list[_Taker]:
        """Those that want the message."""
        chosen: list[_Taker] = []
        self.unselective.collect(message, chosen)
        if not self.routes:
            return chosen
        for route in self.asked.values():
            assert route.selector is not None
            if route.selector(message):
                route.collect(message, chosen)
        for index in self.indexes.values():
            found = index.buckets.get(bucket_of(index.read(message)))
            if found is not None:
                for route in found.values():
                    assert route.selector is not None
                    if route.selector(message):
                        route.collect(message, chosen)
        return chosen

    def _choose(self, selector: Selector) -> Equality | None:
        """Choose the equality that tells a route apart best: the one whose buckets hold the
        fewest others. `kind = 'order' AND id = 17` goes by id once many have that kind."""
        if not selector.equalities:
            return None
        return min(selector.equalities, key=self._crowd)

    def _place(self, selector: Selector, route: Route[_Taker]) -> None:
        equality = route.equality = self._choose(selector)
        if equality is None:
            self.asked[selector.text] = route
            self.load += selector.nodes
            return
        if not equality.buckets:
            return  # it contradicts itself: no message is ever selected
        index = self.indexes.get(equality.field)
        if index is None:
            index = self.indexes[equality.field] = Index(field_reader(equality))
        self.load -= index.peak
        for bucket in equality.buckets:
            index.add(bucket, selector.text, route, selector.nodes)
        self.load += index.peak

    def _crowd(self, equality: Equality) -> tuple[int, bool]:
        """How many share the fullest bucket; of two alike, a field that is read anyway."""
        index = self.indexes.get(equality.field)
        if index is None:
            return 0, True
        return max((len(index.buckets.get(b, ())) for b in equality.buckets), default=0), False

    def _displace(self, selector: Selector, route: Route[_Taker]) -> None:
        equality = route.equality
        if equality is None:
            del self.asked[selector.text]
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
