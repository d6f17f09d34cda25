from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq.broker import EngineSettings
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from sluicemq.protocols.phpmq import screen
from sluicemq.protocols.phpmq.maintenance import MaintenanceSession, QueueLists
from tests.protocols.phpmq.harness import Harness
from tests.support.sessions import RecordedTransport


class FixedProcess:
    version = "1.2.3"

    def uptime(self) -> float:
        return 3 * 86400 + 4 * 3600 + 5 * 60 + 6.9

    def memory(self) -> int:
        return 50 << 20

    def clients(self) -> int:
        return 17


class Terminal:
    """A client of the maintenance port."""

    def __init__(self, harness: Harness, lists: QueueLists | None = None) -> None:
        self.harness = harness
        self.lists = lists or QueueLists(harness.broker)
        self.transport = RecordedTransport(harness)
        self.session = self.transport.session = MaintenanceSession(
            self.transport, harness.broker, FixedProcess(), self.lists
        )
        harness.transports.append(self.transport)
        harness.run_event_loop()
        self.greeting = self.transport.take_written().decode()

    def enter(self, line: bytes, end: bytes = b"\n") -> str:
        self.session.receive(line + end)
        self.harness.run_event_loop()
        return self.transport.take_written().decode()

    def refresh(self) -> str:
        """Wait for half a second, after which the page is refreshed."""
        assert self.refreshing
        self.harness.run_event_loop(499)
        assert not self.transport.written
        self.harness.run_event_loop(1)
        return self.transport.take_written().decode()

    @property
    def refreshing(self) -> bool:
        return any(not timer.cancelled for timer in self.harness.timers)


@pytest.fixture
def terminal(harness: Harness) -> Terminal:
    return Terminal(harness)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)


def test_greets_with_title_and_prompt(terminal: Terminal) -> None:
    assert terminal.greeting.startswith("\x1b[2J\x1b[0;0H")
    assert terminal.greeting.endswith("\x1b[34mphpmq\x1b[39m > ")
    text = plain(terminal.greeting)
    assert "1.2.3" in text
    assert "Welcome!" in text
    assert "Type help" in text


def test_each_answer_ends_with_prompt(terminal: Terminal) -> None:
    for command in (b"help", b"clear", b"search x", b"flush x", b"flushall", b"what", b"q", b""):
        assert terminal.enter(command).endswith(screen.PROMPT)


def test_help_lists_all_commands(terminal: Terminal) -> None:
    answer = terminal.enter(b"help")
    words = ["help", "clear", "search", "flush", "flushall", "monitor", "show", "q", "quit", "exit"]
    assert [re.search(rf"^  {word}\b", answer, re.M) is not None for word in words] == [True] * 10


def test_help_for_one_command(terminal: Terminal) -> None:
    assert "Usage: flush QUEUE" in terminal.enter(b"help flush")
    output = terminal.enter(b"help nonsense")
    assert "no command nonsense" in output
    assert "flushall" in output


def test_clear_shows_title_bar_only(terminal: Terminal) -> None:
    answer = terminal.enter(b"clear")
    assert answer.startswith("\x1b[2J\x1b[0;0H")
    assert "SluiceMQ 1.2.3" in answer
    assert "Type help" not in answer


def test_search_lists_matching_queues(harness: Harness, terminal: Terminal) -> None:
    peer = harness.connect()
    peer.send(b"Orders.eu", b"x" * 1000, b"x" * 1048)
    peer.send(b"orders.us", b"")
    peer.send(b"12345", b"digits")
    peer.send(b"invoices", b"")
    harness.broker.destinations.queue("orders.empty")
    assert plain(terminal.enter(b'search "ORDERS"')).splitlines()[:3] == [
        'Found 2 queues matching "ORDERS":',
        " * Orders.eu (Messages: 2, Size: 2 KB)",
        " * orders.us (Messages: 1, Size: 0 B)",
    ]
    assert "Found 1 queues" in terminal.enter(b"search o*s*eu")
    assert "Found 1 queues" in terminal.enter(b"search 234")
    assert "Found 4 queues" in terminal.enter(b"search *")
    assert 'No queues found matching: "eu*orders"' in terminal.enter(b"search eu*orders")
    # a dot is a dot, and no part of the name serves two parts of the pattern
    assert "No queues" in terminal.enter(b"search orders-us")
    assert "No queues" in terminal.enter(b"search invoices*s")


