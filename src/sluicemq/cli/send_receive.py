"""`sluicemq send` and `sluicemq receive`: send and receive messages by URL."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from io import BufferedReader
from itertools import islice
from math import ceil, inf
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, NamedTuple, cast

import msgspec
import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sluicemq.cli.api import GRANT_ADVICE, LOGIN_ADVICE
from sluicemq.cli.console import (
    MAX_INTERVAL,
    JsonFlag,
    UsageError,
    advising,
    body_fields,
    check_number,
    err,
    escape_bytes,
    print_json,
    quantity,
)
from sluicemq.cli.location import (
    PasswordFileOption,
    TokenFileOption,
    UserOption,
    find_credentials,
)
from sluicemq.cli.message_options import BodiesArgument, FilesOption, check_size, read_bodies
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.connect import connect as open_url
from sluicemq.model.errors import (
    ClientError,
    ConfigurationError,
    ConnectionLost,
    RequestTimeout,
    SluiceError,
)
from sluicemq.model.url import Url
from sluicemq.server.listener_settings import WITH_LOGINS
from sluicemq.server.settings import Unit, format_quantity

# --- Clients of one queue -------------------------------------------------------------------------

NO_EXPIRY_SECONDS: Final = 10 * 365 * 86_400
"""Seconds that stand for "no expiry" in msglite, whose format has no such value."""

WINDOW: Final = 100
"""Maximum number of unacknowledged messages of a PHPMQ or JMQ consumer."""


class ReceivedMessage(NamedTuple):
    """A received message. `acknowledge` confirms it to the broker."""

    queue: str
    body: bytes
    id: str
    ttl: int
    reply_to: str
    acknowledge: Callable[[], Awaitable[None]]


class QueueClient(ABC):
    """Client operations that `send` and `receive` use, for the queue of a URL.

    All methods raise ClientError. Messages are sent and received in batches, because each call from
    the command's thread takes longer than the message itself.
    """

    max_batch: ClassVar[int] = 64
    """Maximum number of messages that `receive` returns."""

    min_wait: ClassVar[float] = 0.25
    """Minimum number of seconds to wait for the first of them: PHPMQ, VibeMQ and JMQ do not report
    that a queue is empty."""

    own_options: ClassVar[tuple[str, ...]] = ()
    """Names of the options of the URL that the client's own URL does not have."""

    defaults: ClassVar[dict[str, str]] = {}
    """Defaults of options that differ from those of the client."""

    def __init__(self, client: Any, url: Url, count: int) -> None:
        self.client = client
        self.queue = url.queue
        self.options = dict(url.options)
        self.window = min(count or WINDOW, WINDOW)
        self.early_acks = count - 1 if count else inf
        """Number of acknowledgements that `acknowledge_early` may still send."""
        self.late_acks: list[Any] = []
        """Messages to acknowledge together with the end of the subscription."""

    @classmethod
    def check(cls, url: Url) -> None:
        """Check a URL and its options. Raises ConfigurationError."""
        if not url.queue:
            example = url._replace(queue="orders")
            raise ConfigurationError(f"{url}: name the queue, as in {example}")

    async def send(self, bodies: Sequence[bytes], ttl: int) -> None:
        """Send messages; `ttl` in seconds, 0 = no expiry."""
        try:
            for body in bodies:
                await self._send(body, ttl)
        except ValueError as error:
            raise ConfigurationError(f"cannot send to {self.queue!r}: {error}") from None

    async def receive(self, timeout: float | None, maximum: int) -> list[ReceivedMessage]:
        """Return the messages that have arrived, up to `maximum`.

        Waits up to `timeout` seconds for the first one, None = without end.
        """
        received: list[ReceivedMessage] = []
        try:
            if timeout is not None:
                timeout = max(timeout, self.min_wait)
            while len(received) < min(maximum, self.max_batch):
                received.append(await self._receive(timeout))
                timeout = 0
        except ValueError as error:
            raise ConfigurationError(f"cannot receive from {self.queue!r}: {error}") from None
        except RequestTimeout:
            pass
        except ClientError:
            if not received:
                raise
        return received

    async def acknowledge(self, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages."""
        for message in messages:
            await message.acknowledge()

    async def acknowledge_early(self, message: Any) -> None:
        """Acknowledge a message of the client now or, after `early_acks`, at the end."""
        if self.early_acks > 0:
            self.early_acks -= 1
            await message.ack()
        else:
            self.late_acks.append(message)

    async def confirm(self) -> None:
        """Wait until the broker has accepted all sent messages. The client sends nothing
        afterwards."""
        await self.client.confirm()

    async def close(self) -> None:
        """Close the connection after all acknowledgements have been sent."""
        await self.client.close()

    @abstractmethod
    async def _send(self, body: bytes, ttl: int) -> None:
        """Send a message. Raises ValueError if the protocol cannot represent it."""

    @abstractmethod
    async def _receive(self, timeout: float | None) -> ReceivedMessage:
        """Return the next message. Raises RequestTimeout, ValueError."""


async def open_client(url: Url, timeout: float, count: int = 0) -> QueueClient:
    """Return a connected client of the URL's queue. Raises ConfigurationError, ClientError.

    timeout  seconds for connecting and for each write, unless the URL has this option
    count    messages that will be received; 0 = no end
    """
    kind = _kind(url)
    kind.check(url)
    client_options = {**kind.defaults, "timeout": f"{timeout:.3f}", **dict(url.options)}
    passed = tuple(
        (name, text) for name, text in client_options.items() if name not in kind.own_options
    )
    reconnect = {"reconnect": None} if url.protocol in WITH_LOGINS else {}
    client = await open_url(url._replace(queue="", options=passed).format(), **reconnect)
    return kind(client, url, count)


def connect(url: Url, timeout: float, count: int = 0) -> BlockingClient:
    """Return a blocking view of `open_client`. Raises as that."""
    return BlockingClient(open_client, url, timeout, count)


class _Phpmq(QueueClient):
    """PHPMQ client. A message that is dispatched and not received counts an attempt, which may be
    its last. If messages are counted, the broker therefore dispatches only as many: the
    acknowledgements that would let it dispatch more are sent together with the end of the
    subscription. They are those of the last window, which is a tenth of the messages at most.
    """

    _subscribed = False
    # "auto": a released PHP consumer cannot read a message that was sent with a TTL
    defaults: ClassVar = {"dispatch_version": "auto"}

    def __init__(self, client: Any, url: Url, count: int) -> None:
        super().__init__(client, url, count)
        if count:
            self.window = min(max(1, count // 10), WINDOW)
            self.early_acks = count - self.window

    async def _send(self, body: bytes, ttl: int) -> None:
        await self.client.send(self.queue, body, ttl)

    async def _receive(self, timeout: float | None) -> ReceivedMessage:
        if not self._subscribed:
            await self.client.subscribe(self.queue, self.window)
            self._subscribed = True
        message = await self.client.receive(timeout)
        acknowledge = partial(self.acknowledge_early, message)
        return ReceivedMessage(
            message.queue, message.body, message.id, message.ttl, "", acknowledge
        )

    async def close(self) -> None:
        if self.late_acks:
            await self.client.subscribe(self.queue, 0, *self.late_acks)
        await super().close()


class _Msglite(QueueClient):
    max_batch = 1  # the broker acknowledges messages when it sends them
    min_wait = 0.0

    async def _send(self, body: bytes, ttl: int) -> None:
        await self.client.send(self.queue, body, ttl or NO_EXPIRY_SECONDS)

    async def _receive(self, timeout: float | None) -> ReceivedMessage:
        seconds = NO_EXPIRY_SECONDS if timeout is None else ceil(timeout)
        message = await self.client.ready(self.queue, timeout=seconds)
        if message is None:
            raise RequestTimeout(f"no message in {seconds} s")
        reply_to = message.reply_to or ""
        return ReceivedMessage(
            message.address, message.body, "", message.timeout, reply_to, _already_acked
        )


class _Vibemq(QueueClient):
    """VibeMQ client. Bodies are JSON: a body that is a JSON value other than a string is sent
    unchanged, other text as a JSON string and other bytes in base64. A received string is decoded
    to its text, so bodies survive a round trip.

    The broker decides how many messages it dispatches. Those that are not received count no attempt
    if the last acknowledgement is sent together with the end of the subscription.
    """

    _messages: Any = None

    async def _send(self, body: bytes, ttl: int) -> None:
        from sluicemq.clients.vibemq.commands import payload_of

        if ttl:
            raise ConfigurationError(
                "--ttl: in VibeMQ the queue sets the time to live (messageTtl)"
            )
        payload, headers = payload_of(body)
        await self.client.post(self.queue, payload, headers)

    async def _receive(self, timeout: float | None) -> ReceivedMessage:
        if self._messages is None:
            self._messages = await self.client.subscribe(self.queue)
        message = await self._messages.receive(timeout)
        reply_to = message.headers.get("replyTo", "")
        acknowledge = partial(self.acknowledge_early, message)
        return ReceivedMessage(message.queue, message.text, message.id, 0, reply_to, acknowledge)

    async def close(self) -> None:
        if self._messages is not None:
            with nullcontext() if self.late_acks else suppress(ConnectionLost):
                await self._messages.unsubscribe(*self.late_acks)
        await super().close()


class _Jmq(QueueClient):
    """JMQ client. A UTF-8 body is sent as a TextMessage, others as a BytesMessage; all are
    persistent. A received MapMessage or StreamMessage is converted to JSON; an ObjectMessage is
    returned unchanged.

    topic      true: the URL names a topic
    durable    name of a durable subscription of that topic; requires client_id
    selector   JMS message selector
    direct     true: the port is that of the JMQ service, not of a port mapper
    """

    own_options = ("topic", "durable", "selector")
    _consumer: Any = None
    _producer: Any = None

    @classmethod
    def check(cls, url: Url) -> None:
        super().check(url)
        options = dict(url.options)
        if options.get("topic", "true") not in ("true", "false"):
            raise ConfigurationError(f"{url}: topic is true or false, not {options['topic']}")
        try:
            url.queue.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(
                f"{url}: the name of a JMS destination must be UTF-8 text"
            ) from None
        if "durable" in options and not (options.get("topic") == "true" and "client_id" in options):
            raise ConfigurationError(f"{url}: durable needs topic=true and client_id")

    @property
    def _destination(self) -> Any:
        from sluicemq.clients.jmq import Queue, Topic

        return (Topic if self.options.get("topic") == "true" else Queue)(self.queue)

    async def _send(self, body: bytes, ttl: int) -> None:
        if self._producer is None:
            session = await self.client.session()
            self._producer = await session.producer(self._destination)
        try:
            text: str | bytes = body.decode()
        except UnicodeDecodeError:
            text = body
        await self._producer.send(text, ttl=ttl, wait=False)

    async def _receive(self, timeout: float | None) -> ReceivedMessage:
        if self._consumer is None:
            from sluicemq.clients.jmq import AckMode

            session = await self.client.session(AckMode.CLIENT)
            self._consumer = await session.consumer(
                self._destination,
                selector=self.options.get("selector", ""),
                name=self.options.get("durable", ""),
                durable="durable" in self.options,
                prefetch=self.window,
            )
        message = await self._consumer.receive(timeout)
        reply_to = message.reply_to
        return ReceivedMessage(
            self.queue,
            message.readable_body,
            message.id,
            ceil(message.seconds_left),
            reply_to.name if reply_to else "",
            lambda: message.acknowledge(only=True),
        )

    async def confirm(self) -> None:
        if self._producer is not None:
            await self._producer.confirm()


async def _already_acked() -> None:
    """Do nothing: msglite messages are acknowledged when they are sent."""


_CLIENTS: Final[dict[str, type[QueueClient]]] = {
    "jmq": _Jmq,
    "msglite": _Msglite,
    "phpmq": _Phpmq,
    "vibemq": _Vibemq,
}


def _kind(url: Url) -> type[QueueClient]:
    """Return the client class of the URL's protocol. Raises ConfigurationError."""
    kind = _CLIENTS.get(url.protocol)
    if kind is None:
        protocols = ", ".join(sorted(_CLIENTS))
        raise ConfigurationError(f"{url}: there is no client for {url.protocol}; use {protocols}")
    return kind


_LOGIN_OPTIONS: Final = frozenset(
    ("user", "username", "userid", "uid", "password", "pwd", "token", "authtoken")
)
"""Options of a URL that contain credentials, without regard to case and `_`."""


def with_login(
    url: Url, user: str | None, password_file: Path | None, token_file: Path | None
) -> Url:
    """Return `url` with the credentials of the options or the environment. Raises UsageError.

    The environment is ignored if the URL contains credentials, or its protocol has no login.
    """
    _kind(url).check(url)
    has_options = (user, password_file, token_file) != (None, None, None)
    if url.protocol not in WITH_LOGINS:
        if has_options:
            raise UsageError(f"{url.protocol} has no login; leave out --user and --token-file")
        return url
    names = {name.replace("_", "").lower() for name, _ in url.options}
    if url.user or names & _LOGIN_OPTIONS:
        if has_options:
            raise UsageError("the URL contains the user; leave out --user and the files")
        return url
    login = find_credentials(user, password_file, token_file, str(url))
    # with any user name, the password may be a token
    user, password = ("token", login.token) if login.token else (login.user, login.password)
    if not user:
        return url
    return url._replace(options=(*url.options, ("username", user), ("password", password)))


# --- `sluicemq send` and `receive` ----------------------------------------------------------------

app = typer.Typer()

BATCH = 64
"""Maximum number of messages in a call of the client, and without a progress bar."""
READ_BYTES = 1 << 16
"""Maximum number of bytes of standard input read at a time."""

UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", help="Broker and queue: phpmq://127.0.0.1:9100/orders")
]
ConnectTimeout = Annotated[
    float,
    typer.Option(
        "--connect-timeout",
        min=0.01,
        max=MAX_INTERVAL,
        callback=check_number,
        help="Seconds to connect, and to write, unless the URL has a timeout.",
    ),
]


