"""Subscriptions: who gets what, how much at a time, and what becomes of it."""

from __future__ import annotations

import gc
import json

import pytest

from sluicemq.broker import Delivery
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import BodyKind, Message, Origin
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.connection import SessionOptions
from sluicemq.protocols.vibemq.wire import Frame
from tests.protocols.vibemq.harness import Harness, Peer

SECONDS = 1000


@pytest.fixture
def harness() -> Harness:
    return Harness()


def windowed(harness: Harness, window: int) -> Peer:
    return harness.connect(SessionOptions(window=window))


# --- subscribing -----------------------------------------------------------------------------


def test_the_answer_comes_before_the_backlog(harness: Harness) -> None:
    peer = harness.connect()
    peer.publish("q", "1", "2")
    first, *backlog = peer.send(Frame(wire.SUBSCRIBE, "s", "q"))
    assert first == Frame(
        wire.SUBSCRIBE_ACK, "s", "q", headers={"queueName": "q", "subscriptionId": "s"}
    )
    assert backlog == [
        Frame(
            wire.DELIVER,
            message_id,
            "q",
            json.dumps(message_id).encode(),
            {"deliveryAttempts": "1"},
        )
        for message_id in ("1", "2")
    ]


def test_a_second_subscription_to_a_queue_is_answered_and_changes_nothing(
    harness: Harness,
) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    peer.subscribe("q")
    peer.publish("q", "1")
    assert [frame.id for frame in peer.more] == ["1"]
    assert harness.destination("q").consumers == 1