def test_search_time_is_bounded_with_many_asterisks(harness: Harness, terminal: Terminal) -> None:
    harness.connect().send(b"a" * 1000, b"")
    assert "No queues" in terminal.enter(b"search " + b"a*" * 900 + b"b")


def test_flush_deletes_dispatched_messages_too(harness: Harness, terminal: Terminal) -> None:
    peer = harness.connect()
    peer.send(b"my queue", b"1", b"2", b"3")
    peer.send(b"other", b"4")
    peer.consume(b"my queue", 1)
    [frame] = peer.frames()
    assert plain(terminal.enter(b"flush 'my queue'")).startswith("OK\n")
    assert harness.bodies("my queue") == []
    assert harness.bodies("other") == [b"4"]
    peer.acknowledge(frame)
    peer.send(b"my queue", b"5")
    assert peer.bodies() == [b"5"]
    assert terminal.enter(b"flush nowhere").startswith("OK\n")
    assert harness.find("nowhere") is None


def test_long_flush_is_answered_at_its_end_and_later_commands_wait(
    harness: Harness, terminal: Terminal
) -> None:
    address = Address(Kind.QUEUE, "q")
    queue = harness.broker.destinations.resolve(address)
    for _ in range(1000):
        harness.broker.publish(queue, Message(address, b"x", durability=Durability.NONE))
    harness.run_event_loop()
    harness.scan_time.limit = 7  # enough for five empty priorities and a slice
    terminal.session.receive(b"flush q\nq\n")
    terminal.session.end_of_input()
    assert 0 < queue.waiting < 1000
    assert not terminal.transport.written
    harness.broker.publish(queue, Message(address, b"later", durability=Durability.NONE))
    harness.run_event_loop()
    first, second = plain(terminal.transport.take_written().decode()).split("OK\n")
    assert not first
    assert "1.2.3" in second
    assert [harness.bodies("q"), terminal.transport.close_reason] == [[b"later"], ""]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (b"monitor", "Queues total:   40"),
        (b"search *", "Found 40 queues"),
        (b"flushall", "OK\n"),
    ],
)
def test_many_queues_are_listed_in_slices_and_later_commands_wait(
    harness: Harness, terminal: Terminal, command: bytes, expected: str
) -> None:
    peer = harness.connect()
    for number in range(40):
        peer.send(b"q%d" % number, b"x")
    harness.scan_time.limit = 7
    terminal.session.receive(command + b"\nclear\n")
    terminal.session.end_of_input()
    assert not terminal.transport.written
    harness.run_event_loop()
    first, second = plain(terminal.transport.take_written().decode()).split("Welcome!")
    assert expected in first
    assert "phpmq >" in second
    assert terminal.transport.close_reason == ""


def test_lists_of_several_sessions_are_made_one_after_the_other(
    harness: Harness, terminal: Terminal
) -> None:
    peer = harness.connect()
    for number in range(40):
        peer.send(b"q%d" % number, b"x")
    terminals = [terminal, *(Terminal(harness, terminal.lists) for _ in range(3))]
    harness.scan_time.limit = 7
    for client in terminals:
        client.session.receive(b"search *\n")
    terminals[1].session.closed()
    assert harness.broker.scans.waiting == 1
    harness.run_event_loop()
    outputs = [client.transport.take_written() for client in terminals]
    assert [b"Found 40 queues" in output for output in outputs] == [True, False, True, True]


def test_list_ends_with_session(harness: Harness, terminal: Terminal) -> None:
    peer = harness.connect()
    for number in range(40):
        peer.send(b"q%d" % number, b"x")
    harness.scan_time.limit = 7
    terminal.session.receive(b"monitor\n")
    terminal.session.closed()
    harness.run_event_loop()
    assert not terminal.transport.written
    assert not harness.broker.scans.waiting


def test_list_without_queues_ends_with_session(harness: Harness, terminal: Terminal) -> None:
    harness.broker.scans.schedule(lambda: None)  # the list waits for its turn
    terminal.session.receive(b"monitor\n")
    terminal.session.disconnect("the broker stops")
    harness.run_event_loop()
    assert terminal.transport.take_written().endswith(b"The broker stops.\n")


