"""Every status of every reply that the protocol specification has.

TABLE lists the statuses of the specification and those that Open MQ sends in addition. Each one is
either provoked by a scenario (scenarios.py) or listed in IMPOSSIBLE, with the reason why a single
broker never sends it. None is impossible here that one Open MQ broker sends, except for 409 to
START_TRANSACTION.
"""

from __future__ import annotations

from functools import partial

import pytest

from sluicemq.model.destination import Address, Kind
from sluicemq.protocols.jmq.packets import PacketType
from tests.protocols.jmq.harness import Harness, status
from tests.protocols.jmq.scenarios import SCENARIOS, provokes, request_before_login

H = PacketType

TABLE: dict[PacketType, set[int]] = {
    H.SEND_REPLY: {200, 304, 403, 404, 408, 410, 412, 414, 423, 500},
    H.ACKNOWLEDGE_REPLY: {200, 400, 404, 405, 408, 410, 412, 500},
    H.ADD_CONSUMER_REPLY: {200, 400, 403, 404, 405, 409, 412, 415, 500},
    H.ADD_PRODUCER_REPLY: {200, 403, 404, 405, 409, 415, 500},
    H.AUTHENTICATE_REPLY: {200, 403, 413, 500, 503},
    H.BROWSE_REPLY: {200, 400, 403, 404, 500},
    H.CREATE_DESTINATION_REPLY: {200, 400, 403, 409, 415, 500},
    H.CREATE_SESSION_REPLY: {200, 400, 405, 500},
    H.DELETE_CONSUMER_REPLY: {200, 400, 403, 404, 409, 412, 500},
    H.DELETE_PRODUCER_REPLY: {200, 403, 404, 500},
    H.DELIVER_REPLY: {200, 404, 500},
    H.DESTROY_DESTINATION_REPLY: {200, 403, 404, 409, 500},
    H.DESTROY_SESSION_REPLY: {200, 404, 500},
    H.GENERATE_UID_REPLY: {200, 500},
    H.GET_LICENSE_REPLY: {200, 500},
    H.GOODBYE_REPLY: {200},
    H.HELLO_REPLY: {200, 301, 400, 404, 405, 408, 415, 500, 503, 505},
    H.INFO: {200, 400, 500, 501},
    H.PING_REPLY: {200, 500},
    H.SET_CLIENTID_REPLY: {200, 400, 408, 409, 500},
    H.STOP_REPLY: {200, 404, 500},
    H.VERIFY_DESTINATION_REPLY: {200, 400, 403, 404, 500},
    H.START_TRANSACTION_REPLY: {200, 304, 400, 404, 409, 500, 501},
    H.COMMIT_TRANSACTION_REPLY: {200, 400, 404, 408, 410, 412, 500},
    H.ROLLBACK_TRANSACTION_REPLY: {200, 400, 404, 408, 412, 500},
    H.END_TRANSACTION_REPLY: {200, 304, 400, 404, 408, 412, 500},
    H.PREPARE_TRANSACTION_REPLY: {200, 304, 400, 404, 408, 412, 500},
    H.RECOVER_TRANSACTION_REPLY: {200, 400, 404, 500},
    H.VERIFY_TRANSACTION_REPLY: {200, 400, 404, 500},
}

IMPOSSIBLE: dict[tuple[PacketType, int], str] = {
    (H.DELETE_PRODUCER_REPLY, 403): "Open MQ does not send it: an unknown producer is an error",
    (H.HELLO_REPLY, 301): "Open MQ sends it in a cluster only: a store session has moved",
    (H.HELLO_REPLY, 408): "Open MQ sends it in a cluster only: a store session is being moved",
    (H.HELLO_REPLY, 405): "Open MQ has no licences any more that a client could exceed",
    (H.PING_REPLY, 500): "Open MQ does not send it: PING is always answered with OK",
    (H.SET_CLIENTID_REPLY, 408): "Open MQ sends it in a cluster only: another broker has a lock",
    (H.START_TRANSACTION_REPLY, 409): "Open MQ sends it, and the Java client then asks for ever",
    (H.COMMIT_TRANSACTION_REPLY, 410): "Open MQ sends it in a cluster only: a broker is down",
}

NOT_LOGGED_IN = {kind for kind in TABLE if kind not in (H.SEND_REPLY, H.HELLO_REPLY)}
"""Requests that are answered 500 before the login, and how else would a broker be in error."""

for _reply in NOT_LOGGED_IN:
    if 500 in TABLE[_reply] and (_reply, 500) not in IMPOSSIBLE and (_reply, 500) not in SCENARIOS:
        provokes(_reply, 500)(partial(request_before_login, _reply - 1))


@pytest.mark.parametrize("case", sorted(SCENARIOS), ids=lambda case: f"{case[0].name}-{case[1]}")
def test_status(case: tuple[PacketType, int]) -> None:
    reply = SCENARIOS[case]()
    assert (reply.type, status(reply)) == case
    if case[1] >= 400:
        assert reply.properties["JMQReason"]


def test_every_status_has_scenario_or_reason() -> None:
    pairs = {(kind, status) for kind, statuses in TABLE.items() for status in statuses}
    assert set(SCENARIOS) | set(IMPOSSIBLE) == pairs
    assert not set(SCENARIOS) & set(IMPOSSIBLE)


def test_every_invalid_request_is_answered_with_status() -> None:
    """Requests without properties, without body or with invalid content are answered."""
    harness = Harness()
    harness.broker.destinations.declare(Address(Kind.QUEUE, "q"))
    for kind in range(10, 80):
        if kind in (H.START, H.REDELIVER, H.RESUME_FLOW, H.FLOW_PAUSED, H.GOODBYE):
            continue
        for properties in ({}, {"JMQDestination": 5, "JMQDestType": "x", "JMQSessionID": "y"}):
            for body in (b"", b"\xff" * 7, b"\xff" * 136):
                peer = harness.connect()
                number, data = peer.encode_request(kind, properties, body)
                peer.send_bytes(data)
                if kind == H.PING_REPLY:
                    continue
                [reply] = [p for p in peer.receive() if p.consumer_id == number]
                assert isinstance(status(reply), int)
                assert peer.transport.open
                peer.drop()
