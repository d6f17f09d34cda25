"""`sluicemq send` and `sluicemq receive`: send and receive messages by URL."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Iterable, Iterator
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sluicemq.cli.clients import ReceivedMessage, connect
from sluicemq.cli.console import Exit, JsonFlag, complain, err, print_json
from sluicemq.cli.message_arguments import BodiesArgument, FilesOption, read_standard_input
from sluicemq.model.errors import ConfigurationError
from sluicemq.server.address import Url
from sluicemq.server.units import Unit, format_quantity, parse_quantity

if TYPE_CHECKING:
    from sluicemq.clients.blocking import BlockingClient

BATCH = 64
"""Maximum number of messages in a call of the client, and without a progress bar."""
READ_BYTES = 1 << 16
"""Maximum number of bytes of standard input read at a time."""

UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", help="Broker and queue: phpmq://127.0.0.1:9100/orders")
]
ConnectTimeout = Annotated[
    float, typer.Option("--connect-timeout", min=0.01, help="Seconds to connect, and to write.")
]


def send(
    url: UrlArgument,
    bodies: BodiesArgument = None,
    file: FilesOption = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line of standard input is a message.")
    ] = False,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, help="Number of times to send each message.")
    ] = 1,
    ttl: Annotated[str, typer.Option("--ttl", help="Time to live: 30s, 1h; 0 = no expiry.")] = (
        "0"
    ),
    connect_timeout: ConnectTimeout = 10.0,
    as_json: JsonFlag = False,
) -> None:
    """Send messages: the arguments, files, or standard input (one message, or --lines)."""
    target = Url.parse(url)
    life = _seconds(ttl)
    if (bodies or file) and lines:
        raise ConfigurationError("--lines reads standard input; give no bodies or files with it")
    given = len(bodies or ()) + len(file or ())
    total = None if lines else max(1, given) * count
    sent = size = 0
    started = time.monotonic()
    connection = connect(target, connect_timeout)
    try:
        with _progress("sending", total) as progress:
            task = progress.tasks[0].id
            for given_bodies in _bodies(bodies or [], file or [], lines):
                for batch in _batches(given_bodies, count):
                    connection.send(batch, life)
                    sent += len(batch)
                    size += sum(map(len, batch))
                    progress.update(task, completed=sent)
            connection.confirm()
    except BaseException:
        _abandon(connection)
        raise
    connection.close()
    if as_json:
        elapsed = time.monotonic() - started
        print_json({"queue": target.queue, "sent": sent, "bytes": size, "seconds": elapsed})
    elif sys.stderr.isatty():
        err().print(f"{sent} sent", markup=False)


def receive(
    url: UrlArgument,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Stop after this many messages; 0 = never.")
    ] = 1,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout", "-t", help="Stop after this time without a message: 5s, 0 = now."
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write bodies as they are, without a line end after each.")
    ] = False,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: JsonFlag = False,
) -> None:
    """Receive messages and write their bodies to standard output, one per line.

    Each message is acknowledged after it has been written. Exits with code 1 if none was received.
    """
    patience = None if timeout is None else _duration(timeout)
    received = 0
    connection = connect(Url.parse(url), connect_timeout, count)
    try:
        with _progress("receiving", count or None, quiet=sys.stdout.isatty()) as progress:
            task = progress.tasks[0].id
            while not count or received < count:
                batch = connection.receive(patience, count - received if count else BATCH)
                if not batch:
                    break
                written = []
                try:
                    for message in batch:
                        _write(message, raw, as_json)
                        written.append(message)
                finally:
                    connection.settle(written)
                received += len(batch)
                progress.update(task, completed=received)
    except BaseException:
        _abandon(connection)
        raise
    connection.close()
    if not received:
        within = f" within {format_quantity(patience, Unit.SECONDS)}" if patience else ""
        complain(f"nothing came from {url}{within}")
        raise typer.Exit(Exit.REFUSED)


def as_record(message: ReceivedMessage) -> dict[str, Any]:
    """Return a message for JSON: `body` if it is text, else `body_base64`; unknown fields are
    omitted."""
    record: dict[str, Any] = {"queue": message.queue.encode("utf-8", "backslashreplace").decode()}
    try:
        record["body"] = message.body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = base64.b64encode(message.body).decode()
    if message.id:
        record["id"] = message.id
    if message.ttl:
        record["ttl"] = message.ttl
    if message.reply_to:
        record["reply_to"] = message.reply_to
    return record


def _write(message: ReceivedMessage, raw: bool, as_json: bool) -> None:
    stream = sys.stdout.buffer
    stream.write(msgspec.json.encode(as_record(message)) if as_json else message.body)
    if as_json or not raw:
        stream.write(b"\n")
    # The message is acknowledged next, so its body must be written by then.
    stream.flush()


def _bodies(arguments: list[str], files: list[Path], lines: bool) -> Iterator[list[bytes]]:
    """Return the messages to send, lines of standard input as soon as they have been read."""
    if arguments:
        yield [text.encode("utf-8", "surrogateescape") for text in arguments]
    for file in files:
        yield [file.read_bytes()]
    if arguments or files:
        return
    if lines:
        if sys.stdin.isatty():
            err().print("[dim]Type the messages, a line each; Ctrl-D ends them.[/]")
        yield from _lines(cast(BufferedReader, sys.stdin.buffer))
    else:
        yield [read_standard_input()]


def _lines(stream: BufferedReader) -> Iterator[list[bytes]]:
    parts: list[bytes] = []
    while data := stream.read1(READ_BYTES):
        complete, newline, rest = data.rpartition(b"\n")
        if newline:
            yield b"".join([*parts, complete]).split(b"\n")
            parts = []
        parts.append(rest)
    if any(parts):
        yield [b"".join(parts)]


def _batches(bodies: Iterable[bytes], count: int) -> Iterator[list[bytes]]:
    """Return each body `count` times, in batches."""
    messages = (body for body in bodies for _ in range(count))
    while batch := list(islice(messages, BATCH)):
        yield batch


def _progress(what: str, total: int | None, *, quiet: bool = False) -> Progress:
    """Show a bar on standard error if that is a terminal and there is progress to show."""
    console = err()
    progress = Progress(
        SpinnerColumn(),
        TextColumn(what),
        BarColumn(),
        TextColumn("{task.completed}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal or (total is not None and total < BATCH),
    )
    progress.add_task(what, total=total)
    return progress


def _abandon(connection: BlockingClient) -> None:
    """Close after an error; the first error is reported, not one from closing."""
    try:
        connection.close()
    except Exception:
        return


def _seconds(text: str) -> int:
    value = _duration(text)
    if value != int(value):
        raise ConfigurationError(f"--ttl: {text} is not a whole number of seconds")
    return int(value)


def _duration(text: str) -> float:
    try:
        return parse_quantity(text, Unit.SECONDS)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