def test_flush_needs_name(harness: Harness, terminal: Terminal) -> None:
    harness.connect().send(b"q", b"1")
    assert "incomplete command: flush" in terminal.enter(b"flush")
    assert "incomplete command: flush" in terminal.enter(b'flush ""')
    assert harness.bodies("q") == [b"1"]


def test_flushall_purges_all_queues(harness: Harness, terminal: Terminal) -> None:
    peer = harness.connect()
    peer.send(b"a", b"1")
    peer.send(b"b", b"2")
    peer.consume(b"a", 1)
    assert terminal.enter(b"flushall").startswith("OK\n")
    assert (harness.bodies("a"), harness.bodies("b")) == ([], [])


def test_monitor_refreshes_until_q(harness: Harness, terminal: Terminal) -> None:
    peer = harness.connect()
    peer.send(b"short", b"x" * 512)
    peer.send(b"long", *[b"x" * 1024] * 10)
    peer.consume(b"long", 3)
    page = terminal.enter(b"monitor")
    text = plain(page)
    assert page.startswith(screen.CLEAR)
    assert screen.PROMPT not in page
    assert "Memory: 50 MB   Uptime: 3d 04:05:06\n" in text
    assert "Queues total:    2  Clients connected:   17 \n" in text
    rows = text.splitlines()
    long_row = next(row for row in rows if row.startswith(" long "))
    short_row = next(row for row in rows if row.startswith(" short "))
    assert long_row.split() == ["long", "10", "10", "KB", "█" * 20]
    assert short_row.split() == ["short", "1", "512", "B", "█" * 2]
    peer.send(b"third", b"")
    assert "Queues total:    3" in plain(terminal.refresh())
    stopped = terminal.enter(b"q")
    assert stopped.startswith(screen.CLEAR)
    assert "Welcome!" in stopped
    assert stopped.endswith(screen.PROMPT)
    assert not terminal.refreshing


def test_monitor_has_13_rows_longest_first(harness: Harness, terminal: Terminal) -> None:
    peer = harness.connect()
    for number in range(20):
        peer.send(b"queue%d" % number, *[b""] * (number + 1))
    rows = [r for r in plain(terminal.enter(b"monitor")).splitlines() if r.startswith(" queue")]
    assert [row.split()[0] for row in rows] == [f"queue{n}" for n in range(19, 6, -1)]
    assert "and 7 more queues" in terminal.refresh()


def test_show_lists_messages_of_queue(harness: Harness, terminal: Terminal) -> None:
    peer = harness.connect()
    peer.send(b"q", b"x" * 2048, b"2")
    peer.consume(b"q", 1)
    [frame] = peer.frames()
    text = plain(terminal.enter(b"show q"))
    assert "Messages: 2   Size: 2 KB   Clients: 1" in text
    assert "Clients connected:   17" in text
    first, second = (row.split() for row in text.splitlines() if "2023-11-14" in row)
    assert first == ["1", frame[3].decode(), "→", "2", "KB", "2023-11-14", "22:13:20"]
    assert second[0] == "2"
    assert second[2:5] == ["•", "1", "B"]
    peer.acknowledge(frame)
    assert "Messages: 1 " in terminal.refresh()
    assert terminal.enter(b"q").endswith(screen.PROMPT)
    assert not terminal.refreshing


def test_show_has_14_rows(harness: Harness, terminal: Terminal) -> None:
    harness.connect().send(b"q", *[b""] * 20)
    text = terminal.enter(b"show q")
    assert text.count("•") == 14
    assert "and 6 more messages" in text


def test_show_of_unknown_queue_is_empty_list(harness: Harness, terminal: Terminal) -> None:
    text = plain(terminal.enter(b"show nowhere"))
    assert " nowhere\n" in text
    assert "Messages: 0" in text
    assert terminal.refreshing
    assert harness.find("nowhere") is None


def test_show_without_name_is_overview(terminal: Terminal) -> None:
    assert "Uptime" in terminal.enter(b"show")
    assert "Uptime" in terminal.enter(b'show ""')


def test_another_command_ends_refresh(harness: Harness, terminal: Terminal) -> None:
    terminal.enter(b"monitor")
    terminal.enter(b"show a")
    harness.run_event_loop()
    assert [timer.cancelled for timer in harness.timers] == [False]
    terminal.enter(b"help")
    assert not terminal.refreshing


