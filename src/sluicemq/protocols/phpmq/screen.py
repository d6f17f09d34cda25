"""Screens of the PHPMQ maintenance port: plain text with ANSI colours, for a terminal of 80
columns. They only read their arguments.

Texts that scripts search for are the original server's, colours included: the greeting, the error
for an unknown command, the results of `search`, and the totals of `monitor`.

Clients choose the queue names, so characters that would control the terminal are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from sluicemq.protocols.transport import Process

PROMPT: Final = "\x1b[34mphpmq\x1b[39m > "
CLEAR: Final = "\x1b[2J\x1b[0;0H"
MONITOR_ROWS: Final = 13
DETAIL_ROWS: Final = 14

_COLUMNS: Final = 80
_NAME_COLUMNS: Final = 32
_BAR_COLUMNS: Final = 20
_ESCAPED: Final = re.compile(r"(?:[^\\]|\\(?:\\|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}))*")


class QueueSummary(NamedTuple):
    """Queue as listed; dispatched messages are included, size in body bytes."""

    name: str
    messages: int
    size: int


class MessageSummary(NamedTuple):
    """Message of a queue; `created` in wall ms, or 0 if it would have to be read from disk."""

    message_id: str
    dispatched: bool
    size: int
    created: int


COMMANDS: Final = {
    "help [command]": "Shows this list, or the page of one command.",
    "clear": "Clears the screen.",
    "search PATTERN": "Lists the queues whose names match; * matches any characters.",
    "flush QUEUE": "Deletes all messages of a queue, dispatched ones too.",
    "flushall": "Deletes all messages of all queues, dispatched ones too.",
    "monitor": "Shows all queues, twice a second, until q is entered.",
    "show QUEUE": "Shows the messages of a queue, twice a second, until q.",
    "q": "Ends monitor or show.",
    "quit": "Closes the connection.",
    "exit": "Closes the connection.",
}
"""Summaries of the commands by their usage, which begins with the command."""


def printable(name: str) -> str:
    """Return a name with escapes for non-printable characters and bytes that are not text.

    The escapes are \\xNN, \\uNNNN and \\UNNNNNNNN; a backslash is doubled.
    """
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(map(_printable_character, name))


def may_be_escaped(name: str) -> bool:
    """Return whether `printable` may have returned this text for another name."""
    return "\\" in name and _ESCAPED.fullmatch(name) is not None


def _printable_character(character: str) -> str:
    if character.isprintable():
        return "\\\\" if character == "\\" else character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that `decode_name` could not decode
        code -= 0xDC00
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def size_text(size: int) -> str:
    """Return bytes in the largest unit with a value of at least 1, 1024-based and rounded."""
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.0f} TB"


def uptime_text(seconds: float) -> str:
    """Return a duration as `3d 04:05:06`, without days if there are none."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"{days}d {clock}" if days else clock


def title_bar(version: str, subject: str) -> str:
    """Clear the screen and draw a title, white on blue."""
    title = f" SluiceMQ {version} - {subject}"
    return f"{CLEAR}\x1b[44;37m{title[:_COLUMNS]:<{_COLUMNS}}\x1b[0m\n\n"


def cleared(version: str) -> str:
    """Return the screen after `clear` and `q`."""
    return title_bar(version, "Welcome!")


def welcome(version: str) -> str:
    """Return the greeting of a new connection."""
    return f"{cleared(version)}Type help for a list of commands.\n\n"


def unknown_command(command: str) -> str:
    """Return the error for an unknown command, with the list of commands."""
    text = f'\x1b[41mERROR:\x1b[49m Unknown command "{printable(command)}"'
    return f"{text}\n\n{help_list()}"


def help_list() -> str:
    """Return the list of all commands."""
    lines = [f"  {usage:<16} {summary}" for usage, summary in COMMANDS.items()]
    return "\n".join(("Available commands:", "", *lines, "", ""))


def help_page(name: str) -> str:
    """Return the help of one command; for an unknown one an error and the list of commands."""
    for usage, summary in COMMANDS.items():
        if usage.split()[0] == name:
            return f"Usage: {usage}\n\n  {summary}\n\n"
    return error(f"There is no command {printable(name)}") + help_list()


def error(text: str) -> str:
    """Return an error in one red line."""
    return f"\x1b[31m{text}\x1b[39m\n\n"


def search_result(pattern: str, queues: Sequence[QueueSummary]) -> str:
    """Return the response to `search`."""
    text = printable(pattern)
    if not queues:
        return f'No queues found matching: "{text}"\n'
    lines = [
        f" * {printable(queue.name)} (Messages: {queue.messages}, Size: {size_text(queue.size)})"
        for queue in queues
    ]
    return "\n".join((f'Found {len(queues)} queues matching "{text}":', *lines, ""))


def monitor(process: Process, queues: int, longest: Sequence[QueueSummary]) -> str:
    """Return the page with the number of queues and the longest of them, longest first."""
    lines = [
        f" Memory: {size_text(process.memory())}   Uptime: {uptime_text(process.uptime())}",
        f"\x1b[44m Queues total:\x1b[43m {queues:>4} {_clients(process)}",
        "",
        f" {'Queue':<{_NAME_COLUMNS}} {'Messages':>11} {'Size':>9}",
    ]
    maximum = max((queue.messages for queue in longest), default=0)
    for queue in longest:
        bar = "█" * max(1, round(queue.messages * _BAR_COLUMNS / max(1, maximum)))
        lines.append(
            f" {_fit(queue.name)} {queue.messages:>11} {size_text(queue.size):>9} "
            f"\x1b[32m{bar}\x1b[39m"
        )
    return title_bar(process.version, "Monitor") + _page(lines, queues - len(longest), "queues")


def detail(
    process: Process, queue: QueueSummary, consumers: int, messages: Iterable[MessageSummary]
) -> str:
    """Return the page of a queue and its first messages."""
    lines = [
        f" {printable(queue.name)}",
        f" Messages: {queue.messages}   Size: {size_text(queue.size)}   Clients: {consumers}",
        _clients(process),
        "",
        f" {'#':>4} {'ID':<32}   {'Size':>9}  Created (UTC)",
    ]
    number = 0
    for number, message in enumerate(messages, 1):
        state = "→" if message.dispatched else "•"
        created = "-"
        if message.created:
            created = datetime.fromtimestamp(message.created // 1000, UTC).strftime("%F %T")
        lines.append(
            f" {number:>4} {message.message_id:<32} {state} {size_text(message.size):>9}  {created}"
        )
    return title_bar(process.version, "Queue") + _page(lines, queue.messages - number, "messages")


def _clients(process: Process) -> str:
    return f"\x1b[44m Clients connected:\x1b[43m {process.clients():>4} \x1b[49m"


def _fit(name: str) -> str:
    text = printable(name)
    if len(text) > _NAME_COLUMNS:
        text = text[: _NAME_COLUMNS - 1] + "…"
    return f"{text:<{_NAME_COLUMNS}}"


def _page(lines: list[str], hidden: int, unit: str) -> str:
    if hidden > 0:
        lines.append(f" … and {hidden} more {unit}")
    return "\n".join((*lines, "", "Enter q to stop.", ""))
