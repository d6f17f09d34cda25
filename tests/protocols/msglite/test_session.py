from __future__ import annotations

import json
import re

import pytest

from sluicemq.broker import EngineSettings
from sluicemq.model.destination import (
    Address,
    DestinationSettings,
    Kind,
    Overflow,
    is_reply_address,
)
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from sluicemq.protocols import java
from sluicemq.protocols.channel import MAX_UNCONFIRMED
from sluicemq.protocols.msglite import wire
from tests.protocols.msglite.harness import Harness, Peer


@pytest.fixture
def client(harness: Harness) -> Peer:
    return harness.connect()


@pytest.fixture
def worker(harness: Harness) -> Peer:
    return harness.connect()


def reply_address(request: bytes) -> bytes:
    """Return the reply address of a query as a worker gets it."""
    return request.split(b"\r\n")[0].split(b" ")[4]


# --- messages and ready commands ---------------------------------------------------------------


def test_example_of_protocol_page(client: Peer) -> None:
    assert client.request(b"> 5 1 someAddress\r\nhello\r\n") == b""
    assert client.request(b"< 1 someAddress\r\n") == b"> 5 1 someAddress\r\nhello\r\n"


def test_message_goes_to_client_that_waits_longest(harness: Harness, client: Peer) -> None:
    waiting = [harness.connect() for _ in range(3)]
    for peer in waiting:
        peer.send_bytes(b"< 60 a\r\n")
    client.send_bytes(b"> 1 9 a\r\n1\r\n")
    assert [peer.take_bytes() for peer in waiting] == [b"> 1 9 a\r\n1\r\n", b"", b""]
    waiting[0].send_bytes(b"< 60 a\r\n")
    client.send_bytes(b"> 1 9 a\r\n2\r\n> 1 9 a\r\n3\r\n> 1 9 a\r\n4\r\n")
    assert [peer.take_bytes()[-3:-2] for peer in waiting] == [b"4", b"2", b"3"]


def test_ready_receives_one_message(client: Peer) -> None:
    client.send_bytes(b"> 1 9 a\r\n1\r\n> 1 9 a\r\n2\r\n")
    assert client.request(b"< 9 a\r\n") == b"> 1 9 a\r\n1\r\n"
    client.harness.run_event_loop(60_000)
    assert client.take_bytes() == b""


def test_addresses_are_tried_in_order_listed(client: Peer) -> None:
    client.send_bytes(b"> 5 9 a\r\nolder\r\n> 5 9 b\r\nnewer\r\n")
    assert client.request(b"< 9 none b a\r\n") == b"> 5 9 b\r\nnewer\r\n"
    assert client.request(b"< 9 none b a\r\n") == b"> 5 9 a\r\nolder\r\n"


def test_first_message_ends_wait_at_all_addresses(harness: Harness, client: Peer) -> None:
    reader, other = harness.connect(), harness.connect()
    reader.send_bytes(b"< 60 a b c d e f g h\r\n")
    other.send_bytes(b"< 60 h\r\n")
    client.send_bytes(b"> 0 9 c\r\n> 0 9 h\r\n")
    assert (reader.take_bytes(), other.take_bytes()) == (b"> 0 9 c\r\n", b"> 0 9 h\r\n")
    client.send_bytes(b"> 0 9 a\r\n")
    assert reader.take_bytes() == b""
    assert reader.request(b"< 60 a b c d e f g h\r\n") == b"> 0 9 a\r\n"


def test_repeated_address_in_ready_is_harmless(client: Peer, worker: Peer) -> None:
    worker.send_bytes(b"< 60 a a b a\r\n")
    client.send_bytes(b"> 0 9 a\r\n> 0 9 a\r\n")
    assert worker.take_bytes() == b"> 0 9 a\r\n"
    assert worker.request(b"< 60 b a a\r\n") == b"> 0 9 a\r\n"


def test_names_are_bytes_and_case_sensitive(client: Peer) -> None:
    client.send_bytes(b"> 0 9 \xff\0\xc2\xa0\r\n> 0 9 A\r\n")
    assert client.request(b"< 0 a\r\n") == b"*\r\n"
    assert client.request(b"< 0 \xff\0\xc2\xa0\r\n") == b"> 0 9 \xff\0\xc2\xa0\r\n"