def test_empty_line_does_not_end_refresh(terminal: Terminal) -> None:
    terminal.enter(b"monitor")
    assert terminal.enter(b"") == ""
    assert terminal.refreshing


@pytest.mark.parametrize("word", [b"quit", b"exit"])
def test_quit_closes(terminal: Terminal, word: bytes) -> None:
    terminal.enter(b"monitor")
    terminal.enter(word + b"\nflushall")
    assert not terminal.transport.open
    assert not terminal.refreshing
    terminal.session.closed()


def test_unknown_commands_and_wrong_case_are_errors(terminal: Terminal) -> None:
    for command in (b"nonsense", b"HELP", b"Monitor x", b"say 'it'"):
        answer = terminal.enter(b" %b " % command)
        assert f'ERROR: Unknown command "{command.decode()}"\n' in plain(answer)
        assert "flushall" in answer


@pytest.mark.parametrize("method", [b"POST", b"OPTIONS", b"flushall"])
def test_request_of_a_web_page_closes_without_effect(
    harness: Harness, terminal: Terminal, method: bytes
) -> None:
    harness.connect().send(b"q", b"1")
    answer = terminal.enter(method + b" / HTTP/1.1\r\nHost: 127.0.0.1:9101\r\n\r\nflushall")
    assert "This is not an HTTP port." in answer
    assert not terminal.transport.open
    assert harness.bodies("q") == [b"1"]


def test_accepts_lines_in_any_fragmentation_with_either_ending(
    harness: Harness, terminal: Terminal
) -> None:
    harness.connect().send(b"q", b"1")
    for byte in b"flush q\r":
        terminal.session.receive(bytes((byte,)))
    assert harness.bodies("q") == [b"1"]
    answer = terminal.enter(b"\nhelp\r\nsearch q")
    assert answer.count(screen.PROMPT) == 3
    assert harness.bodies("q") == []


@pytest.mark.parametrize("tail", [b"", b"\n"])
def test_line_without_end_closes(terminal: Terminal, tail: bytes) -> None:
    terminal.session.receive(b"x" * 4096)
    assert terminal.transport.open
    terminal.session.receive(b"x" + tail)
    assert not terminal.transport.open
    assert "at most 4096 bytes" in terminal.transport.take_written().decode()


def test_control_characters_in_names_are_escaped(harness: Harness, terminal: Terminal) -> None:
    name = b"\x1b[2J\xff\n\\"
    harness.connect().send(name, b"1")
    escaped = "\\x1b[2J\\xff\\x0a\\\\"
    for command in (b"monitor", b"search *"):
        assert escaped in terminal.enter(command)
    assert "Messages: 1 " in terminal.enter(b"show " + escaped.encode())
    assert "\x1b[2Jx" not in terminal.enter(b"search \x1b[2Jx")
    assert "\x1b[2Jx" not in terminal.enter(b"\x1b[2Jx")
    terminal.enter(b"flush " + escaped.encode())
    assert harness.bodies("\x1b[2J\udcff\n\\") == []


def test_escaped_names_are_accepted_as_shown(harness: Harness, terminal: Terminal) -> None:
    harness.connect().send(b"a\\b", b"1")
    harness.connect().send(b"a\\\\b", b"2")
    assert r" * a\\b (" in terminal.enter(b"search a")
    terminal.enter(rb"flush a\\b")
    assert harness.bodies(r"a\b") == []
    assert harness.bodies(r"a\\b") == [b"2"]
    terminal.enter(rb"flush a\\b")  # no queue is shown under this name any more
    assert harness.bodies(r"a\\b") == [b"2"]
    harness.connect().send(b"a\\b", b"3")
    terminal.enter(rb"flush a\b")
    assert harness.bodies(r"a\b") == []


def test_escaped_name_is_that_of_queue_with_messages(harness: Harness, terminal: Terminal) -> None:
    harness.broker.destinations.queue("\x85")
    harness.connect().send(b"\x85", b"1")
    assert "Messages: 1 " in terminal.enter(rb"show \x85")
    terminal.enter(rb"flush \x85")
    assert harness.bodies("\udc85") == []


