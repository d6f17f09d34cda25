"""Maintenance port of PHPMQ, on which a user at a terminal lists and purges queues.

One command per line, LF or CRLF; words are case-sensitive; the argument is the rest of the line,
without surrounding blanks and quotes. Only queues with messages exist, as in PHPMQ. `monitor` and
`show` redraw their page until the next command.

Lists contain the queues on which the user of the connection has any permission. `show` needs the
permission to browse the queue, `flush` that to manage it.

A command waits until the response to the previous one has been sent: a line of input may produce
pages of output, which would fill the broker's memory if the client does not read. There may be
many queues, so they are listed in slices of the time for scans.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from typing import Final

from sluicemq.broker import Broker, Destination
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, Kind, decode_name
from sluicemq.model.errors import AccessDenied
from sluicemq.protocols.channel import Channel
from sluicemq.protocols.phpmq import screen
from sluicemq.protocols.phpmq.wire import MessageIds
from sluicemq.protocols.transport import (
    Alarm,
    Login,
    NoConsumers,
    Process,
    SessionInfo,
    Transport,
)
from sluicemq.security.access import OPEN, Access

REFRESH_SECONDS: Final = 0.5
LINE_LIMIT: Final = 4096
"""Maximum length of a command in bytes; a longer one ends the session."""
_HTTP_REQUEST: Final = re.compile(r"\S+ \S+ HTTP/\d\.\d")


ListedQueue = tuple[int, Destination]
"""Number of messages of a queue, and the queue."""


class QueueLists:
    """Lists the queues of a broker in slices of the time for scans.

    It makes one list at a time, because each takes memory in proportion to the number of
    destinations, and there may be many sessions.
    """

    __slots__ = ("_broker", "_waiting")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: deque[
            tuple[
                Channel[bytes],
                Callable[[Destination], bool],
                Callable[[list[ListedQueue]], None],
            ]
        ] = deque()
        """Requested lists; the first one is being made."""

    def request(
        self,
        channel: Channel[bytes],
        is_listed: Callable[[Destination], bool],
        callback: Callable[[list[ListedQueue]], None],
    ) -> None:
        """Call `callback` with the destinations that have messages and that `is_listed` accepts,
        unless the channel is closed before."""
        self._waiting.append((channel, is_listed, callback))
        if len(self._waiting) == 1:
            self._broker.scans.begin_steps(self._make_lists())

    def _make_lists(self) -> Iterator[None]:
        while self._waiting:
            channel, is_listed, callback = self._waiting[0]
            queues: list[ListedQueue] = []
            for destination in list(self._broker.destinations.values()):
                yield
                if channel.closed:
                    break
                messages = destination.waiting + destination.unacked
                if messages and is_listed(destination):
                    queues.append((messages, destination))
            if not channel.closed:
                channel.transport.call(callback, queues)
            self._waiting.popleft()


class MaintenanceSession(NoConsumers):
    """Maintenance session. Implements `sluicemq.protocols.transport.Session`."""

    __slots__ = (
        "_channel",
        "_ids",
        "_input",
        "_lists",
        "_pending",
        "_process",
        "_timer",
        "_unsent",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        process: Process,
        lists: QueueLists,
        *,
        access: Access = OPEN,
    ) -> None:
        """`lists` is shared by all sessions of the broker."""
        self._channel: Channel[bytes] = Channel(transport, broker, access, "phpmq", access.guest)
        self._process = process
        self._lists = lists
        self._ids = MessageIds(broker.identity)
        self._input = bytearray()
        """Waiting commands, each with its line feed, and the beginning of an unfinished one."""
        self._unsent = False
        self._pending = 0
        """Number of lists to make and queues to purge before the response to the latest command."""
        self._timer = Alarm(transport)
        """Next refresh of the page, while there is one."""
        self._write(screen.welcome(process.version) + screen.PROMPT)

    # --- from the connection -----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Process bytes from the client. Reading is paused while commands wait."""
        self._input += data
        self._run()
        if self._waiting:
            self._channel.pause_reading(True)

    @property
    def _waiting(self) -> bool:
        """True if a complete command waits for the response to the previous one."""
        return b"\n" in self._input

    @property
    def buffered(self) -> int:
        """Bytes of unprocessed input."""
        return len(self._input)

    @property
    def incomplete(self) -> bool:
        """True if a command has been received in part."""
        return bool(self._input) and not self._input.endswith(b"\n")

    @property
    def login(self) -> Login:
        """Always DONE: the protocol has no logins, and commands are short."""
        return Login.DONE

    def discard_input(self) -> None:
        """Drop the unfinished command."""
        del self._input[self._input.rfind(b"\n") + 1 :]

    def end_of_input(self) -> None:
        """Process the waiting commands, then close: the client can no longer stop a refresh."""
        self._channel.end()
        if not self._waiting and not self._pending:
            self._close("")

    def flushed(self) -> None:
        """Process the next command, because the last response has been sent."""
        self._unsent = False
        self._run()
        if not self._waiting and not self._channel.closed and not self._pending:
            if self._channel.ended:
                self._close("")
            else:
                self._channel.pause_reading(False)

    def closed(self) -> None:
        """Stop refreshing."""
        self._channel.close()
        self._input.clear()
        self._timer.cancel()

    def disconnect(self, reason: str, *, stopping: bool = False) -> None:
        """Write the reason and close."""
        if not self._channel.closed:
            text = screen.printable(reason[:1].upper() + reason[1:])
            self._write(f"\n{text.rstrip('.')}.\n")
            self._close(reason)

    def session_info(self) -> SessionInfo:
        """Return the session info."""
        return SessionInfo("phpmq-maintenance", self._channel.identity.name)

    # --- commands ----------------------------------------------------------------------------

    def _run(self) -> None:
        """Process waiting commands, up to one with a response."""
        unread = self._input
        while self._waiting and not self._unsent and not self._channel.closed and not self._pending:
            end = unread.find(b"\n")
            line = bytes(unread[:end])
            del unread[: end + 1]
            if len(line) > LINE_LIMIT:
                self._refuse()
            else:
                self._command(decode_name(line).strip())
        if len(unread) > LINE_LIMIT and not self._waiting and not self._channel.closed:
            self._refuse()

    def _refuse(self) -> None:
        self._write(screen.error(f"A command has at most {LINE_LIMIT} bytes."))
        self._close("maintenance command too long")

    def _command(self, line: str) -> None:
        words = line.split(None, 1)
        if not words:
            if self._timer.timer is None:
                self._write(screen.PROMPT)
            return
        argument = words[1].strip(" \t'\"") if len(words) > 1 else ""
        self._timer.cancel()
        self._respond(partial(self._execute, words[0], argument, line))

    def _respond(self, execute: Callable[[], str]) -> None:
        """Write the response that `execute` returns, or the error that it raises."""
        try:
            response = execute()
        except AccessDenied as error:
            response = screen.error(f"Not permitted: {error}")
        if response:
            self._write(response + screen.PROMPT)

    def _execute(self, command: str, argument: str, line: str) -> str:
        """Carry out a command.

        Return its response; "" if that is a page, or is written later. Raises AccessDenied.
        """
        match command, argument:
            case _ if _HTTP_REQUEST.fullmatch(line):
                # a web page chooses the method, and further lines as the body
                self._write(screen.error("This is not an HTTP port."))
                self._close("an HTTP request to the maintenance port")
            case "quit" | "exit", _:
                self._close("")
            case ("monitor", _) | ("show", ""):
                self._refresh(partial(self._list, self._write_monitor))
            case "show", _:
                self._permitted(Operation.BROWSE, argument)
                self._refresh(partial(self._write_detail, argument))
            case "flushall", _:
                self._list(self._purge)
            case "flush", "":
                return screen.error("ERROR: incomplete command: flush takes the name of a queue")
            case "flush", _:
                queue = self._permitted(Operation.MANAGE, argument)
                return self._purge([] if queue is None else [(0, queue)])
            case "search", _:
                self._list(partial(self._search, argument))
            case "clear" | "q", _:
                return screen.cleared(self._process.version)
            case "help", "":
                return screen.help_list()
            case "help", _:
                return screen.help_page(argument)
            case _:
                return screen.unknown_command(line)
        return ""

    def _purge(self, queues: list[ListedQueue]) -> str:
        """Purge the queues, or none if the user may not purge one of them. Raises AccessDenied."""
        for _, destination in queues:
            self._channel.demand(Operation.MANAGE, destination.name)
        self._pending = 1 + len(queues)
        for _, destination in queues:
            self._channel.broker.operations.purge(destination, True, self._purged)
        self._purged(0)
        return ""

    def _purged(self, count: int) -> None:
        """Write the response once the last queue is purged."""
        self._pending -= 1
        if not self._pending and not self._channel.closed:
            self._write("OK\n" + screen.PROMPT)

    def _permitted(self, operation: Operation, argument: str) -> Destination | None:
        """Return the queue of this name, or None. Raises AccessDenied unless the user may perform
        the operation on it."""
        destination = self._find(argument)
        self._channel.demand(operation, argument if destination is None else destination.name)
        return destination

    def _search(self, pattern: str, queues: list[ListedQueue]) -> str:
        parts = [part for part in pattern.casefold().split("*") if part]
        return screen.search_result(
            pattern,
            sorted(
                _summarize(queue) for _, queue in queues if _matches(queue.name.casefold(), parts)
            ),
        )

    # --- pages -------------------------------------------------------------------------------

    def _refresh(self, write_page: Callable[[], None]) -> None:
        """Write a page now, unless the client has not read the last one, and from now on
        regularly."""
        if not self._unsent and not self._pending:
            write_page()
        self._timer.set(REFRESH_SECONDS, partial(self._refresh, write_page))

    def _write_monitor(self, queues: list[ListedQueue]) -> str:
        longest = nlargest(screen.MONITOR_ROWS, queues, key=itemgetter(0))
        summaries = [_summarize(destination) for _, destination in longest]
        self._write(screen.monitor(self._process, len(queues), summaries))
        return ""

    def _write_detail(self, name: str) -> None:
        destination = self._find(name)
        if destination is None:
            self._write(screen.detail(self._process, screen.QueueSummary(name, 0, 0), 0, ()))
            return
        rows = [
            screen.MessageSummary(
                self._ids.encode(delivery.sequence).decode(),
                delivery.unacked,
                delivery.size,
                delivery.message.arrival if delivery.message else 0,
            )
            for delivery in islice(destination.queue.browse(), screen.DETAIL_ROWS)
        ]
        summary = _summarize(destination)
        self._write(screen.detail(self._process, summary, destination.consumers, rows))

    # --- queues ------------------------------------------------------------------------------

    def _list(self, execute: Callable[[list[ListedQueue]], str]) -> None:
        """Write the response that `execute` returns for the queues with messages that the user may
        see, or the error that it raises."""
        self._pending = 1
        self._lists.request(self._channel, self._is_listed, partial(self._end_list, execute))

    def _end_list(
        self, execute: Callable[[list[ListedQueue]], str], queues: list[ListedQueue]
    ) -> None:
        self._pending = 0
        self._respond(partial(execute, queues))

    def _is_listed(self, destination: Destination) -> bool:
        """Return whether the user may see the queue in lists. Topics are not listed."""
        return (
            destination.address.kind is Kind.QUEUE
            and self._channel.identity.sees(destination.name)
            and self._is_visible(destination)
        )

    def _is_visible(self, destination: Destination) -> bool:
        """Return whether the user may see it: temporary queues belong to their connections."""
        return not destination.temporary or self._channel.identity.superuser

    def _find(self, name: str) -> Destination | None:
        """Return the queue of this name, or None. What may be an escaped name is always read as
        one: a page may show another queue under the same characters. Of several queues with this
        escaped name the one with the most messages is returned: lists show no empty queues."""
        destinations = self._channel.broker.destinations
        if screen.may_be_escaped(name):
            namesakes = (
                item for item in destinations.values() if screen.printable(item.name) == name
            )
            return max(
                filter(self._is_listed, namesakes),
                key=lambda item: item.waiting + item.unacked,
                default=None,
            )
        destination = destinations.find(Address(Kind.QUEUE, name))
        if destination is None or not self._is_visible(destination):
            return None
        return destination

    # --- output ------------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        self._unsent = True
        self._channel.transport.write((text.encode(),))

    def _close(self, reason: str) -> None:
        if not self._channel.closed:
            self.closed()
            self._channel.transport.close(reason)


def _matches(name: str, parts: Iterable[str]) -> bool:
    """Return whether the name has these parts, one after the other.

    Each is taken at its first occurrence: with a regular expression the running time would be
    unbounded.
    """
    for part in parts:
        _, separator, name = name.partition(part)
        if not separator:
            return False
    return True


def _summarize(destination: Destination) -> screen.QueueSummary:
    return screen.QueueSummary(
        destination.name, destination.waiting + destination.unacked, destination.bytes
    )