def test_body_and_reply_address_are_delivered_unchanged(client: Peer) -> None:
    for size in (0, 1, 5000, 300_000):
        command = wire.encode_message(7, b"a", b"\r\n\0\xff" * (size // 4 + 1), b"back")
        client.send_bytes(command)
        assert client.request(b"< 0 a\r\n") == command


def test_accepts_trailing_blank_and_bare_line_feeds_of_perl_client(client: Peer) -> None:
    assert (
        client.request(b"> 5 1 addr \r\nhello\r\n\n\r\n<  1\taddr\n") == b"> 5 1 addr\r\nhello\r\n"
    )


# --- time --------------------------------------------------------------------------------------


def test_ready_times_out_exactly(harness: Harness, client: Peer) -> None:
    client.send_bytes(b"< 2 a b\r\n")
    harness.run_event_loop(1999)
    assert client.take_bytes() == b""
    harness.run_event_loop(1)
    assert client.take_bytes() == b"*\r\n"
    harness.connect().send_bytes(b"> 0 9 a\r\n> 0 9 b\r\n")
    assert client.take_bytes() == b""
    assert client.request(b"< 9 b\r\n") == b"> 0 9 b\r\n"


def test_each_ready_has_its_own_timeout(harness: Harness, client: Peer, worker: Peer) -> None:
    worker.send_bytes(b"< 10 a\r\n")
    harness.run_event_loop(9_000)
    client.send_bytes(b"> 0 9 a\r\n")
    worker.send_bytes(b"< 10 a\r\n")
    assert worker.take_bytes() == b"> 0 9 a\r\n"
    harness.run_event_loop(9_999)
    assert worker.take_bytes() == b"", "timed out by the alarm of the ready before"
    harness.run_event_loop(1)
    assert worker.take_bytes() == b"*\r\n"
    worker.send_bytes(b"< 100 a\r\n")
    client.send_bytes(b"> 0 9 a\r\n")
    worker.send_bytes(b"< 1 a\r\n")
    worker.take_bytes()
    harness.run_event_loop(1000)
    assert worker.take_bytes() == b"*\r\n", (
        "the alarm of the ready before was too late for this one"
    )


def test_ready_0_receives_message_or_times_out_at_once(client: Peer) -> None:
    assert client.request(b"< 0 a\r\n") == b"*\r\n"
    assert client.request(b"> 0 9 a\r\n< 0 a\r\n< -3 a\r\n") == b"> 0 9 a\r\n*\r\n"


def test_message_0_is_delivered_to_waiting_clients_only(harness: Harness, client: Peer) -> None:
    client.send_bytes(b"> 0 0 a\r\n> 0 -1 a\r\n")
    assert client.request(b"< 0 a\r\n") == b"*\r\n"
    waiting = [harness.connect() for _ in range(2)]
    for peer in waiting:
        peer.send_bytes(b"< 9 a\r\n")
    client.send_bytes(b"> 1 9 a\r\n1\r\n> 1 0 a\r\n2\r\n> 1 0 a\r\n3\r\n")
    assert [peer.take_bytes() for peer in waiting] == [b"> 1 9 a\r\n1\r\n", b"> 1 0 a\r\n2\r\n"]
    assert client.request(b"< 0 a\r\n") == b"*\r\n"


def test_message_expires_after_its_timeout_and_is_delivered_with_it(
    harness: Harness, client: Peer
) -> None:
    client.send_bytes(b"> 0 5 a\r\n> 0 9 a\r\n")
    harness.run_event_loop(4_999)
    assert client.request(b"< 0 a\r\n") == b"> 0 5 a\r\n"
    client.send_bytes(b"> 0 5 b\r\n> 0 9 b\r\n")
    harness.run_event_loop(5_000)
    assert client.request(b"< 0 b\r\n") == b"> 0 9 b\r\n"


@pytest.mark.parametrize("seconds", [10**9, 7_400_000_000, 10**10, 2**53, 2**63 - 1])
def test_large_timeouts_do_not_wrap(harness: Harness, client: Peer, seconds: int) -> None:
    client.send_bytes(b"> 0 %d a\r\n" % seconds)
    harness.run_event_loop(10**9)
    assert client.request(b"< 0 a\r\n") == b"> 0 %d a\r\n" % seconds
    client.send_bytes(b"< %d a\r\n" % seconds)
    for _ in range(40):
        harness.run_event_loop(86_400_000)
    assert client.take_bytes() == b""
    harness.connect().send_bytes(b"> 0 1 a\r\n")
    assert client.take_bytes() == b"> 0 1 a\r\n"


# --- order -------------------------------------------------------------------------------------


def test_waiting_ready_blocks_later_commands(harness: Harness, client: Peer) -> None:
    client.send_bytes(b"< 5 a\r\n> 1 9 b\r\nx\r\n< 5 c\r\n")
    client.send_bytes(b"< 0 d\r\n.\r\n> 0 9 b\r\n")
    assert harness.bodies("b") == []
    harness.run_event_loop(5000)
    assert client.take_bytes() == b"*\r\n"
    assert harness.bodies("b") == [b"x"]
    harness.connect().send_bytes(b"> 0 9 c\r\n")
    assert client.take_bytes() == b"> 0 9 c\r\n*\r\n"
    assert not client.open
    assert harness.bodies("b") == [b"x"], "commands behind a quit were carried out"


def test_many_ready_commands_at_once_are_answered_in_order(client: Peer) -> None:
    client.send_bytes(b"".join(b"> %d 9 a\r\n%d\r\n" % (len(b"%d" % n), n) for n in range(3000)))
    client.send_bytes(b"< 9 a\r\n" * 3000)
    decoder = wire.Decoder(kinds=wire.FROM_SERVER)
    assert [frame[3] for frame in decoder.feed(client.take_bytes())] == [
        b"%d" % n for n in range(3000)
    ]


@pytest.mark.parametrize("commands", [b"? 0 0 a\r\n" * 2, b"< 0 a b\r\n< 0 b a\r\n"])
def test_few_slow_commands_are_processed_in_iteration(
    harness: Harness, client: Peer, commands: bytes
) -> None:
    client.send_bytes(b"> 0 9 a\r\n> 0 9 b\r\n< 0 a b\r\n< 0 a b\r\n")
    client.take_bytes()
    client.session.receive(commands * 1000)
    first = client.take_bytes()
    assert 0 < len(first) < 1000
    harness.run_event_loop()
    assert first + client.take_bytes() == b"*\r\n" * 2000
    assert client.request(b"< 0 a\r\n") == b"*\r\n"


def test_sessions_that_trigger_each_other(harness: Harness) -> None:
    count = 300
    for n in range(count):
        harness.connect().send_bytes(b"< 99 c%d\r\n> 0 0 c%d\r\n" % (n, n + 1))
    end = harness.connect()
    end.send_bytes(b"< 99 c%d\r\n" % count)
    harness.connect().send_bytes(b"> 0 9 c0\r\n")
    assert end.take_bytes() == b"> 0 0 c%d\r\n" % count


def test_commands_blocked_by_output_take_effect_at_once(
    harness: Harness, client: Peer, worker: Peer
) -> None:
    harness.connect().send_bytes(wire.encode_message(9, b"a", bytes(300_000)))
    client.transport.stalled = True
    client.send_bytes(b"< 60 a\r\n> 1 9 b\r\nx\r\n")
    worker.send_bytes(b"< 60 b\r\n")
    client.transport.stalled = False
    harness.run_event_loop()
    assert worker.take_bytes() == b"> 1 9 b\r\nx\r\n"


def test_reading_pauses_while_too_much_is_pending_behind_command(
    harness: Harness, client: Peer
) -> None:
    client.send_bytes(b"< 5 a\r\n" + b"> 1000 9 b\r\n" + bytes(1000) + b"\r\n")
    assert not client.transport.paused
    for _ in range(300):
        client.send_bytes(b"> 1000 9 b\r\n" + bytes(1000) + b"\r\n")
    assert client.transport.paused
    harness.run_event_loop(5000)
    assert not client.transport.paused
    assert len(harness.bodies("b")) == 301
    assert client.request(b"< 0 b\r\n")[:12] == b"*\r\n> 1000 9 "


def test_client_that_does_not_read_receives_no_more(harness: Harness, client: Peer) -> None:
    for _ in range(20):
        harness.connect().send_bytes(wire.encode_message(9, b"a", bytes(100_000)))
    client.transport.stalled = True
    client.send_bytes(b"< 9 a\r\n" * 20)
    client.stop_reading()
    assert len(client.take_bytes()) < 400_000
    other = harness.connect()
    assert other.request(b"< 0 a\r\n")
    client.transport.stalled = False
    client.read_again()
    harness.run_event_loop()
    assert len(client.take_bytes()) > 1_000_000
    assert harness.bodies("a") == []


def test_message_that_client_reads_late_is_not_delivered_twice(
    harness: Harness, client: Peer, worker: Peer
) -> None:
    harness.limit("a", DestinationSettings(ack_timeout=1000))
    client.transport.stalled = True
    client.send_bytes(b"< 60 a\r\n")
    harness.connect().send_bytes(b"> 1 60 a\r\n1\r\n")
    worker.send_bytes(b"< 60 a\r\n")
    harness.run_event_loop(5000)
    assert worker.take_bytes() == b""
    client.transport.stalled = False
    harness.run_event_loop()
    assert client.take_bytes() == b"> 1 60 a\r\n1\r\n"
    assert harness.bodies("a") == []


def test_long_reply_addresses_count_as_output(harness: Harness, client: Peer) -> None:
    sender = harness.connect()
    for _ in range(20):
        sender.send_bytes(wire.encode_message(9, b"a", b"", b"r" * 60_000))
    client.transport.stalled = True
    client.send_bytes(b"< 9 a\r\n" * 20)
    assert len(client.take_bytes()) < 400_000


# --- queries -----------------------------------------------------------------------------------


def test_query_receives_its_reply(harness: Harness, client: Peer, worker: Peer) -> None:
    worker.send_bytes(b"< 60 oven\r\n")
    client.send_bytes(b"? 4 7 oven\r\nhot?\r\n")
    request = worker.take_bytes()
    address = reply_address(request)
    assert request == b"> 4 7 oven %b\r\nhot?\r\n" % address
    assert re.fullmatch(rb"%X\.1[0-9A-F]{24}" % 1_700_000_000, address)
    worker.send_bytes(b"> 3 5 %b\r\n220\r\n< 60 oven\r\n" % address)
    assert client.take_bytes() == b"> 3 5 %b\r\n220\r\n" % address
    assert harness.find(address.decode()) is None


def test_reply_addresses_cannot_be_guessed_from_earlier_ones(harness: Harness) -> None:
    names = [harness.replies.create(harness.broker, harness, None).name for _ in range(31)]
    counters = [name.partition(".")[2][:-24] for name in names]
    assert counters == [f"{number:X}" for number in range(1, 32)]
    assert len({name[-24:] for name in names}) == 31
    assert all(is_reply_address(name) for name in names)
    invalid_names = [names[0][:-1], names[0][:-1] + "G", names[0][1:], names[0] + "\n"]
    assert not any(is_reply_address(name) for name in invalid_names)


def test_query_without_body_needs_no_line_break_but_may_have_one(
    client: Peer, worker: Peer
) -> None:
    client.send_bytes(b"? 0 1 a\r\n\r\n")
    assert worker.request(b"< 0 a\r\n")[:8] == b"> 0 1 a "


def test_query_times_out_like_ready(harness: Harness, client: Peer) -> None:
    client.send_bytes(b"? 0 3 unanswered\r\n")
    harness.run_event_loop(2999)
    assert client.take_bytes() == b""
    harness.run_event_loop(1)
    assert client.take_bytes() == b"*\r\n"
    assert client.request(b"? 0 0 unanswered\r\n") == b"*\r\n"
    assert len(harness.broker.destinations) == 1


def test_surplus_and_late_replies_are_dropped(harness: Harness, client: Peer, worker: Peer) -> None:
    for seconds, replies in ((9, 2), (1, 0)):
        client.send_bytes(b"? 0 %d oven\r\n" % seconds)
        address = reply_address(worker.request(b"< 0 oven\r\n"))
        worker.send_bytes(b"> 0 60 %b\r\n" % address * replies)
        harness.run_event_loop(1000)
        client.take_bytes()
        worker.send_bytes(b"> 0 60 %b\r\n" % address * 2)
        assert harness.find(address.decode()) is None
        assert worker.request(b"< 0 %b\r\n" % address) == b"*\r\n"


def test_ready_for_reply_address_whose_request_is_over_creates_no_queue(
    harness: Harness, client: Peer, worker: Peer
) -> None:
    content = harness.replies.create(harness.broker, harness.replies, None)  # as the gateway does
    ready = b"< 9 %b\r\n" % content.name.encode()
    worker.send_bytes(ready)
    harness.broker.remove(content, force=True)
    client.send_bytes(ready)
    harness.run_event_loop(9000)
    assert client.take_bytes() == worker.take_bytes() == b"*\r\n"
    assert not harness.broker.destinations
    assert worker.open


def test_unassigned_reply_address_is_ordinary_queue(
    client: Peer,
) -> None:
    prefix = b"%X." % 1_700_000_000
    for name in (prefix + b"FFFF", prefix + b"1f", prefix + b"01", prefix, b"0.1"):
        command = b"> 0 9 %b\r\n" % name
        client.send_bytes(command)
        assert client.request(b"< 0 %b\r\n" % name) == command


def test_pipelined_queries_are_answered_in_order(harness: Harness, client: Peer) -> None:
    worker = harness.connect()
    client.send_bytes(b"? 1 9 a\r\n1\r\n? 1 9 a\r\n2\r\n< 0 a\r\n")
    for number in (b"1", b"2"):
        request = worker.request(b"< 0 a\r\n")
        worker.send_bytes(b"> 1 9 %b\r\n%b\r\n" % (reply_address(request), request[-3:-2]))
        assert number in client.transport.written
    assert [line[-1:] for line in client.take_bytes().split(b"\r\n")[1::2]] == [b"1", b"2", b""]


def test_only_requester_may_wait_on_reply_address(
    harness: Harness, client: Peer, worker: Peer
) -> None:
    client.send_bytes(b"? 0 5 a\r\n")
    address = reply_address(worker.request(b"< 0 a\r\n"))
    thief = harness.connect()
    assert thief.request(b"< 9 %b\r\n" % address).startswith(b"- %b is temporary" % address)
    assert not thief.open
    worker.send_bytes(b"> 1 5 %b\r\n1\r\n" % address)
    assert client.take_bytes() == b"> 1 5 %b\r\n1\r\n" % address


def test_query_of_disconnected_client_leaves_nothing_behind(
    harness: Harness, client: Peer, worker: Peer
) -> None:
    client.send_bytes(b"? 0 60 a\r\n")
    client.drop()
    address = reply_address(worker.request(b"< 0 a\r\n"))
    worker.send_bytes(b"> 0 60 %b\r\n" % address)
    assert list(map(str, harness.broker.destinations)) == ["a"]


# --- at most once, and the end of connections --------------------------------------------------


def test_message_is_acked_when_it_has_been_sent(harness: Harness, client: Peer) -> None:
    harness.connect().send_bytes(b"> 1 9 a\r\nx\r\n")
    client.transport.stalled = True
    client.send_bytes(b"< 0 a\r\n")
    assert harness.bodies("a") == [b"x"]
    client.transport.stalled = False
    harness.run_event_loop()
    assert harness.bodies("a") == []
    client.drop()
    assert harness.bodies("a") == [], "came back after it was sent"


def test_unsent_messages_return_to_head_of_queue(harness: Harness, client: Peer) -> None:
    sender = harness.connect()
    sender.send_bytes(b"> 1 9 a\r\n1\r\n> 1 9 a\r\n2\r\n> 1 9 b\r\n3\r\n")
    client.transport.stalled = True
    client.send_bytes(b"< 0 a\r\n< 0 b\r\n")
    assert harness.bodies("b") == [b"3"]
    client.drop()
    other = harness.connect()
    assert other.request(b"< 0 a\r\n< 0 a\r\n< 0 b\r\n") == (
        b"> 1 9 a\r\n1\r\n> 1 9 a\r\n2\r\n> 1 9 b\r\n3\r\n"
    )


def test_changing_addresses_does_not_requeue_messages_being_sent(
    harness: Harness, client: Peer
) -> None:
    harness.connect().send_bytes(b"> 1 9 a\r\n1\r\n> 1 9 b\r\n2\r\n")
    assert (
        client.request(b"< 0 a\r\n< 0 b\r\n< 0 a b\r\n") == b"> 1 9 a\r\n1\r\n> 1 9 b\r\n2\r\n*\r\n"
    )
    assert harness.broker.destinations.queue("a").consumers == 1


def test_disconnected_client_is_no_consumer(harness: Harness, client: Peer) -> None:
    for leave in ("drop", "end"):
        consumer = harness.connect()
        consumer.send_bytes(b"< 60 a b\r\n")
        if leave == "drop":
            consumer.drop()
        else:
            consumer.end()
        client.send_bytes(b"> 1 9 b\r\nx\r\n")
        assert harness.bodies("b") == [b"x"], leave
        assert client.request(b"< 0 b\r\n") == b"> 1 9 b\r\nx\r\n"


def test_half_close_answers_pending_commands(harness: Harness, client: Peer) -> None:
    client.send_bytes(b"> 5 1 a\r\nhello\r\n< 1 a\r\n")
    client.end()
    assert client.take_bytes() == b"> 5 1 a\r\nhello\r\n"
    assert client.transport.close_reason == ""
    other = harness.connect()
    other.send_bytes(b"< 9 a\r\n> 0 9 b\r\n? 0 9 b\r\n< 9 b\r\n")
    other.end()
    assert other.take_bytes() == b"*\r\n*\r\n> 0 9 b\r\n"
    assert not other.open


def test_end_of_input_within_command_is_error(client: Peer, worker: Peer) -> None:
    client.send_bytes(b"> 5 1 a\r\nhel")
    client.end()
    assert client.take_bytes() == b"- the input ends within a command\r\n"
    assert not client.open
    worker.send_bytes(b" \r")
    worker.end()
    assert worker.take_bytes() == b""


def test_messages_received_before_disconnect_are_kept(harness: Harness, client: Peer) -> None:
    client.send_bytes(b"< 60 a\r\n> 1 9 b\r\n1\r\n? 0 9 b\r\n> 1 9 b\r\n2\r\n.\r\n> 1 9 b\r\n3\r\n")
    client.drop()
    assert harness.bodies("b")[:2] == [b"1", b"2"]


def test_quit_is_not_answered_and_ends_processing(harness: Harness, client: Peer) -> None:
    assert client.request(b"< 0 a\r\n. bye\r\n> 1 9 a\r\nx\r\n") == b"*\r\n"
    assert client.transport.close_reason == ""
    assert harness.find("a") is None or harness.bodies("a") == []
    client.drop()


def test_shutdown_closes_without_output_and_loses_nothing(harness: Harness, client: Peer) -> None:
    client.send_bytes(b"< 60 a\r\n? 0 60 a\r\n")
    client.session.disconnect("the broker stops", stopping=True)
    client.session.disconnect("the broker stops", stopping=True)
    assert (client.take_bytes(), client.open) == (b"", False)
    harness.connect().send_bytes(b"> 1 9 a\r\nx\r\n")
    client.drop()
    assert harness.bodies("a") == [b"x"]


@pytest.mark.parametrize(
    "commands",
    [
        b"> 1 9 a\r\n1\r\n> 1 9 a\r\n2\r\n.\r\n",
        b"< 60 b\r\n> 1 9 a\r\n1\r\n.\r\n",
    ],
)
def test_shutdown_resets_connection_with_blocked_messages(
    harness: Harness, client: Peer, commands: bytes
) -> None:
    harness.limit("a", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    client.send_bytes(commands)
    harness.broker.stop()
    for _ in range(2):
        client.session.disconnect("the broker stops", stopping=True)
    assert client.transport.aborted  # the close after a quit means that the messages are accepted
    assert client.take_bytes() == b""


def test_administrator_refuses_blocked_message(harness: Harness, client: Peer) -> None:
    harness.limit("a", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    client.send_bytes(b"> 1 9 a\r\n1\r\n> 1 9 a\r\n2\r\n")
    client.session.disconnect("enough")
    assert client.take_bytes() == b"- enough\r\n"
    client.drop()
    assert harness.connect().request(b"< 0 a\r\n< 0 a\r\n") == b"> 1 9 a\r\n1\r\n*\r\n"


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        b"HELLO\r\n",
        b">5 1 a\r\nhello\r\n",
        b"*\r\n",
        b"- x\r\n",
        b"> 1\r\n",
        b"> 0 1 a b c\r\n",
        b"? 0 1 a b\r\n",
        b"? 0 1\r\n",
        b"< 1\r\n",
        b"< 1 1 2 3 4 5 6 7 8 9\r\n",
        b"> x 1 a\r\n",
        b"> 0 x a\r\n",
        b"> 0 1e3 a\r\n",
        b"> -1 1 a\r\n",
        b"? -5 1 a\r\n",
        b"> 99999999999999999999999 1 a\r\n",
        b"> 0 99999999999999999999999 a\r\n",
        b"> 100000000000 1 a\r\n",
        b"> 1 1 a\r\nxyz",
        b"< 1 " + b"a" * 66_000,
    ],
)
def test_malformed_input_gets_one_error_line_and_closes(
    harness: Harness, client: Peer, bad: bytes
) -> None:
    response = client.request(b"> 1 9 kept\r\n1\r\n< 0 none\r\n" + bad + b"\r\n> 1 9 kept\r\n2\r\n")
    assert response.startswith(b"*\r\n- ")
    assert response.count(b"\n") == 2
    assert response.endswith(b"\r\n")
    assert not client.open
    assert harness.bodies("kept") == [b"1"]


def test_errors_are_answered_in_order(harness: Harness, client: Peer) -> None:
    client.send_bytes(b"< 3 a\r\nbad\r\n")
    assert client.open
    harness.run_event_loop(3000)
    assert client.take_bytes().startswith(b"*\r\n- unknown command 'bad'")
    other = harness.connect()
    other.send_bytes(b"< 3 a\r\nbad\r\n")
    harness.connect().send_bytes(b"> 0 9 a\r\n")
    assert other.take_bytes().startswith(b"> 0 9 a\r\n- unknown")


def test_error_after_much_output_is_sent(harness: Harness, client: Peer) -> None:
    harness.connect().send_bytes(wire.encode_message(9, b"a", bytes(300_000)))
    client.transport.stalled = True
    client.send_bytes(b"< 0 a\r\nbad\r\n")
    assert client.open
    client.transport.stalled = False
    harness.run_event_loop()
    assert client.take_bytes().endswith(b"- unknown command 'bad'\r\n")


def test_blank_lines_are_ignored(client: Peer) -> None:
    assert client.request(b"\r\n\n \t\r\n< 0 a\r\n") == b"*\r\n"
    assert client.open


def test_size_limits_are_options(harness: Harness) -> None:
    client = harness.connect(limits=wire.Limits(line=30, body=3))
    assert client.request(b"> 3 9 a\r\nabc\r\n< 0 a\r\n") == b"> 3 9 a\r\nabc\r\n"
    assert b"limit is 3" in client.request(b"> 4 9 a\r\n")


@pytest.mark.parametrize("command", [b"> 0 60 %b", b"? 0 60 %b", b"< 60 a %b"])
def test_long_names_of_queues_are_refused(harness: Harness, command: bytes) -> None:
    limits = wire.Limits(name=5)
    client = harness.connect(limits=limits)
    client.send_bytes(command % b"12345" + b"\r\n")
    assert client.open
    refused = harness.connect(limits=limits)
    refused.send_bytes(command % b"123456" + b"\r\n")
    assert refused.take_bytes().endswith(b"- the name of a queue has at most 5 bytes\r\n")
    assert not refused.open
    client.drop()
    refused.drop()
    assert "123456" not in {address.name for address in harness.broker.destinations}


def test_poll_may_have_a_long_name(harness: Harness) -> None:
    """`MsgliteClient.confirm` polls an address whose name may be longer than the limit."""
    client = harness.connect(limits=wire.Limits(name=5))
    assert client.request(b"< 0 123456\r\n") == b"*\r\n"


def test_length_of_reply_address_is_not_that_of_name(harness: Harness) -> None:
    limits = wire.Limits(name=5)
    client, other = harness.connect(limits=limits), harness.connect(limits=limits)
    client.send_bytes(b"> 0 60 reply:topic:12345:correlation\r\n? 0 60 q\r\n")
    [address] = harness.temporary()
    other.send_bytes(b"> 2 60 %b\r\nok\r\n" % address.encode())
    assert client.bodies() == [b"ok"]
    assert b"at most 5 bytes" in other.request(b"> 0 60 reply:topic:123456:\r\n")


@pytest.mark.parametrize("command", [b"> 1 9 a\r\nx\r\n", b"< 9 a\r\n", b"? 0 9 a\r\n"])
def test_errors_of_broker_are_answered(command: bytes) -> None:
    harness = Harness(EngineSettings(auto_create_queues=False))
    client = harness.connect()
    response = client.request(command + b"< 0 b\r\n")
    assert response.startswith(b"- a does not exist")
    assert response.count(b"\n") == 1
    assert not client.open
    client.drop()
    assert not harness.broker.destinations


def test_polling_unknown_address_creates_no_queue(harness: Harness, client: Peer) -> None:
    assert client.request(b"> 1 9 a\r\nx\r\n< 0 b a\r\n< 0 b a\r\n") == b"> 1 9 a\r\nx\r\n*\r\n"
    assert [address.name for address in harness.broker.destinations] == ["a"]
    other = harness.connect()
    other.send_bytes(b"> 1 9 b\r\ny\r\n")
    assert client.request(b"< 0 b a\r\n") == b"> 1 9 b\r\ny\r\n"


def test_message_with_timeout_0_creates_no_queue(harness: Harness, client: Peer) -> None:
    assert client.request(b"> 1 0 a\r\nx\r\n> 1 0 b\r\nx\r\n? 1 0 c\r\nx\r\n") == b"*\r\n"
    assert not harness.broker.destinations


def test_full_queue_is_error(harness: Harness, client: Peer) -> None:
    harness.limit("a", DestinationSettings(max_messages=1))
    assert client.request(b"> 1 9 a\r\n1\r\n> 1 9 a\r\n2\r\n").startswith(b"- a is full")
    assert harness.broker.traffic_of("msglite").published == 1
    assert harness.bodies("a") == [b"1"]


def test_blocking_queue_blocks_connection(harness: Harness, client: Peer) -> None:
    harness.limit("a", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    client.send_bytes(b"> 1 9 a\r\n1\r\n> 1 9 a\r\n2\r\n> 1 9 a\r\n3\r\n< 0 none\r\n")
    assert harness.bodies("a") == [b"1"]
    assert client.session.buffered > 1
    other = harness.connect()
    assert other.request(b"< 0 a\r\n") == b"> 1 9 a\r\n1\r\n"
    assert client.take_bytes() == b""
    assert other.request(b"< 0 a\r\n") == b"> 1 9 a\r\n2\r\n"
    assert client.take_bytes() == b"*\r\n"
    client.send_bytes(b"> 1 9 a\r\n4\r\n> 1 9 a\r\n5\r\n")
    client.drop()
    for body in (b"3", b"4", b"5"):
        assert other.request(b"< 0 a\r\n") == b"> 1 9 a\r\n%b\r\n" % body


def test_blocked_query_still_times_out(harness: Harness, client: Peer) -> None:
    harness.limit("a", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    client.send_bytes(b"> 1 9 a\r\n1\r\n")
    client.send_bytes(b"? 1000 2 a\r\n%b\r\n" % bytes(1000))
    assert client.session.buffered == 1000
    client.send_bytes(b"< 0 b\r\n")
    harness.run_event_loop(2000)
    assert client.take_bytes() == b"*\r\n"
    harness.connect().send_bytes(b"< 0 a\r\n")
    assert client.take_bytes() == b"*\r\n"


def test_exclusive_queue_that_is_taken_is_error(harness: Harness, client: Peer) -> None:
    harness.limit("a", DestinationSettings(max_consumers=1))
    client.send_bytes(b"< 9 a\r\n")
    other = harness.connect()
    assert other.request(b"< 9 b a\r\n").startswith(b"- a: it has 1 consumers")
    other.drop()
    assert harness.broker.destinations.queue("b").consumers == 0


def test_waiting_client_continues_on_recreated_queue(harness: Harness, client: Peer) -> None:
    for address in ("a", "b"):
        client.send_bytes(b"< 60 a b\r\n")
        queue = harness.find(address)
        assert queue is not None
        harness.broker.remove(queue, force=True)
        sender = harness.connect()
        sender.send_bytes(b"> 0 9 %b\r\n" % address.encode())
        assert client.take_bytes() == b"> 0 9 %b\r\n" % address.encode()
        harness.broker.remove(harness.broker.destinations.queue(address), force=True)
    assert client.request(b"> 0 9 b\r\n< 0 a b\r\n") == b"> 0 9 b\r\n"


def test_removing_queue_keeps_its_consumers_in_order_of_other_queues(
    harness: Harness, client: Peer, worker: Peer
) -> None:
    worker.send_bytes(b"< 60 a b\r\n")
    harness.broker.remove(harness.broker.destinations.queue("a"), force=True)
    client.send_bytes(b"> 1 9 b\r\n1\r\n> 1 9 a\r\n2\r\n> 1 9 b\r\n3\r\n")
    assert worker.take_bytes() == b"> 1 9 b\r\n1\r\n"
    # and the order of the list holds again
    assert worker.request(b"< 60 a b\r\n") == b"> 1 9 a\r\n2\r\n"


def test_removed_queue_that_may_not_be_created_again_is_error() -> None:
    harness = Harness(EngineSettings(auto_create_queues=False))
    harness.limit("a", DestinationSettings())
    client = harness.connect()
    client.send_bytes(b"< 60 a\r\n")
    harness.broker.remove(harness.broker.destinations.queue("a"), force=True)
    assert client.take_bytes().startswith(b"- a does not exist")
    assert not client.open


def test_removed_queue_that_may_not_be_created_again_is_error_for_blocked_senders() -> None:
    harness = Harness(EngineSettings(auto_create_queues=False))
    harness.limit("a", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    client = harness.connect()
    client.send_bytes(b"> 1 9 a\r\n1\r\n> 1 9 a\r\n2\r\n< 0 none\r\n")
    harness.broker.remove(harness.broker.destinations.queue("a"), force=True)
    assert client.take_bytes() == b"- a has been removed, and another may not be created\r\n"
    assert not client.open


def test_query_whose_reply_address_is_removed_times_out(
    harness: Harness, client: Peer, worker: Peer
) -> None:
    client.send_bytes(b"? 0 9 a\r\n")
    harness.broker.remove(
        harness.broker.destinations.queue(reply_address(worker.request(b"< 0 a\r\n")).decode()),
        force=True,
    )
    assert client.take_bytes() == b""
    harness.run_event_loop(9000)
    assert client.take_bytes() == b"*\r\n"


def test_blocked_messages_of_lost_connection_count_as_memory(harness: Harness) -> None:
    harness.limit("a", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    harness.limit("b", DestinationSettings(max_message_bytes=1))
    client, consumer = harness.connect(), harness.connect()
    bodies = b"1", b"2", bytes(100_000)
    refused = wire.encode_message(9, b"b", b"too large") + wire.encode_message(9, b"c", b"behind")
    client.send_bytes(b"".join(wire.encode_message(9, b"a", body) for body in bodies) + refused)
    client.drop()
    assert harness.broker.memory > 100_000
    for body in bodies:
        assert consumer.request(b"< 0 a\r\n") == wire.encode_message(9, b"a", body)
    assert harness.bodies("c") == []


# --- durability --------------------------------------------------------------------------------


def test_sync_message_is_ready_for_its_own_sender(harness: Harness) -> None:
    client = harness.connect(Durability.SYNC)
    client.send_bytes(b"> 1 9 a\r\nx\r\n< 0 a\r\n< 0 a\r\n")
    assert client.take_bytes() == b"> 1 9 a\r\nx\r\n*\r\n"


def test_sync_close_confirms_sent_messages(harness: Harness) -> None:
    for end in (b".\r\n", b""):
        client = harness.connect(Durability.SYNC)
        client.session.receive(b"> 1 9 a\r\nx\r\n" + end)
        if not end:
            client.session.end_of_input()
        assert client.open, "closed before the message was on disk"
        harness.run_event_loop()
        assert not client.open


@pytest.mark.parametrize(
    ("commands", "is_reset"),
    [
        (b"", True),
        (b"> 1 9 a\r\nx\r\n", True),
        (b"> 1 9 a\r\nx\r\n.\r\n", True),
        (b"< 60 b\r\n", False),
    ],
)
def test_sync_shutdown_resets_connection_that_may_have_sent_messages(
    harness: Harness, commands: bytes, is_reset: bool
) -> None:
    """An orderly close would confirm messages that are not read, or not on disk."""
    client = harness.connect(Durability.SYNC)
    client.session.receive(commands)
    client.session.disconnect("the broker stops", stopping=True)
    assert not client.open
    assert client.transport.aborted == is_reset


def test_sync_reading_pauses_while_too_many_bytes_are_not_durable(harness: Harness) -> None:
    client = harness.connect(Durability.SYNC)
    sends = MAX_UNCONFIRMED // (1 << 20)
    for _ in range(sends):
        assert not client.transport.paused
        client.session.receive(wire.encode_message(9, b"a", bytes(1 << 20)))
    assert client.transport.paused
    harness.run_event_loop()
    assert not client.transport.paused
    assert len(harness.bodies("a")) == sends


@pytest.mark.parametrize("durability", list(Durability))
def test_listener_sets_durability_of_messages(harness: Harness, durability: Durability) -> None:
    client = harness.connect(durability)
    client.send_bytes(b"> 1 9 a\r\nx\r\n? 0 9 a\r\n")
    assert harness.broker.journal.stats().live == (2 if durability else 0)
    other = harness.connect(durability)
    other.request(b"< 0 a\r\n")
    address = reply_address(other.request(b"< 0 a\r\n"))
    assert harness.broker.journal.stats().live == 0, "settled only with the next turn"
    other.send_bytes(b"> 1 9 %b\r\ny\r\n" % address)
    assert client.take_bytes() == b"> 1 9 %b\r\ny\r\n" % address
    assert Address(Kind.QUEUE, address.decode()) not in harness.broker.journal.addresses.values()


# --- messages of other protocols ---------------------------------------------------------------


def test_delivers_messages_of_other_protocols(harness: Harness, client: Peer) -> None:
    queue = harness.broker.destinations.queue("a")
    now = harness.clock.wall

    def publish(**fields: object) -> None:
        message = Message(queue.address, b"x", BodyKind.TEXT, Origin.JMQ, timestamp=now)
        for name, value in fields.items():
            setattr(message, name, value)
        harness.broker.publish(queue, message)

    publish()
    publish(expiration=now + 1500, priority=3, reply_to=Address(Kind.QUEUE, "back"))
    publish(priority=2, reply_to=Address(Kind.TOPIC, "news"), properties={"k": 1})
    publish(priority=1, reply_to=Address(Kind.QUEUE, "a b\r\n> 0 1 forged"))
    publish(priority=0, kind=BodyKind.OBJECT, body=b"\xac\xed")
    harness.run_event_loop()
    assert client.request(b"< 0 a\r\n" * 5).split(b"\r\n") == [
        b"> 1 2147483647 a",
        b"x",
        b"> 1 2 a back",
        b"x",
        b"> 1 2147483647 a reply:topic:news:",
        b"x",
        b"> 1 2147483647 a reply:queue:a%20b%0D%0A%3E%200%201%20forged:",
        b"x",
        b"> 4 2147483647 a",
        b"rO0=",
        b"",
    ]


MAP = {f"key {number}": number for number in range(2000)}


def publish_map(harness: Harness, address: bytes = b"a") -> None:
    """Publish a map whose conversion takes long."""
    queue = harness.broker.destinations.queue(address.decode())
    body = java.dumps_map(MAP)
    harness.broker.publish(queue, Message(queue.address, body, BodyKind.MAP, Origin.JMQ))
    harness.run_event_loop()


@pytest.mark.parametrize("ready", [b"< 0 b a\r\n", b"< 9 a\r\n"])
def test_long_conversion_of_body_runs_in_another_thread(
    harness: Harness, client: Peer, ready: bytes
) -> None:
    publish_map(harness)
    assert client.request(ready + b"< 0 a\r\n") == b""
    harness.run_event_loop(10_000)
    assert client.take_bytes() == b"", "timed out although the message is there"
    harness.background.run()
    harness.run_event_loop()
    delivered, end = client.frames()
    assert (delivered[2], json.loads(delivered[3]), end[0]) == ((b"a",), MAP, wire.TIMEOUT)
    assert harness.bodies("a") == []
    assert client.request(b"> 1 9 a\r\n1\r\n< 0 a\r\n") == b"> 1 9 a\r\n1\r\n"


def test_query_waits_for_conversion_of_its_reply(
    harness: Harness, client: Peer, worker: Peer
) -> None:
    client.send_bytes(b"? 0 9 a\r\n.\r\n")
    publish_map(harness, reply_address(worker.request(b"< 0 a\r\n")))
    client.end()
    assert client.open
    harness.background.run()
    harness.run_event_loop()
    [reply] = client.frames()
    assert json.loads(reply[3]) == MAP
    assert not client.open
    assert list(map(str, harness.broker.destinations)) == ["a"]


@pytest.mark.parametrize("is_started", [False, True])
def test_message_being_converted_is_requeued_with_its_connection(
    harness: Harness, client: Peer, is_started: bool
) -> None:
    harness.limit("a", DestinationSettings(max_attempts=1))
    publish_map(harness)
    client.send_bytes(b"< 9 a\r\n")
    if is_started:
        harness.background.run()
    client.drop()
    harness.background.run()
    harness.run_event_loop()
    assert client.take_bytes() == b""
    other = harness.connect()
    other.send_bytes(b"< 9 a\r\n")
    harness.background.run()
    harness.run_event_loop()
    assert [frame[0] for frame in other.frames()] == [wire.MESSAGE]


def test_message_being_converted_is_sent_although_its_queue_is_deleted(
    harness: Harness, client: Peer
) -> None:
    publish_map(harness)
    client.send_bytes(b"< 9 a\r\n")
    harness.broker.remove(harness.broker.destinations.queue("a"), force=True)
    harness.background.run()
    harness.run_event_loop()
    assert [frame[0] for frame in client.frames()] == [wire.MESSAGE]
    assert client.request(b"> 1 9 a\r\n1\r\n< 0 a\r\n") == b"> 1 9 a\r\n1\r\n"


def test_large_body_without_conversion_is_sent_at_once(harness: Harness, client: Peer) -> None:
    queue = harness.broker.destinations.queue("a")
    body = bytes(300_000)
    harness.broker.publish(queue, Message(queue.address, body, BodyKind.BYTES, Origin.JMQ))
    harness.run_event_loop()
    [frame] = client.decoder.feed(client.request(b"< 0 a\r\n"))
    assert frame[3] == body


def test_sent_message_has_standard_fields(harness: Harness, client: Peer) -> None:
    client.send_bytes(b"> 1 9 a back\r\nx\r\n")
    (delivery,) = harness.broker.destinations.queue("a").queue.browse()
    message = delivery.message
    assert message is not None
    assert message.reply_to == Address(Kind.QUEUE, "back")
    assert (message.origin, message.kind) == (Origin.MSGLITE, BodyKind.BYTES)
    assert message.expiration == message.timestamp + 9000


def test_segments_are_acked_at_once_unless_answered(harness: Harness) -> None:
    """A client with Nagle's algorithm delays its next command for 40 ms without a TCP ack.

    If the command is answered or blocked, an extra ack would be useless.
    """
    worker, sender = harness.connect(), harness.connect()
    sender.send_bytes(b"> 1 60 a\r\nx\r\n")
    assert sender.transport.quick_acks == 1
    worker.send_bytes(b"< 60 a\r\n")
    assert worker.take_bytes() == b"> 1 60 a\r\nx\r\n"
    worker.send_bytes(b"< 60 a\r\n")
    assert worker.transport.quick_acks == 0
    sender.send_bytes(b"> 5 60 b\r\n")  # the body comes in the next segment
    assert sender.transport.quick_acks == 2


@pytest.mark.parametrize("command", [b"> 1 9 a\r\nx\r\n", b"< 9 a\r\n", b"? 1 9 a\r\nx\r\n"])
def test_user_at_quota_gets_error(command: bytes) -> None:
    harness = Harness(EngineSettings(max_destinations_per_user=1))
    harness.broker.destinations.queue("first", "")
    client = harness.connect()
    response = client.request(command)
    assert response.startswith(b"- ")
    assert b"max_destinations_per_user" in response
    assert not client.open
    client.drop()
    assert len(harness.broker.destinations) == 1