def test_slow_terminal_is_refreshed_less_often(terminal: Terminal) -> None:
    terminal.enter(b"monitor")
    terminal.transport.stalled = True
    assert "Uptime" in terminal.refresh()
    assert terminal.refresh() == ""
    terminal.transport.stalled = False
    assert "Uptime" in terminal.refresh()


def test_command_waits_until_answer_before_has_been_sent(
    harness: Harness, terminal: Terminal
) -> None:
    terminal.transport.stalled = True
    terminal.enter(b"q\n" + b"help\n" * 499)
    assert terminal.transport.paused
    assert terminal.enter(b"help") == ""
    terminal.transport.stalled = False
    harness.run_event_loop()
    assert terminal.transport.take_written().decode().count("Available commands") == 500
    assert not terminal.transport.paused


def test_pending_commands_are_executed_before_close(harness: Harness, terminal: Terminal) -> None:
    terminal.session.receive(b"q\n" * 3 + b"help\n")
    terminal.session.end_of_input()
    harness.run_event_loop()
    assert "Available commands" in terminal.transport.take_written().decode()
    assert not terminal.transport.open


@pytest.mark.parametrize("line", [b"x" * 5000, b"x" * 5000 + b"\n"])
def test_line_above_limit_is_detected_behind_pending_commands(
    harness: Harness, terminal: Terminal, line: bytes
) -> None:
    terminal.session.receive(b"q\nq\n" + line)
    harness.run_event_loop()
    assert "at most 4096 bytes" in terminal.transport.take_written().decode()
    assert not terminal.transport.open


def test_close_ends_refresh(harness: Harness) -> None:
    for end in ("end_of_input", "disconnect", "closed"):
        terminal = Terminal(harness)
        terminal.enter(b"monitor")
        getattr(terminal.session, end)(*(["enough"] if end == "disconnect" else []))
        assert not terminal.refreshing
        assert terminal.transport.open == (end == "closed")
        terminal.session.closed()
        terminal.session.disconnect("the broker stops", stopping=True)
        terminal.session.end_of_input()


def test_show_lists_arrival_times_of_broker(harness: Harness, terminal: Terminal) -> None:
    destination = harness.broker.destinations.queue("q")
    for created in (-1, 1 << 62):
        harness.broker.publish(
            destination,
            Message(
                Address(Kind.QUEUE, "q"),
                b"",
                BodyKind.BYTES,
                Origin.INTERNAL,
                Durability.NONE,
                created,
            ),
        )
    text = terminal.enter(b"show q")
    arrival = datetime.fromtimestamp(harness.clock.wall // 1000, UTC)
    assert text.count(f"{arrival:%F %T}") == 2


def test_body_that_is_not_in_memory_is_listed_without_reading_it() -> None:
    harness = Harness(EngineSettings(memory_budget=1))
    peer = harness.connect()
    peer.send(b"q", b"x" * 100)
    peer.send(b"q", b"y" * 100)
    peer.consume(b"q", 1)
    peer.drop()
    destination = harness.find("q")
    assert destination is not None
    assert any(delivery.message is None for delivery in destination.queue.browse())
    assert "Messages: 2   Size: 200 B" in Terminal(harness).enter(b"show q")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KB"),
        (1900, "2 KB"),
        (5 << 20, "5 MB"),
        (3 << 30, "3 GB"),
        (7 << 40, "7 TB"),
    ],
)
def test_format_of_sizes(size: int, text: str) -> None:
    assert screen.size_text(size) == text


def test_format_of_uptime_below_day() -> None:
    assert screen.uptime_text(3661.5) == "01:01:01"


@given(st.binary(min_size=1, max_size=60), st.lists(st.binary(max_size=40), max_size=6))
@settings(deadline=None)
def test_no_name_and_no_input_kill_it(name: bytes, lines: list[bytes]) -> None:
    harness = Harness()
    harness.connect().send(name, b"body")
    terminal = Terminal(harness)
    for command in (b"monitor", b"search *", b"show " + name, b"search " + name, *lines):
        answer = terminal.enter(command)
        assert not re.search(r"[\x00-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f]", answer)
        assert not re.search(r"\x1b(?!\[(2J|0;0H|[0-9;]+m))", answer)
        if not terminal.transport.open:
            return