@app.command()
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
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Send messages: the arguments, files, or standard input (one message, or --lines)."""
    target = with_login(Url.parse(url), user, password_file, token_file)
    time_to_live = quantity("--ttl", ttl, Unit.SECONDS)
    if time_to_live != int(time_to_live):
        raise ConfigurationError(f"--ttl: {ttl} is not a whole number of seconds")
    if (bodies or file) and lines:
        raise ConfigurationError("--lines reads standard input; give no bodies or files with it")
    body_count = len(bodies or ()) + len(file or ())
    total = None if lines else max(1, body_count) * count
    sent = size = 0
    started = time.monotonic()
    with (
        advising(_refusal_advice),
        connect(target, connect_timeout) as connection,
        advising(_failure_advice),
        # an animation would erase the lines that are being typed
        _progress("sending", total, quiet=lines and sys.stdin.isatty()) as progress,
    ):
        given_bodies = ([body] for body in read_bodies(bodies or [], file or []))
        for group in _lines() if lines else given_bodies:
            for batch in _batches(group, count):
                connection.send(batch, int(time_to_live))
                sent += len(batch)
                size += sum(map(len, batch))
                progress.update(progress.task_ids[0], completed=sent)
        connection.confirm()
    if as_json:
        elapsed = time.monotonic() - started
        print_json({"queue": target.queue, "sent": sent, "bytes": size, "seconds": elapsed})
    elif sys.stderr.isatty():
        err().print(f"{sent} sent", markup=False)


@app.command()
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
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Receive messages and write their bodies to standard output, one per line.

    A message is acknowledged after it has been written. Exits with code 1 if none was received.
    """
    source = Url.parse(url)
    target = with_login(source, user, password_file, token_file)
    receive_timeout = None if timeout is None else quantity("--timeout", timeout, Unit.SECONDS)
    received = 0
    with (
        advising(_refusal_advice),
        connect(target, connect_timeout, count) as connection,
        _progress("receiving", count or None, quiet=sys.stdout.isatty()) as progress,
    ):
        while not count or received < count:
            batch = connection.receive(receive_timeout, count - received if count else BATCH)
            if not batch:
                break
            written_messages = []
            try:
                for message in batch:
                    _write(message, raw, as_json)
                    written_messages.append(message)
            finally:
                connection.acknowledge(written_messages)
            received += len(batch)
            progress.update(progress.task_ids[0], completed=received)
    if not received:
        period = (
            f" within {format_quantity(receive_timeout, Unit.SECONDS)}" if receive_timeout else ""
        )
        raise SluiceError(f"no message from {source}{period}")