def test_unsubscribe_is_always_answered_and_gives_everything_back(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    answer = peer.ask(wire.UNSUBSCRIBE, "q")
    assert answer == Frame(wire.UNSUBSCRIBE_ACK, answer.id, "q", headers={"queueName": "q"})
    peer.publish("q", "1", "2", "3")
    assert peer.subscribe("q") == ["1", "2", "3"]
    peer.acknowledge("2")
    peer.ask(wire.UNSUBSCRIBE, "q")
    assert other.subscribe("q") == ["1", "3"]
    # acks of requeued messages are ignored
    peer.acknowledge("1", "3")
    assert len(harness.bodies("q")) == 2


def test_headers_of_the_publisher_come_unchanged_with_the_attempt_added(
    harness: Harness,
) -> None:
    peer = harness.connect()
    sent = {"priority": "hIgh", "x": "1", "correlationId": "c", "timestamp": "t"}
    peer.publish("q", "m", deliveryAttempts="77", **sent)
    peer.subscribe("q")
    [frame] = peer.more
    assert list(frame.headers.items()) == [*sent.items(), ("deliveryAttempts", "1")]


def test_no_payload_is_delivered_as_none(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(Frame(wire.PUBLISH, "m", "q"))
    peer.subscribe("q")
    assert peer.more[0].payload == b""


# --- acknowledging ---------------------------------------------------------------------------


def test_by_the_header_of_the_protocol_page_or_by_the_id_of_the_net_client(
    harness: Harness,
) -> None:
    peer = harness.connect()
    peer.publish("q", "1", "2", "3")
    peer.subscribe("q")
    assert peer.send(Frame(wire.ACK, "3", headers={"messageId": "1"}), Frame(wire.ACK, "2")) == []
    assert harness.bodies("q") == [b'"3"']


def test_acks_of_unknown_and_foreign_ids_are_ignored(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    peer.publish("q", "1")
    peer.subscribe("q")
    assert other.acknowledge("1", "2") == []
    other.subscribe("q")
    assert other.acknowledge("1") == []
    assert len(harness.bodies("q")) == 1
    assert peer.acknowledge("1", "1") == []
    assert harness.bodies("q") == []


def test_an_ack_of_a_repeated_id_acks_the_oldest_message(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(*(Frame(wire.PUBLISH, "m", queue, b"%d" % n) for n, queue in enumerate("abab")))
    peer.subscribe("b")
    peer.subscribe("a")
    for counts in ((2, 1), (2, 0), (1, 0), (0, 0)):
        peer.acknowledge("m")
        assert (len(harness.bodies("a")), len(harness.bodies("b"))) == counts


def test_ack_of_a_repeated_id_belongs_to_the_message_that_has_ended(harness: Harness) -> None:
    peer = harness.connect()
    peer.publish("q", "m", "m", "n")
    peer.subscribe("q")
    queue = harness.destination("q").queue
    harness.broker.acknowledge_any(queue, next(queue.browse()).sequence)
    peer.acknowledge("m", "n")
    assert harness.bodies("q") == [b'"m"']
    peer.acknowledge("m")
    assert harness.bodies("q") == []


def test_ended_message_that_the_client_has_passed_does_not_hide_the_next_of_its_id(
    harness: Harness,
) -> None:
    peer = harness.connect()
    peer.publish("q", "m", "n", "m")
    peer.subscribe("q")
    queue = harness.destination("q").queue
    harness.broker.acknowledge_any(queue, next(queue.browse()).sequence)
    peer.acknowledge("n", "m")
    assert harness.bodies("q") == []


def test_late_ack_counts_although_another_connection_holds_the_message(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    peer.publish("q", "m")
    assert peer.subscribe("q") == ["m"]
    other.subscribe("q")
    queue = harness.destination("q").queue
    delivery = next(queue.browse())
    harness.broker.time_out(next(iter(queue.consumers)), [delivery.sequence])
    harness.run_event_loop(2 * SECONDS)
    assert other.ids() == ["m"]
    peer.acknowledge("m")
    assert harness.bodies("q") == []
    assert harness.destination("q").unacked == 0
    assert other.acknowledge("m") == []


def test_ids_of_deliveries_that_ended_without_notice_are_forgotten_in_the_end(
    harness: Harness,
) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    for round_number in range(60):
        peer.publish("q", *(f"{round_number}-{n}" for n in range(100)))
        harness.broker.operations.purge(harness.destination("q"), True)
    gc.collect()
    assert sum(isinstance(item, Delivery) for item in gc.get_objects()) < 1200


# --- the window ------------------------------------------------------------------------------


def test_no_more_than_the_window_is_unacknowledged(harness: Harness) -> None:
    peer = windowed(harness, 2)
    peer.publish("q", "1", "2", "3", "4")
    assert peer.subscribe("q") == ["1", "2"]
    assert [frame.id for frame in peer.acknowledge("2")] == ["3"]
    assert [frame.id for frame in peer.acknowledge("2", "9")] == []
    assert [frame.id for frame in peer.acknowledge("1")] == ["4"]


def test_each_subscription_has_its_own_window(harness: Harness) -> None:
    peer = windowed(harness, 1)
    peer.publish("a", "1", "2")
    peer.publish("b", "3")
    assert peer.subscribe("a") == ["1"]
    assert peer.subscribe("b") == ["3"]


def test_the_window_is_in_bytes_too(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(window_bytes=2500))
    peer.subscribe("q")
    body = b'"%b"' % (b"x" * 998)
    other = harness.connect()
    for n in range(4):
        other.send(Frame(wire.PUBLISH, str(n), "q", body))
    assert peer.ids() == ["0", "1", "2"]
    assert [frame.id for frame in peer.acknowledge("1")] == ["3"]
    other.send(Frame(wire.PUBLISH, "4", "q", body))
    assert peer.ids() == []
    assert [frame.id for frame in peer.acknowledge("3")] == ["4"]


def test_a_message_removed_elsewhere_frees_the_window_too(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(window_bytes=1000))
    peer.subscribe("q")
    body = b'"%b"' % (b"x" * 998)
    other = harness.connect()
    for n in range(2):
        other.send(Frame(wire.PUBLISH, str(n), "q", body))
    assert peer.ids() == ["0"]
    queue = harness.destination("q").queue
    [delivery] = [d for d in queue.browse() if d.consumer is not None]
    harness.broker.acknowledge_any(queue, delivery.sequence)
    harness.run_event_loop(60 * SECONDS)  # looks after itself
    assert peer.ids() == ["1"]


def test_a_congested_connection_is_given_nothing_and_others_are_served(harness: Harness) -> None:
    slow, quick = harness.connect(), harness.connect()
    slow.subscribe("q")
    slow.stop_reading()
    slow.subscribe("late")
    quick.subscribe("q")
    quick.publish("q", "1", "2")
    quick.publish("late", "3")
    assert [frame.id for frame in quick.more] == []
    assert slow.ids() == []
    quick.acknowledge("1", "2")
    quick.drop()
    slow.read_again()
    harness.run_event_loop()
    assert slow.ids() == ["3"]


def test_relief_does_not_overrule_the_window_in_bytes(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(window_bytes=10))
    peer.publish("q", "0123456789", "1")
    assert peer.subscribe("q") == ["0123456789", "1"]
    peer.stop_reading()
    peer.read_again()
    harness.connect().publish("q", "2")
    assert peer.ids() == []
    peer.stop_reading()
    assert peer.acknowledge("0123456789") == []
    assert peer.acknowledge("1") == []
    peer.read_again()
    harness.run_event_loop()
    assert peer.ids() == ["2"]


# --- time ------------------------------------------------------------------------------------


def test_unacked_messages_are_redelivered_after_the_ack_timeout(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", enableDeadLetterQueue=True)
    peer.subscribe("q")
    peer.publish("q", "m")
    assert peer.ids() == []
    for attempt in (2, 3):
        harness.run_event_loop(30 * SECONDS - 1)
        assert peer.frames() == []
        harness.run_event_loop(1)
        [frame] = peer.frames()
        assert (frame.id, frame.headers["deliveryAttempts"]) == ("m", str(attempt))
    harness.run_event_loop(30 * SECONDS)
    assert harness.bodies("q") == []
    assert peer.subscribe("q.dlq") == ["m"]
    headers = peer.more[0].headers
    assert headers["deadLetterReason"] == "MaxRetriesExceeded"
    assert headers["deliveryAttempts"] == "3"


def test_without_a_dead_letter_queue_it_is_gone_after_its_attempts(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", maxRetryAttempts=1)
    peer.subscribe("q")
    peer.publish("q", "m")
    harness.run_event_loop(30 * SECONDS)
    assert harness.bodies("q") == []
    assert harness.find("q.dlq") is None


def test_a_queue_may_have_a_time_of_its_own_and_a_listener_none(harness: Harness) -> None:
    harness.limit("own", DestinationSettings(ack_timeout=500))
    peer = harness.connect(SessionOptions(ack_timeout=0))
    peer.publish("own", "1")
    peer.publish("q", "2")
    peer.subscribe("own")
    peer.subscribe("q")
    harness.run_event_loop(500)
    assert peer.ids() == ["1"]
    harness.run_event_loop(10**9)
    assert "2" not in [frame.id for frame in peer.frames()]


def test_the_time_of_a_message_begins_when_those_before_it_are_done(harness: Harness) -> None:
    """A hundred messages are sent at once; each takes the client 20 s."""
    peer = harness.connect()
    peer.publish("q", *(str(n) for n in range(100)))
    assert len(peer.subscribe("q")) == 100
    for n in range(100):
        harness.run_event_loop(20 * SECONDS)
        assert peer.acknowledge(str(n)) == []
    assert harness.bodies("q") == []
    assert harness.destination("q").statistics.redelivered == 0


def test_the_time_of_a_message_does_not_begin_before_it_is_sent(harness: Harness) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    peer.publish("q", "1")
    harness.run_event_loop(SECONDS)
    peer.acknowledge("1")
    harness.run_event_loop(24 * SECONDS)
    peer.publish("q", "2")
    peer.frames()
    harness.run_event_loop(30 * SECONDS - 1)
    assert peer.ids() == []
    harness.run_event_loop(1)
    assert peer.ids() == ["2"]


def test_only_the_message_that_is_being_handled_runs_out_of_time(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    peer.publish("q", "1", "2", "3")
    peer.subscribe("q")
    harness.run_event_loop(30 * SECONDS)
    [frame] = peer.deliveries()
    assert (frame.id, frame.headers["deliveryAttempts"]) == ("1", "2")
    peer.drop()
    other.subscribe("q")
    assert [frame.headers["deliveryAttempts"] for frame in other.more] == ["3", "2", "2"]


def test_what_was_passed_over_runs_out_of_time_by_itself(harness: Harness) -> None:
    """The handler failed for 1 and 2, and succeeded with 3, which was sent later."""
    peer = harness.connect()
    peer.subscribe("q")
    peer.publish("q", "1", "2")
    harness.run_event_loop(10 * SECONDS)
    peer.publish("q", "3", "4")
    peer.acknowledge("3")
    harness.run_event_loop(20 * SECONDS)
    assert peer.ids() == ["1", "2"]
    assert harness.destination("q").unacked == 3


def test_a_handler_that_always_fails_gets_the_rest_as_time_passes(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", maxRetryAttempts=2)
    peer.publish("q", "1", "2", "3")
    peer.subscribe("q")
    ids: list[str] = []
    for _ in range(400):
        harness.run_event_loop(SECONDS)
        ids += peer.ids()
    assert sorted(ids) == ["1", "2", "3"]
    assert harness.bodies("q") == []


# --- the end of a connection -----------------------------------------------------------------


def test_a_lost_connection_gives_back_in_order_to_the_head_at_once(harness: Harness) -> None:
    lost, peer = harness.connect(), harness.connect()
    lost.publish("q", "1", "2", "3")
    lost.subscribe("q")
    peer.publish("q", "4")
    lost.frames()
    lost.drop()
    assert peer.subscribe("q") == ["1", "2", "3", "4"]
    assert [frame.headers["deliveryAttempts"] for frame in peer.more] == ["2", "2", "2", "2"]


def test_a_client_that_dies_of_a_message_does_not_take_the_others_along(
    harness: Harness,
) -> None:
    harness.connect().publish("q", "poison", "2", "3")
    for attempt in range(3):
        victim = harness.connect()
        assert victim.subscribe("q") == ["poison", "2", "3"], attempt
        victim.drop()
    peer = harness.connect()
    assert peer.subscribe("q") == ["2", "3"]
    # they have one attempt left, and that is one
    peer.drop()
    assert harness.connect().subscribe("q") == ["3"]


def test_what_was_begun_before_the_end_counts_as_tried(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", maxRetryAttempts=1)
    peer.subscribe("q")
    peer.publish("q", "failed")
    harness.run_event_loop(1)
    peer.publish("q", "done", "begun", "queued")
    peer.acknowledge("done")
    peer.drop()
    assert harness.connect().subscribe("q") == ["queued"]


def test_unsubscribing_counts_no_attempt_of_messages_that_the_client_has_not_begun(
    harness: Harness,
) -> None:
    peer = harness.connect()
    peer.create("q", maxRetryAttempts=2)
    peer.publish("q", "done", "begun", "queued")
    peer.subscribe("q")
    peer.acknowledge("done")
    peer.ask(wire.UNSUBSCRIBE, "q")
    other = harness.connect()
    assert other.subscribe("q") == ["begun", "queued"]
    assert [frame.headers["deliveryAttempts"] for frame in other.more] == ["2", "1"]


def test_a_client_that_unsubscribes_with_its_last_acknowledgement_has_begun_nothing(
    harness: Harness,
) -> None:
    publisher = harness.connect()
    publisher.create("q", maxRetryAttempts=1)
    publisher.publish("q", "1", "2", "3")
    peer = harness.connect()
    peer.subscribe("q")
    [answer] = peer.send(Frame(wire.ACK, "1"), Frame(wire.UNSUBSCRIBE, "u", "q"))
    assert answer.type == wire.UNSUBSCRIBE_ACK
    other = harness.connect()
    assert other.subscribe("q") == ["2", "3"]
    assert [frame.headers["deliveryAttempts"] for frame in other.more] == ["1", "1"]


# --- modes -----------------------------------------------------------------------------------


def test_round_robin_is_cyclic_and_knows_no_priorities(harness: Harness) -> None:
    publisher, *peers = [harness.connect() for _ in range(4)]
    for peer in peers:
        peer.subscribe("q")
    for n in range(6):
        publisher.publish("q", str(n), priority="critical" if n % 2 else "low")
    assert [peer.ids() for peer in peers] == [["0", "3"], ["1", "4"], ["2", "5"]]


def test_arrival_is_the_only_order_but_in_mode_3(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("p", mode=3)
    peer.create("q", mode=0)
    for queue in "pq":
        for n, priority in enumerate(("Low", "Critical", "nonsense", "", "High", "3", "Normal")):
            peer.publish(queue, f"{n}", **({"priority": priority} if priority else {}))
    assert peer.subscribe("q") == ["0", "1", "2", "3", "4", "5", "6"]
    assert peer.subscribe("p") == ["1", "5", "4", "2", "3", "6", "0"]


def test_fan_out_gives_each_a_copy_and_waits_for_each(harness: Harness) -> None:
    publisher, first, second = (harness.connect() for _ in range(3))
    publisher.create("f", mode="FanOutWithAck")
    first.subscribe("f")
    second.subscribe("f")
    publisher.publish("f", "m")
    assert first.ids() == second.ids() == ["m"]
    first.acknowledge("m")
    assert harness.destination("f").unacked == 1
    harness.run_event_loop(30 * SECONDS)
    assert first.ids() == []
    assert [frame.headers["deliveryAttempts"] for frame in second.deliveries()] == ["2"]
    second.acknowledge("m")
    assert harness.destination("f").unacked == 0


@pytest.mark.parametrize("mode", [1, 2])
def test_fan_out_keeps_untaken_messages_for_the_first_subscriber(
    harness: Harness, mode: int
) -> None:
    publisher, first, second = (harness.connect() for _ in range(3))
    publisher.create("f", mode=mode, maxQueueSize=2)
    publisher.publish("f", "1", "2", "3")
    assert first.subscribe("f") == ["2", "3"]
    assert second.subscribe("f") == []
    publisher.publish("f", "4")
    assert first.ids() == second.ids() == ["4"]
    first.drop()
    second.drop()
    publisher.publish("f", "5")
    # with acknowledgements, the unacked messages of the last consumer stay
    assert harness.connect().subscribe("f") == (["4", "5"] if mode == 1 else ["5"])


def test_fan_out_without_acknowledgement_ends_with_the_sending(harness: Harness) -> None:
    publisher, peer = harness.connect(), harness.connect()
    publisher.create("f", mode=2)
    peer.subscribe("f")
    publisher.publish("f", "1")
    assert peer.ids() == ["1"]
    assert harness.destination("f").unacked == 0
    peer.transport.stalled = True
    publisher.publish("f", "2")
    assert harness.destination("f").unacked == 1
    peer.transport.stalled = False
    harness.run_event_loop()
    assert harness.destination("f").unacked == 0
    harness.run_event_loop(100 * SECONDS)
    assert peer.ids() == ["2"]
    peer.acknowledge("1", "2")


def test_without_acknowledgement_a_reader_that_stops_is_bounded(harness: Harness) -> None:
    publisher, peer = harness.connect(), harness.connect()
    publisher.create("f", mode=2)
    peer.subscribe("f")
    peer.transport.stalled = True
    for n in range(3):
        publisher.publish("f", *(f"{n}-{number}" for number in range(1000)))
    assert len(peer.deliveries()) == 1024
    peer.transport.stalled = False
    harness.run_event_loop()
    assert len(peer.deliveries()) == 3000 - 1024


# --- life of queues --------------------------------------------------------------------------


def test_expired_messages_are_not_delivered(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", messageTtl="00:00:10", enableDeadLetterQueue=True, deadLetterQueueName="dead")
    peer.publish("q", "m")
    harness.run_event_loop(10 * SECONDS)
    assert peer.subscribe("q") == []
    assert peer.info("q")["messageCount"] == 0
    assert peer.subscribe("dead") == ["m"]
    headers = peer.more[0].headers
    assert headers["deadLetterReason"] == "MessageExpired"
    assert headers["originalQueue"] == "q"


def test_a_subscription_survives_its_queue(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    peer.subscribe("q")
    other.publish("q", "1")
    other.ask(wire.DELETE_QUEUE, "q")
    assert json.loads(other.ask(wire.LIST_QUEUES).payload) == []
    harness.run_event_loop(100 * SECONDS)  # messages that were unacked are forgotten
    assert peer.ids() == ["1"]
    assert peer.acknowledge("1") == []
    other.create("q", mode=1)
    other.publish("q", "2")
    assert peer.ids() == ["2"]
    other.ask(wire.DELETE_QUEUE, "q")
    harness.broker.publish(
        harness.broker.destinations.queue("q"),
        Message(Address(Kind.QUEUE, "q"), b"3", BodyKind.JSON),
    )
    harness.run_event_loop()
    [frame] = peer.deliveries()
    assert frame.payload == b"3"


def test_a_subscription_without_a_queue_ends_like_any_other(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    for action in ("unsubscribe", "subscribe", "drop"):
        peer.subscribe("q")
        peer.ask(wire.DELETE_QUEUE, "q")
        if action == "unsubscribe":
            peer.ask(wire.UNSUBSCRIBE, "q")
        elif action == "subscribe":
            peer.subscribe("q")
            peer.publish("q", "x")
            assert [frame.id for frame in peer.more] == ["x"]
            peer.ask(wire.UNSUBSCRIBE, "q")
            peer.ask(wire.DELETE_QUEUE, "q")
        else:
            peer.drop()
        other.publish("q", "1")
        if action != "drop":
            assert peer.frames() == []
        other.ask(wire.DELETE_QUEUE, "q")


def test_a_queue_with_all_its_consumers_takes_no_subscription(harness: Harness) -> None:
    harness.limit("q", DestinationSettings(max_consumers=1))
    peer, other = harness.connect(), harness.connect()
    peer.subscribe("q")
    assert other.error(wire.SUBSCRIBE, "q") == "SERVER_ERROR"
    peer.drop()
    assert other.subscribe("q") == []


# --- messages of other protocols -------------------------------------------------------------


def publish(harness: Harness, body: bytes, kind: BodyKind, origin: Origin) -> Message:
    message = Message(Address(Kind.QUEUE, "q"), body, kind, origin)
    harness.broker.publish(harness.broker.destinations.queue("q"), message)
    harness.run_event_loop()
    return message


def test_a_message_of_another_protocol_is_named_by_its_number(harness: Harness) -> None:
    peer = harness.connect()
    message = publish(harness, b"text", BodyKind.TEXT, Origin.JMQ)
    [identity] = peer.subscribe("q")
    assert identity == f"{harness.broker.identity.hex()}{message.sequence:016x}"
    assert peer.more[0].payload == b'"text"'
    peer.acknowledge(identity)
    assert harness.bodies("q") == []


def test_messages_that_no_client_can_read_are_dead_lettered(harness: Harness) -> None:
    peer = harness.connect()
    publish(harness, bytes(1 << 20), BodyKind.BYTES, Origin.JMQ)
    publish(harness, b"small", BodyKind.BYTES, Origin.JMQ)
    assert peer.subscribe("q") == []
    harness.run_until_idle()
    assert len(peer.deliveries()) == 1
    dead_letters = harness.find("q.dlq")
    assert dead_letters is not None
    [delivery] = dead_letters.queue.browse()
    assert delivery.message is not None
    assert delivery.message.properties is not None
    assert delivery.message.properties["deadLetterReason"] == "TooLargeForVibeMQ"
    assert len(harness.bodies("q")) == 1
