"""Subscriptions: dispatch, windows, acknowledgements, timeouts and requeueing."""

from __future__ import annotations

import gc
import json

import pytest

from sluicemq.broker import Delivery
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import BodyKind, Message, Origin
from sluicemq.protocols.vibemq import session, wire
from sluicemq.protocols.vibemq.connection import SessionOptions
from sluicemq.protocols.vibemq.consumers import Subscriber
from sluicemq.protocols.vibemq.wire import Frame
from tests.protocols.vibemq.harness import Harness, Peer

SECONDS = 1000


def windowed(harness: Harness, window: int) -> Peer:
    return harness.connect(SessionOptions(window=window))


# --- subscribing -----------------------------------------------------------------------------


def test_subscribe_ack_precedes_backlog(harness: Harness) -> None:
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


def test_second_subscription_to_queue_is_answered_and_changes_nothing(
    harness: Harness,
) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    peer.subscribe("q")
    peer.publish("q", "1")
    assert [frame.id for frame in peer.more] == ["1"]
    assert harness.destination("q").consumers == 1


def test_unsubscribe_is_always_answered_and_requeues_unacked_messages(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    response = peer.request(wire.UNSUBSCRIBE, "q")
    assert response == Frame(wire.UNSUBSCRIBE_ACK, response.id, "q", headers={"queueName": "q"})
    peer.publish("q", "1", "2", "3")
    assert peer.subscribe("q") == ["1", "2", "3"]
    peer.acknowledge("2")
    peer.request(wire.UNSUBSCRIBE, "q")
    assert other.subscribe("q") == ["1", "3"]
    # acks of requeued messages are ignored
    peer.acknowledge("1", "3")
    assert len(harness.bodies("q")) == 2


def test_delivery_adds_attempt_to_headers_of_publisher(
    harness: Harness,
) -> None:
    peer = harness.connect()
    sent = {"priority": "hIgh", "x": "1", "correlationId": "c", "timestamp": "t"}
    peer.publish("q", "m", deliveryAttempts="77", **sent)
    peer.subscribe("q")
    [frame] = peer.more
    assert list(frame.headers.items()) == [*sent.items(), ("deliveryAttempts", "1")]


def test_missing_payload_is_delivered_as_missing(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(Frame(wire.PUBLISH, "m", "q"))
    peer.subscribe("q")
    assert peer.more[0].payload == b""


# --- acknowledgements ------------------------------------------------------------------------


def test_acks_by_header_or_by_frame_id(
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


def test_ack_of_repeated_id_acks_oldest_message(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(*(Frame(wire.PUBLISH, "m", queue, b"%d" % n) for n, queue in enumerate("abab")))
    peer.subscribe("b")
    peer.subscribe("a")
    for counts in ((2, 1), (2, 0), (1, 0), (0, 0)):
        peer.acknowledge("m")
        assert (len(harness.bodies("a")), len(harness.bodies("b"))) == counts


def test_ack_of_repeated_id_belongs_to_message_that_has_ended(harness: Harness) -> None:
    peer = harness.connect()
    peer.publish("q", "m", "m", "n")
    peer.subscribe("q")
    queue = harness.destination("q").queue
    harness.broker.acknowledge_any(queue, next(queue.browse()).sequence)
    peer.acknowledge("m", "n")
    assert harness.bodies("q") == [b'"m"']
    peer.acknowledge("m")
    assert harness.bodies("q") == []


def test_ended_message_does_not_hide_next_one_of_its_id(
    harness: Harness,
) -> None:
    peer = harness.connect()
    peer.publish("q", "m", "n", "m")
    peer.subscribe("q")
    queue = harness.destination("q").queue
    harness.broker.acknowledge_any(queue, next(queue.browse()).sequence)
    peer.acknowledge("n", "m")
    assert harness.bodies("q") == []


def test_late_ack_counts_although_another_connection_holds_message(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    peer.publish("q", "m")
    assert peer.subscribe("q") == ["m"]
    other.subscribe("q")
    queue = harness.destination("q").queue
    delivery = next(queue.browse())
    harness.broker.release(next(iter(queue.consumers)), [delivery.sequence], timed_out=True)
    harness.run_event_loop(2 * SECONDS)
    assert other.ids() == ["m"]
    peer.acknowledge("m")
    assert harness.bodies("q") == []
    assert harness.destination("q").unacked == 0
    assert other.acknowledge("m") == []


def test_ids_of_ended_deliveries_are_released(
    harness: Harness,
) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    for round_number in range(60):
        peer.publish("q", *(f"{round_number}-{n}" for n in range(100)))
        harness.broker.operations.purge(harness.destination("q"), True)
    gc.collect()
    assert sum(isinstance(item, Delivery) for item in gc.get_objects()) < 1200


# --- windows ---------------------------------------------------------------------------------


def test_unacked_messages_do_not_exceed_window(harness: Harness) -> None:
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


def test_window_is_limited_in_bytes(harness: Harness) -> None:
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


def test_message_removed_elsewhere_refills_window(harness: Harness) -> None:
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


def test_paused_connection_receives_nothing_and_others_are_served(harness: Harness) -> None:
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


def test_deliveries_resume_as_soon_as_client_has_read_all(harness: Harness) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    peer.stop_reading()
    harness.connect().publish("q", "m")
    peer.transport.stalled = False
    peer.transport.unsent = True
    harness.run_event_loop()
    assert peer.ids() == ["m"]


def test_resuming_delivery_respects_byte_window(harness: Harness) -> None:
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


def test_unacked_messages_are_redelivered_after_ack_timeout(harness: Harness) -> None:
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


def test_message_of_paused_queue_is_redelivered_when_delivery_resumes(harness: Harness) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    peer.publish("q", "m")
    peer.frames()
    queue = harness.destination("q")
    harness.broker.destinations.set_paused(queue, True)
    for _ in range(4):
        harness.run_event_loop(30 * SECONDS)
        assert peer.frames() == []
    assert queue.waiting == 1
    harness.broker.destinations.set_paused(queue, False)
    harness.run_event_loop()
    [frame] = peer.frames()
    assert (frame.id, frame.headers["deliveryAttempts"]) == ("m", "2")


def test_message_without_dlq_is_dropped_after_max_attempts(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", maxRetryAttempts=1)
    peer.subscribe("q")
    peer.publish("q", "m")
    harness.run_event_loop(30 * SECONDS)
    assert harness.bodies("q") == []
    assert harness.find("q.dlq") is None


def test_ack_timeout_of_queue_and_of_listener(harness: Harness) -> None:
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


def test_ack_timeout_starts_when_earlier_messages_are_acked(harness: Harness) -> None:
    """A hundred messages are sent at once; each takes the client 20 s."""
    peer = harness.connect()
    peer.publish("q", *(str(n) for n in range(100)))
    assert len(peer.subscribe("q")) == 100
    for n in range(100):
        harness.run_event_loop(20 * SECONDS)
        assert peer.acknowledge(str(n)) == []
    assert harness.bodies("q") == []
    assert harness.destination("q").statistics.redelivered == 0


def test_ack_timeout_does_not_start_before_message_is_sent(harness: Harness) -> None:
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


def test_only_oldest_unacked_message_times_out(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    peer.publish("q", "1", "2", "3")
    peer.subscribe("q")
    harness.run_event_loop(30 * SECONDS)
    [frame] = peer.deliveries()
    assert (frame.id, frame.headers["deliveryAttempts"]) == ("1", "2")
    peer.drop()
    other.subscribe("q")
    assert [frame.headers["deliveryAttempts"] for frame in other.more] == ["3", "2", "2"]


def test_message_passed_over_by_later_acks_times_out(harness: Harness) -> None:
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


def test_failing_handler_receives_later_messages_after_timeouts(harness: Harness) -> None:
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


# --- closed connections ----------------------------------------------------------------------


def test_lost_connection_requeues_in_order_at_head(harness: Harness) -> None:
    lost, peer = harness.connect(), harness.connect()
    lost.publish("q", "1", "2", "3")
    lost.subscribe("q")
    peer.publish("q", "4")
    lost.frames()
    lost.drop()
    assert peer.subscribe("q") == ["1", "2", "3", "4"]
    assert [frame.headers["deliveryAttempts"] for frame in peer.more] == ["2", "2", "2", "2"]


def test_message_that_crashes_clients_does_not_use_up_attempts_of_others(
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


def test_oldest_unacked_message_counts_as_attempted_after_disconnect(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", maxRetryAttempts=1)
    peer.subscribe("q")
    peer.publish("q", "failed")
    harness.run_event_loop(1)
    peer.publish("q", "done", "begun", "queued")
    peer.acknowledge("done")
    peer.drop()
    assert harness.connect().subscribe("q") == ["queued"]


def test_dead_letters_of_closed_connection_keep_their_order(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", maxRetryAttempts=1, enableDeadLetterQueue=True)
    ids = [str(n) for n in range(40)]
    peer.publish("q", *ids)
    peer.subscribe("q")
    peer.acknowledge(*ids[:25], ids[39])
    peer.drop()
    assert harness.bodies("q.dlq") == [b'"%d"' % n for n in range(25, 39)]


def test_unsubscribing_counts_no_attempt_of_messages_that_the_client_has_not_begun(
    harness: Harness,
) -> None:
    peer = harness.connect()
    peer.create("q", maxRetryAttempts=2)
    peer.publish("q", "done", "begun", "queued")
    peer.subscribe("q")
    peer.acknowledge("done")
    peer.request(wire.UNSUBSCRIBE, "q")
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


def test_round_robin_mode_ignores_priorities(harness: Harness) -> None:
    publisher, *peers = [harness.connect() for _ in range(4)]
    for peer in peers:
        peer.subscribe("q")
    for n in range(6):
        publisher.publish("q", str(n), priority="critical" if n % 2 else "low")
    assert [peer.ids() for peer in peers] == [["0", "3"], ["1", "4"], ["2", "5"]]


def test_only_mode_3_orders_by_priority(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("p", mode=3)
    peer.create("q", mode=0)
    for queue in "pq":
        for n, priority in enumerate(("Low", "Critical", "nonsense", "", "High", "3", "Normal")):
            peer.publish(queue, f"{n}", **({"priority": priority} if priority else {}))
    assert peer.subscribe("q") == ["0", "1", "2", "3", "4", "5", "6"]
    assert peer.subscribe("p") == ["1", "5", "4", "2", "3", "6", "0"]


def test_fan_out_with_ack_delivers_and_awaits_copy_per_subscriber(harness: Harness) -> None:
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
def test_fan_out_retains_messages_for_first_subscriber(harness: Harness, mode: int) -> None:
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


def test_fan_out_without_ack_acks_when_sent(harness: Harness) -> None:
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


def test_fan_out_without_ack_is_bounded_for_client_that_does_not_read(harness: Harness) -> None:
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


def test_connection_lost_with_unsent_deliveries_leaves_no_cycle(harness: Harness) -> None:
    publisher, peer = harness.connect(), harness.connect()
    publisher.create("f", mode=2)
    peer.subscribe("f")
    peer.transport.stalled = True
    publisher.publish("f", "1")
    gc.collect()
    gc.disable()
    try:
        peer.drop()
        del peer.transport.session
        del peer
        assert not any(isinstance(item, Subscriber) for item in gc.get_objects())
    finally:
        gc.enable()


# --- removed queues --------------------------------------------------------------------------


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


def test_dead_letter_of_subscription_with_long_name_is_delivered(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("f", mode=1, messageTtl="00:00:10", enableDeadLetterQueue=True)
    peer.subscribe("f.dlq")
    # as JMS clients name them: the escapes of a long name need more than 65,535 bytes
    harness.broker.subscribe(harness.destination("f"), "s" * 65_536, durable=True)
    peer.publish("f", "m", x="1")
    harness.run_event_loop(11 * SECONDS)
    [frame] = peer.deliveries()
    assert frame.headers["deadLetterReason"] == "MessageExpired"
    assert frame.headers["originalQueue"] == "f"
    assert frame.headers["x"] == "1"
    assert "originalSubscription" not in frame.headers


def test_subscription_continues_on_recreated_queue(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    peer.subscribe("q")
    other.publish("q", "1")
    other.request(wire.DELETE_QUEUE, "q")
    assert json.loads(other.request(wire.LIST_QUEUES).payload) == []
    harness.run_event_loop(100 * SECONDS)  # messages that were unacked are forgotten
    assert peer.ids() == ["1"]
    assert peer.acknowledge("1") == []
    other.create("q", mode=1)
    other.publish("q", "2")
    assert peer.ids() == ["2"]
    other.request(wire.DELETE_QUEUE, "q")
    harness.broker.publish(
        harness.broker.destinations.queue("q"),
        Message(Address(Kind.QUEUE, "q"), b"3", BodyKind.JSON),
    )
    harness.run_event_loop()
    [frame] = peer.deliveries()
    assert frame.payload == b"3"


def test_subscription_continues_when_another_consumer_leaves_recreated_queue(
    harness: Harness,
) -> None:
    first, second, other = harness.connect(), harness.connect(), harness.connect()
    first.subscribe("q")
    second.subscribe("q")
    other.request(wire.DELETE_QUEUE, "q")
    harness.broker.destinations.declare(
        Address(Kind.QUEUE, "q"), DestinationSettings(max_consumers=1)
    )
    harness.run_event_loop(10 * SECONDS)
    first.request(wire.UNSUBSCRIBE, "q")
    harness.run_event_loop(2 * SECONDS)
    other.publish("q", "1")
    assert second.ids() == ["1"]
    other.request(wire.DELETE_QUEUE, "q")
    other.create("q", mode=1)
    other.publish("q", "2")
    assert second.ids() == ["2"]


def test_subscriptions_of_connection_are_limited(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client could fill the memory with subscriptions to queues that it deletes."""
    monkeypatch.setattr(session, "MAX_SUBSCRIPTIONS", 2)
    peer = harness.connect()
    for name in ("a", "b"):
        peer.subscribe(name)
        peer.request(wire.DELETE_QUEUE, name)
    assert peer.error(wire.SUBSCRIBE, "c") == "SERVER_ERROR"
    assert harness.find("c") is None
    assert peer.subscribe("b") == []
    peer.request(wire.UNSUBSCRIBE, "a")
    assert peer.subscribe("c") == []


def test_subscription_without_queue_can_be_ended(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    for action in ("unsubscribe", "subscribe", "drop"):
        peer.subscribe("q")
        peer.request(wire.DELETE_QUEUE, "q")
        if action == "unsubscribe":
            peer.request(wire.UNSUBSCRIBE, "q")
        elif action == "subscribe":
            peer.subscribe("q")
            peer.publish("q", "x")
            assert [frame.id for frame in peer.more] == ["x"]
            peer.request(wire.UNSUBSCRIBE, "q")
            peer.request(wire.DELETE_QUEUE, "q")
        else:
            peer.drop()
        other.publish("q", "1")
        if action != "drop":
            assert peer.frames() == []
        other.request(wire.DELETE_QUEUE, "q")


def test_subscription_above_max_consumers_is_refused(harness: Harness) -> None:
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


def test_message_of_another_protocol_has_its_sequence_number_as_id(harness: Harness) -> None:
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