_ADVICE: Final[dict[object, str]] = {
    403: GRANT_ADVICE,  # FORBIDDEN
    413: LOGIN_ADVICE,  # INVALID_LOGIN
    "AUTH_FAILED": LOGIN_ADVICE,
    "AUTH_REQUIRED": LOGIN_ADVICE,
    "NOT_AUTHORIZED": GRANT_ADVICE,
}
"""Advice by the status of a JMQ error or the code of a VibeMQ error."""


def _refusal_advice(error: SluiceError) -> str:
    """Return advice for the error of a user who may not log in, or not use the queue."""
    code = getattr(error, "status", None) or getattr(error, "code", None)
    if code == 403 and " may not " not in str(error):
        return ""  # another reason, such as too many failed logins
    return _ADVICE.get(code, "")


def _failure_advice(error: SluiceError) -> str:
    """Return, for an error of a connected client, where to find its reason, which not all protocols
    can report."""
    if not isinstance(error, ConnectionLost | RequestTimeout):
        return ""
    reason = (
        "The queue may be full, the broker's disk nearly full, or the port that of another "
        "protocol: see sluicemq status and the broker's log."
        if isinstance(error, RequestTimeout)
        else "The broker's log may state the reason."
    )
    return f"{reason} It is unknown which messages were accepted."


