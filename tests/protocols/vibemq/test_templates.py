"""The templates produce the same bytes as `wire` and `mapping`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from sluicemq.protocols.vibemq import mapping, wire
from sluicemq.protocols.vibemq.templates import AckTemplate, DeliverTemplate
from sluicemq.protocols.vibemq.wire import Frame

names = st.binary(min_size=1, max_size=300)
ADDRESS = Address(Kind.QUEUE, "q")


@given(queue=names, identity=names)
def test_acknowledgements(queue: bytes, identity: bytes) -> None:
    assert AckTemplate(queue).fill(identity) == wire.encode_publish_ack(identity, queue)


messages = st.one_of(
    st.builds(
        lambda payload, headers: mapping.to_message(
            ADDRESS, Frame(wire.PUBLISH, "i", "q", payload, headers), Durability.SYNC, 0
        ),
        st.sampled_from([b"", b"1", b'"aGk="', b'"%b"' % (b"x" * 2000)]),
        st.dictionaries(
            st.sampled_from(["priority", "content-encoding", "x", "deliveryAttempts"]),
            st.sampled_from(["1", "High", "base64"]),
        ),
    ),
    st.builds(
        lambda kind, origin, properties: Message(
            ADDRESS, b'{"a":1}', kind, origin, properties=properties
        ),
        st.sampled_from(BodyKind),
        st.sampled_from(Origin),
        st.sampled_from([None, {"a": 1}, {"deadLetterReason": "expired", "deliveryAttempts": 3}]),
    ),
)


@given(message=messages, queue=names, identity=names, attempts=st.integers(1, 70))
def test_deliveries(message: Message, queue: bytes, identity: bytes, attempts: int) -> None:
    for number in (1, attempts):
        expected = mapping.to_deliver(message, identity, queue, number)
        assert DeliverTemplate(queue).fill(message, identity, number) == expected


def test_deliveries_about_the_limit() -> None:
    template = DeliverTemplate(b"q")
    for size in range(wire.MAX_BODY - 60, wire.MAX_BODY + 1):
        message = Message(ADDRESS, b"1" * size, BodyKind.JSON, Origin.VIBEMQ)
        assert template.fill(message, b"i", 1) == mapping.to_deliver(message, b"i", b"q", 1)
