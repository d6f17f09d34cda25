"""XA branches, client ids and durable subscriptions belong to the user who created them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq.broker import Selector, compile_selector
from sluicemq.model.access import EVERYBODY, Identity
from sluicemq.model.destination import Address, Kind
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.packets import PacketType, Status, XaFlag
from sluicemq.security.access import Access
from tests.protocols.jmq.harness import DiskHarness, Harness, Peer, status, xid
from tests.support.sessions import RecordedAccess

H = PacketType
ENDINGS = (H.COMMIT_TRANSACTION, H.ROLLBACK_TRANSACTION)
ALL_RIGHTS = "*: produce consume browse"


def connect(harness: Harness, name: str = "", *permissions: str, client_id: str = "") -> Peer:
    """Connect as a user; without a name, as to a broker without users."""
    access = RecordedAccess(*permissions, name=name) if name else Access(EVERYBODY)
    return harness.connect(access=access, client_id=client_id)


def connect_superuser(harness: Harness) -> Peer:
    return harness.connect(access=Access(Identity("root", superuser=True)))


def step(peer: Peer, kind: PacketType, name: str = "x", flags: int = 0) -> int:
    return peer.request_status(kind, {"JMQXAFlags": flags}, xid(name))


def prepare(peer: Peer, name: str = "x", to: str = "out", acked: str = "") -> int:
    """Prepare a branch that sends a message to `to` and acks one of `acked`; return its number."""
    reply = peer.request(H.START_TRANSACTION, {"JMQXAFlags": 0}, xid(name), expect=Status.OK)
    number = reply.properties["JMQTransactionID"]
    assert isinstance(number, int)
    if to:
        peer.send(to, "sent", transaction_id=number)
    if acked:
        peer.consume(acked, peer.create_session())
        peer.send(acked, "taken")
        [message] = peer.delivered()
        peer.acknowledge(message, transaction=number)
    assert step(peer, H.END_TRANSACTION, name, XaFlag.SUCCESS) == Status.OK
    assert step(peer, H.PREPARE_TRANSACTION, name) == Status.OK
    return number


def recover_xids(peer: Peer) -> bytes:
    return peer.request(H.RECOVER_TRANSACTION, {"JMQXAFlags": int(XaFlag.STARTRSCAN)}).body


def take_snapshot(harness: DiskHarness) -> None:
    """Take a snapshot, so that the next start reads no earlier record."""
    harness.journal.seal()
    harness.run_event_loop()
    assert list(harness.directory.glob("**/*snapshot*"))


# --- branches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("permissions", [(), (ALL_RIGHTS,)])
def test_branches_of_another_user_are_404(harness: Harness, permissions: tuple[str, ...]) -> None:
    number = prepare(connect(harness, "anna", ALL_RIGHTS))
    other = connect(harness, "mallory", *permissions)
    assert recover_xids(other) == b""
    for flags in (XaFlag.JOIN, XaFlag.RESUME):
        assert step(other, H.START_TRANSACTION, flags=flags) == Status.NOT_FOUND
    for kind in (H.END_TRANSACTION, H.PREPARE_TRANSACTION, *ENDINGS, H.VERIFY_TRANSACTION):
        unknown_answer = other.request(kind, {}, xid("unknown"))
        reply = other.request(kind, {}, xid("x"))
        assert reply.properties == unknown_answer.properties
        assert status(reply) == Status.NOT_FOUND
    for kind in (H.RECOVER_TRANSACTION, H.VERIFY_TRANSACTION, *ENDINGS):
        properties = {"JMQTransactionID": Long(number)}
        assert other.request_status(kind, properties) == Status.NOT_FOUND
    assert step(other, H.START_TRANSACTION) == Status.ERROR  # there cannot be two
    assert harness.broker.transactions.prepared.keys() == {xid("x")}


def test_unprepared_branch_can_be_joined_by_its_user_only(harness: Harness) -> None:
    anna = connect(harness, "anna", ALL_RIGHTS)
    assert step(anna, H.START_TRANSACTION) == Status.OK
    other = connect(harness, "mallory", ALL_RIGHTS)
    assert step(other, H.START_TRANSACTION, flags=XaFlag.JOIN) == Status.NOT_FOUND
    assert step(other, H.END_TRANSACTION, flags=XaFlag.FAIL) == Status.NOT_FOUND
    reconnected = connect(harness, "anna")
    assert step(reconnected, H.START_TRANSACTION, flags=XaFlag.JOIN) == Status.OK


def test_outcome_of_branch_is_visible_to_its_user_only(harness: Harness) -> None:
    anna = connect(harness, "anna", ALL_RIGHTS)
    prepare(anna)
    assert step(anna, H.COMMIT_TRANSACTION) == Status.OK
    other = connect(harness, "mallory", ALL_RIGHTS)
    assert step(other, H.COMMIT_TRANSACTION) == Status.NOT_FOUND
    assert step(other, H.ROLLBACK_TRANSACTION) == Status.NOT_FOUND
    assert step(anna, H.COMMIT_TRANSACTION) == Status.OK


@pytest.mark.parametrize("superuser", [False, True])
def test_owner_and_superusers_end_branch_after_restart(tmp_path: Path, superuser: bool) -> None:
    first_harness = DiskHarness(tmp_path)
    prepare(connect(first_harness, "anna", ALL_RIGHTS))
    harness = first_harness.restart()
    mallory = connect(harness, "mallory", ALL_RIGHTS)
    assert recover_xids(mallory) == b""
    assert step(mallory, H.COMMIT_TRANSACTION) == Status.NOT_FOUND
    peer = connect_superuser(harness) if superuser else connect(harness, "anna")
    assert recover_xids(peer) == xid("x")
    assert step(peer, H.COMMIT_TRANSACTION) == Status.OK
    assert harness.bodies("out") == [b"sent"]


@pytest.mark.parametrize("state", ["live", "recovered", "snapshot"])
@pytest.mark.parametrize(
    ("permissions", "may"),
    [
        ((), False),
        (("out: produce",), False),
        (("in: consume",), False),
        (("out: consume", "in: produce"), False),
        (("out: produce", "in: consume"), True),
    ],
)
def test_branch_without_owner_requires_permissions_for_all_its_destinations(
    tmp_path: Path, permissions: tuple[str, ...], may: bool, state: str
) -> None:
    harness = DiskHarness(tmp_path)
    prepare(connect(harness), acked="in")
    if state == "snapshot":
        take_snapshot(harness)
    if state != "live":
        harness = harness.restart()
    peer = connect(harness, "anna", *permissions)
    assert recover_xids(peer) == (xid("x") if may else b"")
    expected = Status.OK if may else Status.NOT_FOUND
    assert step(peer, H.COMMIT_TRANSACTION) == expected
    assert harness.bodies("out") == ([b"sent"] if may else [])


def test_user_who_ends_branch_without_owner_owns_its_outcome(harness: Harness) -> None:
    prepare(connect(harness))
    anna = connect(harness, "anna", ALL_RIGHTS)
    assert step(anna, H.ROLLBACK_TRANSACTION) == Status.OK
    assert step(connect(harness, "bert", ALL_RIGHTS), H.ROLLBACK_TRANSACTION) == Status.NOT_FOUND
    assert step(anna, H.ROLLBACK_TRANSACTION) == Status.OK


def test_empty_branch_without_owner_is_for_superusers(harness: Harness) -> None:
    prepare(connect(harness), to="")
    assert recover_xids(connect(harness, "anna", ALL_RIGHTS)) == b""
    assert recover_xids(connect_superuser(harness)) == xid("x")


def test_connection_that_joins_branch_without_owner_claims_it(harness: Harness) -> None:
    former_owner = connect(harness)
    properties = {"JMQXAFlags": 0, "JMQSessionLess": True}
    reply = former_owner.request(H.START_TRANSACTION, properties, xid("x"), expect=Status.OK)
    number = reply.properties["JMQTransactionID"]
    former_owner.send("out", "sent", transaction_id=number)
    former_owner.drop()
    anna = connect(harness, "anna", "out: produce")
    assert step(anna, H.START_TRANSACTION, flags=XaFlag.JOIN) == Status.OK
    bert = connect(harness, "bert", "out: produce")
    assert step(bert, H.START_TRANSACTION, flags=XaFlag.JOIN) == Status.NOT_FOUND


def test_branch_without_connection_belongs_to_its_owner(harness: Harness) -> None:
    anna = connect(harness, "anna", ALL_RIGHTS)
    anna.request(H.START_TRANSACTION, {"JMQXAFlags": 0}, xid("x"), expect=Status.OK)
    assert step(anna, H.END_TRANSACTION, flags=XaFlag.SUCCESS) == Status.OK
    anna.drop()
    bert = connect(harness, "bert", ALL_RIGHTS)
    for kind in (H.PREPARE_TRANSACTION, H.ROLLBACK_TRANSACTION):
        assert step(bert, kind) == Status.NOT_FOUND
    assert step(connect(harness, "anna", ALL_RIGHTS), H.PREPARE_TRANSACTION) == Status.OK
    assert step(connect_superuser(harness), H.COMMIT_TRANSACTION) == Status.OK


def test_local_transaction_without_connection_belongs_to_its_owner(harness: Harness) -> None:
    anna = connect(harness, "anna", ALL_RIGHTS)
    reply = anna.request(H.START_TRANSACTION, {"JMQSessionLess": True}, expect=Status.OK)
    number = reply.properties["JMQTransactionID"]
    assert isinstance(number, int)
    anna.send("q", "a", transaction_id=number)
    anna.drop()
    bert = connect(harness, "bert", ALL_RIGHTS)
    bert.send("q", "b", transaction_id=number, expect=Status.GONE)
    bert.commit(number, expect=Status.NOT_FOUND)
    reconnected = connect(harness, "anna", ALL_RIGHTS)
    reconnected.commit(number)
    assert harness.bodies("q") == [b"a"]


def test_prepared_branch_skips_messages_to_deleted_reply_queues(
    tmp_path: Path,
) -> None:
    harness = DiskHarness(tmp_path)
    reply = "temporary_destination://queue/x/1/1"
    for name in ("live", "restarted"):
        asker = connect(harness)
        asker.create(reply, temporary=True)
        peer = connect(harness)
        prepare(peer, name, to=reply)
        asker.drop()
        if name == "restarted":
            harness = harness.restart()
            peer = connect(harness)
        assert step(peer, H.COMMIT_TRANSACTION, name) == Status.OK
        assert reply not in {address.name for address in harness.broker.destinations}


# --- client ids and durable subscriptions --------------------------------------------------------


def set_client_id(peer: Peer, client_id: str = "c", **how: object) -> int:
    return peer.request_status(H.SET_CLIENTID, {"JMQClientID": client_id, **how})


def subscribe(peer: Peer, topic: str = "t", name: str = "d", **how: object) -> int:
    """Add and close a durable consumer, and return the status of ADD_CONSUMER."""
    properties = {
        **peer.destination_properties(topic, True),
        "JMQDurableName": name,
        "JMQSize": 10,
        **how,
    }
    reply = peer.request(
        H.ADD_CONSUMER, {"JMQSessionID": Long(peer.create_session()), **properties}
    )
    consumer = reply.properties.get("JMQConsumerID")
    if isinstance(consumer, int):
        peer.close_consumer(consumer)
    result = status(reply)
    assert isinstance(result, int)
    return result


def test_client_id_of_offline_user_cannot_be_claimed(tmp_path: Path) -> None:
    harness = DiskHarness(tmp_path)
    anna = connect(harness, "anna", ALL_RIGHTS, client_id="c")
    assert subscribe(anna) == Status.OK
    anna.send("t", "hers", topic=True)
    anna.drop()
    for current in (harness, harness.restart()):
        mallory = connect(current, "mallory", ALL_RIGHTS)
        for shared in (False, True):
            assert set_client_id(mallory, JMQShare=shared) == Status.CONFLICT
        unsubscribed = mallory.request_status(
            H.DELETE_CONSUMER, {"JMQDurableName": "d", "JMQClientID": "c"}
        )
        assert unsubscribed == Status.FORBIDDEN
        assert set_client_id(mallory, "another") == Status.OK
        harness = current
    anna = connect(harness, "anna", ALL_RIGHTS, client_id="c")
    anna.consume("t", anna.create_session(), topic=True, JMQDurableName="d")
    assert anna.texts() == ["hers"]


def test_client_id_of_offline_user_is_reported_as_in_use(harness: Harness) -> None:
    anna = connect(harness, "anna", ALL_RIGHTS, client_id="c")
    assert subscribe(anna) == Status.OK
    mallory = connect(harness, "mallory", ALL_RIGHTS)
    online = mallory.request(H.SET_CLIENTID, {"JMQClientID": "c"}).properties
    anna.drop()
    assert mallory.request(H.SET_CLIENTID, {"JMQClientID": "c"}).properties == online


def test_client_id_without_durable_subscriptions_can_be_claimed(harness: Harness) -> None:
    anna = connect(harness, "anna", ALL_RIGHTS, client_id="c")
    assert subscribe(anna) == Status.OK
    anna.request(H.DELETE_CONSUMER, {"JMQDurableName": "d"}, expect=Status.OK)
    anna.drop()
    assert set_client_id(connect(harness, "bert")) == Status.OK


def test_client_id_is_shared_by_connections_of_one_user(harness: Harness) -> None:
    assert set_client_id(connect(harness, "anna"), JMQShare=True) == Status.OK
    assert set_client_id(connect(harness, "anna"), JMQShare=True) == Status.OK
    assert set_client_id(connect(harness, "bert"), JMQShare=True) == Status.CONFLICT
    assert set_client_id(connect_superuser(harness), JMQShare=True) == Status.OK


def test_superuser_may_use_any_client_id_without_changing_its_owner(harness: Harness) -> None:
    anna = connect(harness, "anna", ALL_RIGHTS, client_id="c")
    assert subscribe(anna) == Status.OK
    anna.drop()
    root = connect_superuser(harness)
    assert set_client_id(root) == Status.OK
    assert subscribe(root, "t2") == Status.OK  # replaces it
    assert subscribe(root, "t", "another") == Status.OK
    owners = {subscription.owner for subscription in harness.broker.durable_subscriptions.values()}
    assert owners == {"anna"}
    root.drop()
    assert set_client_id(connect(harness, "anna")) == Status.OK


def test_durable_subscription_without_client_id_has_owner(harness: Harness) -> None:
    options = {"JMQJMSShare": True, "JMQSharedSubscriptionName": "d"}
    anna = connect(harness, "anna", ALL_RIGHTS)
    assert subscribe(anna, **options) == Status.OK
    mallory = connect(harness, "mallory", ALL_RIGHTS)
    for topic in ("t", "t2", "t.*"):
        assert subscribe(mallory, topic, **options) == Status.CONFLICT
    unsubscribed = mallory.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "d"})
    assert unsubscribed == Status.FORBIDDEN
    [durable] = harness.broker.durable_subscriptions.values()
    assert (durable.owner, durable.destination.name) == ("anna", "t")
    assert subscribe(connect(harness, "anna", ALL_RIGHTS), "t2", **options) == Status.OK


def test_durable_wildcard_subscription_without_topics_has_owner(harness: Harness) -> None:
    options = {"JMQJMSShare": True, "JMQSharedSubscriptionName": "d"}
    assert subscribe(connect(harness, "anna", ALL_RIGHTS), "t.*", **options) == Status.OK
    mallory = connect(harness, "mallory", ALL_RIGHTS)
    assert subscribe(mallory, "t.*", **options) == Status.CONFLICT
    assert mallory.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "d"}) == Status.FORBIDDEN
    connect(harness).send("t.new", "x", topic=True)
    subscriptions = list(harness.broker.durable_subscriptions.values())
    owners = {item.destination.name: item.owner for item in subscriptions}
    assert owners == {"mq.sys.wildcards": "anna", "t.new": "anna"}


def test_shared_subscription_can_be_joined_by_its_user_only(harness: Harness) -> None:
    options = {"JMQJMSShare": True, "JMQSharedSubscriptionName": "s"}
    anna = connect(harness, "anna", ALL_RIGHTS)
    anna.consume("t", anna.create_session(), topic=True, **options)
    mallory = connect(harness, "mallory", ALL_RIGHTS)
    properties = {
        **mallory.destination_properties("t", True),
        "JMQSessionID": Long(mallory.create_session()),
        **options,
    }
    assert mallory.request_status(H.ADD_CONSUMER, properties) == Status.CONFLICT


def test_unowned_resources_are_claimed_with_consume_permission(tmp_path: Path) -> None:
    harness = DiskHarness(tmp_path)
    first_peer = connect(harness, client_id="c")
    assert subscribe(first_peer, "t", "d") == Status.OK
    assert subscribe(first_peer, "t2", "d2") == Status.OK
    harness = harness.restart()
    stranger = connect(harness, "stranger", "t: produce browse")
    assert set_client_id(stranger) == Status.CONFLICT
    result = stranger.request_status(H.DELETE_CONSUMER, {"JMQDurableName": "d", "JMQClientID": "c"})
    assert result == Status.FORBIDDEN
    assert set_client_id(connect(harness, "anna", "t: consume")) == Status.OK
    harness.run_event_loop()
    harness = harness.restart()
    owners = {
        subscription.name: subscription.owner
        for subscription in harness.broker.durable_subscriptions.values()
    }
    assert owners == {"durable:c/d": "anna", "durable:c/d2": ""}
    assert set_client_id(connect(harness, "bert", ALL_RIGHTS)) == Status.CONFLICT
    take_snapshot(harness)
    harness = harness.restart()
    assert set_client_id(connect(harness, "bert", ALL_RIGHTS)) == Status.CONFLICT
    assert set_client_id(connect(harness, "anna", "t: consume")) == Status.OK


def test_ownership_does_not_apply_without_users(harness: Harness) -> None:
    first, second = connect(harness, client_id="c"), connect(harness)
    assert subscribe(first) == Status.OK
    prepare(first)
    assert recover_xids(second) == xid("x")
    first.drop()
    assert set_client_id(second) == Status.OK
    assert subscribe(second, "t2") == Status.OK
    assert step(second, H.COMMIT_TRANSACTION) == Status.OK
    assert {
        subscription.owner for subscription in harness.broker.durable_subscriptions.values()
    } == {""}


# --- temporary destinations ----------------------------------------------------------------------

NAME = "temporary_destination://queue/x/1/1"


def test_anyone_may_send_to_temporary_queue_but_only_its_owner_may_browse(
    harness: Harness,
) -> None:
    anna = connect(harness, "anna")
    assert anna.create(NAME, temporary=True) == Status.OK
    for other in (connect(harness, "anna"), connect(harness, "bert", ALL_RIGHTS)):
        assert other.request(H.ADD_PRODUCER, other.destination_properties(NAME), expect=Status.OK)
        other.send(NAME, "reply")
        unknown_properties = other.request(
            H.VERIFY_DESTINATION, other.destination_properties(NAME + "1")
        ).properties
        for kind in (H.VERIFY_DESTINATION, H.BROWSE):
            for selector in ({}, {"JMQSelector": "x ="}):
                reply = other.request(kind, {**other.destination_properties(NAME), **selector})
                assert status(reply) == Status.NOT_FOUND
                assert reply.properties.keys() == unknown_properties.keys()
                assert reply.properties["JMQCanCreate"] is False
        metrics = {**other.destination_properties(NAME), "JMQMetrics": True}
        assert other.request_status(H.BROWSE, metrics) == Status.NOT_FOUND
        assert (
            other.request_status(H.ADD_CONSUMER, other.destination_properties(NAME))
            == Status.NOT_ALLOWED
        )
        assert (
            other.request_status(H.DESTROY_DESTINATION, other.destination_properties(NAME))
            == Status.FORBIDDEN
        )
    verified = anna.request(
        H.VERIFY_DESTINATION, anna.destination_properties(NAME), expect=Status.OK
    )
    assert verified.properties["JMQDestType"] == 17
    assert (
        len(anna.request(H.BROWSE, anna.destination_properties(NAME), expect=Status.OK).body)
        == 2 * 32
    )
    anna.consume(NAME, anna.create_session())
    assert anna.texts() == ["reply", "reply"]


def test_temporary_destination_of_another_name_requires_create_permission(
    harness: Harness,
) -> None:
    anna = connect(harness, "anna", "*: produce consume browse")
    assert anna.create("mine", temporary=True) == Status.FORBIDDEN
    bert = connect(harness, "bert", "mine: create")
    assert bert.create("mine", temporary=True) == Status.OK
    assert bert.create("t.*", True, temporary=True) == Status.ERROR
    assert bert.create("mq.x", temporary=True) == Status.ERROR
    anna.send("mine", "reply")
    for kind in (H.VERIFY_DESTINATION, H.BROWSE):
        assert anna.request_status(kind, anna.destination_properties("mine")) == Status.NOT_FOUND
    assert (
        anna.request_status(H.ADD_CONSUMER, anna.destination_properties("mine"))
        == Status.NOT_ALLOWED
    )
    bert.consume("mine", bert.create_session())
    assert bert.texts() == ["reply"]


def test_sending_to_reply_address_of_another_protocol_requires_no_permission(
    harness: Harness,
) -> None:
    harness.broker.destinations.declare(Address(Kind.QUEUE, "answers"), owner=object())
    worker = connect(harness, "worker")
    assert worker.create("answers") == Status.OK
    assert (
        worker.request_status(H.ADD_PRODUCER, worker.destination_properties("answers")) == Status.OK
    )
    worker.send("answers", "reply")
    assert (
        worker.request_status(H.ADD_CONSUMER, worker.destination_properties("answers"))
        == Status.FORBIDDEN
    )
    assert (
        connect(harness).request_status(H.ADD_CONSUMER, worker.destination_properties("answers"))
        == Status.NOT_ALLOWED
    )


# --- selectors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "topic"),
    [
        (H.ADD_CONSUMER, False),
        (H.ADD_CONSUMER, True),
        (H.BROWSE, False),
        (H.VERIFY_DESTINATION, False),
        (H.VERIFY_DESTINATION, True),
    ],
)
def test_selector_is_compiled_only_for_permitted_users(
    harness: Harness, kind: PacketType, topic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def recording(text: str) -> Selector:
        compiled.append(text)
        return compile_selector(text)

    monkeypatch.setattr(harness.broker, "compile_selector", recording)
    for name in ("q.>", "q.*") if topic else ("q",):
        properties = {
            **connect(harness).destination_properties(name, topic),
            "JMQSelector": "x = 1",
        }
        assert connect(harness, "mallory").request_status(kind, properties) == Status.FORBIDDEN
    assert compiled == []
    if not topic:
        connect(harness, "anna", "q: consume browse").request_status(kind, properties)
        assert compiled == ["x = 1"]