def as_record(message: ReceivedMessage) -> dict[str, Any]:
    """Return a message for JSON: `body` if it is text, else `body_base64`; unknown fields are
    omitted."""
    optional = {"id": message.id, "ttl": message.ttl, "reply_to": message.reply_to}
    return {
        "queue": escape_bytes(message.queue),
        **body_fields(message.body),
        **{name: value for name, value in optional.items() if value},
    }


def _write(message: ReceivedMessage, raw: bool, as_json: bool) -> None:
    stream = sys.stdout.buffer
    stream.write(msgspec.json.encode(as_record(message)) if as_json else message.body)
    if as_json or not raw:
        stream.write(b"\n")
    # The message is acknowledged next, so its body must be written by then.
    stream.flush()


def _lines() -> Iterator[list[bytes]]:
    """Yield the lines of standard input as soon as they have been read. Raises UsageError for one
    that is larger than a message."""
    if sys.stdin.isatty():
        err().print("[dim]Type the messages, a line each; Ctrl-D ends them.[/]")
    stream = cast(BufferedReader, sys.stdin.buffer)
    line = bytearray()
    while data := stream.read1(READ_BYTES):
        first, *others = data.split(b"\n")
        line += first
        check_size(line, "standard input")
        if others:
            yield [bytes(line), *others[:-1]]
            line = bytearray(others[-1])
    if line:
        yield [bytes(line)]


def _batches(bodies: Iterable[bytes], count: int) -> Iterator[list[bytes]]:
    """Return each body `count` times, in batches."""
    messages = (body for body in bodies for _ in range(count))
    while batch := list(islice(messages, BATCH)):
        yield batch


def _progress(description: str, total: int | None, *, quiet: bool = False) -> Progress:
    """Return a bar with one task, shown on standard error if that is a terminal and there is
    progress to show."""
    console = err()
    progress = Progress(
        SpinnerColumn(),
        TextColumn(description),
        BarColumn(),
        TextColumn("{task.completed}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal or (total is not None and total < BATCH),
    )
    progress.add_task(description, total=total)
    return progress
