"""Claims on client ids."""

from __future__ import annotations

import pytest

from sluicemq.model.access import Identity
from sluicemq.protocols.jmq.packets import PacketType, RejectedRequest, Status
from sluicemq.protocols.jmq.subscriptions import ClientIds, Sender, expand_client_id
from sluicemq.security.access import Access
from tests.protocols.jmq.harness import Harness, Peer

SET = PacketType.SET_CLIENTID

Way = tuple[bool, str]
ANNA = Identity("anna")
ALONE: Way = (False, "")
SHARED: Way = (True, "")
IN_A: Way = (True, "a")
IN_B: Way = (True, "b")


@pytest.mark.parametrize(
    ("first", "second", "allowed"),
    [
        (ALONE, ALONE, False),
        (ALONE, SHARED, False),
        (SHARED, ALONE, False),
        (SHARED, SHARED, True),
        (SHARED, IN_A, False),
        (IN_A, SHARED, True),
        (IN_A, IN_A, False),
        (IN_A, IN_B, True),
        (IN_A, ALONE, False),
        ((False, "a"), (False, "b"), False),  # without JMQShare the namespace is ignored
    ],
)
def test_client_id_of_two_connections(first: Way, second: Way, allowed: bool) -> None:
    ids, one, other = ClientIds(), Sender(), Sender()
    ids.assign(one, "x", ANNA, shared=first[0], namespace=first[1])
    if allowed:
        ids.assign(other, "x", ANNA, shared=second[0], namespace=second[1])
    else:
        with pytest.raises(RejectedRequest) as refused:
            ids.assign(other, "x", ANNA, shared=second[0], namespace=second[1])
        assert refused.value.status == Status.CONFLICT
        ids.release(one)
        ids.assign(other, "x", ANNA, shared=second[0], namespace=second[1])


def test_connection_has_at_most_one_client_id(harness: Harness) -> None:
    ids, one, other = harness.coordinator.client_ids, Sender(), Sender()
    ids.assign(one, "x", ANNA, shared=False, namespace="")
    ids.assign(one, "x", ANNA, shared=False, namespace="")
    ids.assign(one, "y", ANNA, shared=False, namespace="")
    ids.assign(other, "x", ANNA, shared=False, namespace="")
    with pytest.raises(RejectedRequest):
        ids.assign(one, "x", ANNA, shared=False, namespace="")
    with pytest.raises(RejectedRequest):
        ids.assign(
            other, "y", ANNA, shared=False, namespace=""
        )  # the refused one did not lose its own
    ids.release(one)
    ids.release(one)
    ids.assign(other, "y", ANNA, shared=False, namespace="")


def test_client_id_is_set_and_released(harness: Harness, peer: Peer) -> None:
    other = harness.connect()
    assert peer.request_status(SET, {"JMQClientID": "x"}) == Status.OK
    assert other.request_status(SET, {"JMQClientID": "x"}) == Status.CONFLICT
    assert peer.request_status(SET, {}) == Status.OK
    assert other.request_status(SET, {"JMQClientID": "x"}) == Status.OK
    other.drop()
    assert peer.request_status(SET, {"JMQClientID": "x", "JMQShare": True}) == Status.OK
    third = harness.connect()
    assert third.request_status(SET, {"JMQClientID": "x", "JMQShare": True}) == Status.OK


@pytest.mark.parametrize("bad", ["", "  ", "a${%%}b", "${u:x}y", "x" * 1025])
def test_malformed_client_ids_are_refused(peer: Peer, bad: str) -> None:
    assert peer.request_status(SET, {"JMQClientID": bad}) == Status.BAD_REQUEST


def test_client_id_properties_of_another_type_are_refused(peer: Peer) -> None:
    assert peer.request_status(SET, {"JMQClientID": 5}) == Status.BAD_REQUEST
    assert peer.request_status(SET, {"JMQClientID": "x", "JMQShare": 1}) == Status.BAD_REQUEST


def test_client_id_may_begin_with_user_name(harness: Harness) -> None:
    assert expand_client_id("${u}-1", "anna") == "anna-1"
    assert expand_client_id("a${u}", "anna") == "a${u}"
    anna = Access(Identity("anna", superuser=True))
    peer = harness.connect(access=anna)
    assert peer.request_status(SET, {"JMQClientID": "${u}-1"}) == Status.OK
    assert harness.connect().request_status(SET, {"JMQClientID": "anna-1"}) == Status.CONFLICT
