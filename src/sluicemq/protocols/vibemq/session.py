"""Broker side of one VibeMQ connection.

    connected ──Connect──> logging in ──> logged in ──Disconnect, end of input──> closing
        ↑ └── any frame but Connect and Ping: NOT_AUTHENTICATED
        └─────failed: Error────┴────────────the last login that may fail────────> closing

A logged-in client stays logged in when a further Connect fails.

The session processes requests in order. Responses carry the request's id and may be sent in
another order, as the protocol allows: a PublishAck once the message is on disk, a ConnectAck once
the password is checked (later requests wait for it), the response to a change of the users once it
is on disk. A malformed frame is answered with INVALID_MESSAGE and ends the connection; other
invalid requests are answered with an error and the connection stays open.

Of all requests except Publish, Ack and Ping, the session processes one in an event loop iteration:
each can take as long as ten publishes, or longer, such as a login, a list or a queue's backlog, and
a read can have thousands of them. The frames after it wait until the client has read the earlier
responses.

Another thread unpacks and checks large frames, and compresses long lists. Until it has finished,
the session neither reads from the client nor processes the frames after the large one or the
request.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import Final

from sluicemq import __version__
from sluicemq.broker import Broker, Consumer
from sluicemq.model.access import ANONYMOUS, Identity, Operation
from sluicemq.model.errors import (
    AccessError,
    AuthenticationMissing,
    LimitExceeded,
    LoginBusy,
    ProtocolError,
    TooManyConnections,
    TooManyFailures,
)
from sluicemq.protocols.channel import CONGESTED, MAX_UNREAD, Channel, LoginCheck
from sluicemq.protocols.offload import LARGE, SessionJob
from sluicemq.protocols.transport import Alarm, Login, SessionInfo, Transport
from sluicemq.protocols.vibemq.commands import COMMANDS
from sluicemq.protocols.vibemq.compression import Compression, Unpacker, negotiate
from sluicemq.protocols.vibemq.connection import (
    ANSWERED,
    SessionOptions,
    VibemqConnection,
    check_queue_name,
)
from sluicemq.protocols.vibemq.consumers import Subscriber, Subscriptions
from sluicemq.protocols.vibemq.large import LargeDeliveries, LargeFrame, read_large
from sluicemq.protocols.vibemq.wire import (
    ACK,
    ADMIN,
    CHANGE_PASSWORD,
    CONNECT,
    CONNECT_ACK,
    CREATE_USER,
    DELETE_USER,
    DELIVER,
    DISCONNECT,
    ERROR,
    GET_USER_PERMISSIONS,
    GRANT_PERMISSION,
    LIST_USERS,
    MAX_BODY,
    PING,
    PONG,
    PUBLISH,
    PUBLISH_ACK,
    REFUSED,
    REVOKE_PERMISSION,
    SUBSCRIBE,
    SUBSCRIBE_ACK,
    UNSUBSCRIBE,
    UNSUBSCRIBE_ACK,
    Decoder,
    Frame,
    Limits,
    compressed,
)
from sluicemq.security.access import Access, Credentials

MAX_UNPACKED_BYTES: Final = 4 * MAX_BODY
"""Bytes that compressed frames of one connection may unpack to before other connections are served.
A single larger frame waits for the memory of the largest frame that is accepted."""
MAX_SUBSCRIPTIONS: Final = 10_000
"""Subscriptions of a connection. Those whose queue was deleted count, because they resume."""
_FIXED_BYTES: Final = 21
"""Size of a frame with empty fields, in bytes."""
_NEVER_LIMITED: Final = frozenset({ACK, PING, DISCONNECT})
_TYPE_NAMES: Final = {
    CONNECT_ACK: "ConnectAck",
    PONG: "Pong",
    PUBLISH_ACK: "PublishAck",
    SUBSCRIBE_ACK: "SubscribeAck",
    UNSUBSCRIBE_ACK: "UnsubscribeAck",
    DELIVER: "Deliver",
    CREATE_USER: "AdminCreateUser",
    DELETE_USER: "AdminDeleteUser",
    CHANGE_PASSWORD: "AdminChangePassword",
    GRANT_PERMISSION: "AdminGrantPermission",
    REVOKE_PERMISSION: "AdminRevokePermission",
    LIST_USERS: "AdminListUsers",
    GET_USER_PERMISSIONS: "AdminGetUserPermissions",
    ERROR: "Error",
}
"""Names of types in the original server's error for unknown commands."""


class VibemqSession:
    """VibeMQ session of one connection. Implements `sluicemq.protocols.transport.Session`."""

    __slots__ = (
        "_channel",
        "_connection",
        "_decoder",
        "_failures",
        "_input_ended",
        "_job",
        "_login",
        "_next",
        "_options",
        "_refusal",
        "_requests_in_second",
        "_second",
        "_subscriptions",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        access: Access,
        large: LargeDeliveries,
        options: SessionOptions | None = None,
    ) -> None:
        """`large` is shared by all connections of a broker."""
        options = options or SessionOptions()
        self._options = options
        login_limit = min(options.frame, options.login_bytes)
        self._decoder = Decoder(Limits(frame=login_limit, compressed=False))
        self._channel: Channel[Frame] = Channel(
            transport, broker, access, "vibemq", ANONYMOUS, self._schedule_next
        )
        self._connection = VibemqConnection(self._channel, options, large)
        self._login = LoginCheck(self._channel, self._answer_login, self._handle)
        self._subscriptions = Subscriptions(self._connection)
        self._next = Alarm(transport)
        """Scheduled processing of the input that is left: frames after an infrequent request, the
        decoder's backlog or its large frame."""
        self._job = SessionJob(transport, large.offload)
        """Job for which further input waits: it reads the decoder's large frame or compresses a
        list."""
        self._input_ended = False
        """The client has sent EOF, and the decoder still has a backlog."""
        self._failures = 0
        """Failed logins."""
        self._refusal = ""
        """Reason of the end of the connection if the last login that may fail has failed."""
        self._second = 0
        self._requests_in_second = 0

    # --- from the connection -----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Process bytes from the client."""
        channel = self._channel
        if channel.ended:
            return
        frames = self._decoder.feed(data)
        if self._options.rate_limit:
            frames = self._refuse_excess(frames)
        if channel.held_frames is not None:
            channel.hold(frames, _size(frames))
        else:
            self._handle(frames)
        self._connection.publisher.count_received(len(data) + self._decoder.unpacked)

    def _schedule_next(self, wait: bool) -> bool:
        """Return whether received input is left, and schedule its processing unless that has to
        `wait`."""
        is_left = self._channel.held_frames is not None or self._decoder.backlog
        wait = wait or self._login.is_checking or self._job.is_running
        if is_left and not wait and self._next.timer is None:
            self._next.set(0, self._process_next)
        return is_left

    def _process_next(self) -> None:
        """Process the frames after an infrequent request, or else the next of the decoder's
        backlog, or submit its large frame for reading, first with a small memory limit."""
        if self._login.is_checking or self._job.is_running or self._channel.unread > MAX_UNREAD:
            return  # it is scheduled again when that has changed
        large = self._decoder.large
        if self._channel.held_frames is not None:
            self._handle(*self._channel.release())
        elif large is None:
            self.receive(b"")
        else:
            self._submit_large(large, MAX_UNPACKED_BYTES, 2 * MAX_UNPACKED_BYTES)

    def _submit_large(self, large: Unpacker, limit: int, memory: int) -> None:
        work = partial(read_large, self._decoder, large, limit)
        self._job.start(work, partial(self._execute_large, large), memory)

    def _execute_large(self, large: Unpacker, result: LargeFrame | ProtocolError | None) -> None:
        """Process the result of reading the large frame; None = it needs more memory."""
        if result is None:
            self._submit_large(large, 0, 2 * self._options.unpacked)
            return
        if isinstance(result, ProtocolError):
            self._decoder.finish_large(result)
            self._handle([])
            return
        self._decoder.finish_large()
        frames = [result.frame]
        if self._options.rate_limit:
            frames = self._refuse_excess(frames)
        self._handle(frames, large=result)
        self._connection.publisher.count_received(len(result.frame.payload))

    def end_of_input(self) -> None:
        """Process the remaining requests, then close. A login that waits for its password check is
        cancelled: most likely the client has disconnected."""
        if self._decoder.backlog and not self._login.is_checking:
            self._input_ended = True
            return
        self._channel.end()
        self._channel.access.cancel_login()
        if self._channel.held_frames is None:
            self._close_when_durable()

    @property
    def buffered(self) -> int:
        """Bytes of unprocessed input, including messages that wait for capacity."""
        parked_bytes = self._connection.publisher.parked_bytes
        return self._decoder.buffered + self._channel.held_bytes + parked_bytes

    @property
    def incomplete(self) -> bool:
        """True if a frame has been received in part."""
        return self._decoder.incomplete

    @property
    def login(self) -> Login:
        """State of the client's login."""
        return self._login.state

    def discard_input(self) -> None:
        """Drop the unfinished frame."""
        self._decoder.discard()

    def flushed(self) -> None:
        """Acknowledge the sent deliveries of queues without acknowledgements, and resume the others
        and reading."""
        self._subscriptions.flushed()
        if self._channel.congested:
            for subscriber in self._subscriptions.by_name.values():
                subscriber.pauses.resume(CONGESTED)
            self._channel.clear_congestion()

    def pause_delivery(self) -> None:
        """Stop deliveries because the client reads too slowly. Responses are still sent."""
        self._channel.mark_congested()
        for subscriber in self._subscriptions.by_name.values():
            subscriber.pauses.pause(CONGESTED)

    def closed(self) -> None:
        """End the subscriptions, and release the resources of the connection."""
        self._stop()
        self._login.release()
        self._connection.publisher.release()

    def disconnect(self, reason: str, *, stopping: bool = False) -> None:
        """Send Disconnect, on which a .NET client starts to reconnect, and close, once all
        publishes are answered."""
        self._stop_processing()
        headers = {"reason": "server_shutdown" if stopping else reason}
        self._close_when_durable(reason, Frame(DISCONNECT, secrets.token_hex(16), headers=headers))

    def session_info(self) -> SessionInfo:
        """Return the session info. The client id is the connection id sent with ConnectAck."""
        user = self._channel.identity.name
        if self._login.logged_in:
            return SessionInfo("vibemq", user, self._connection.name)
        return SessionInfo("vibemq", user, state="connecting")

    def consumers(self) -> list[Consumer]:
        """Return the consumers of all subscriptions that have a queue."""
        subscribers = self._subscriptions.by_name.values()
        return [
            subscriber.consumer for subscriber in subscribers if subscriber.consumer is not None
        ]

    # --- frames ------------------------------------------------------------------------------

    def _handle(self, frames: list[Frame], size: int = 0, large: LargeFrame | None = None) -> None:
        """Process frames, up to an infrequent request.

        `size` is that of the frames, or more; 0 = not measured. `large` is the only frame if that
        is large.
        """
        channel = self._channel
        acknowledge = self._subscriptions.acknowledge
        publish = self._connection.publish
        for index, frame in enumerate(frames):
            if self._refusal:
                break
            kind = frame[0]
            if not self._login.logged_in and kind != CONNECT and kind != PING:
                reason = "Please send a Connect command first."
                self._connection.refuse(frame.id, "NOT_AUTHENTICATED", reason)
            elif kind == PUBLISH:
                publish(frame, large)
            elif kind == ACK:
                headers = frame[4]
                acknowledge(headers.get("messageId") or frame[1] if headers else frame[1])
            elif kind == PING:
                self._connection.send(Frame(PONG, frame.id))
            elif kind == DISCONNECT:
                channel.end()
                break
            elif kind == REFUSED:
                self._connection.refuse(frame.id, "INVALID_MESSAGE", frame.error_message)
            else:
                self._execute(frame, follows_ack=index > 0 and frames[index - 1][0] == ACK)
                later_frames = frames[index + 1 :]
                if later_frames and not self._refusal:
                    channel.hold(later_frames, size or _size(later_frames))
                    break
        publisher = self._connection.publisher
        channel.traffic.published += len(publisher.accepted)
        publisher.confirm()
        if channel.held_frames is None:
            decoder = self._decoder
            if channel.ended or (
                self._input_ended and not decoder.backlog and decoder.error is None
            ):
                self._close_when_durable(self._refusal)
            elif decoder.error is not None:
                self._answer_malformed(decoder.error)
        self._channel.update_reading()

    def _execute(self, frame: Frame, *, follows_ack: bool) -> None:
        """Process an infrequent request; `follows_ack` if an Ack directly precedes it in a read."""
        command = COMMANDS.get(frame.type)
        try:
            if frame.type == CONNECT:
                self._connect(frame)
            elif frame.type == SUBSCRIBE:
                self._subscribe(frame)
            elif frame.type == UNSUBSCRIBE:
                self._unsubscribe(frame, follows_ack)
            elif command is None or (frame.type in ADMIN and self._channel.access.users is None):
                reason = f"Unknown command type: {_TYPE_NAMES.get(frame.type, frame.type)}"
                self._connection.refuse(frame.id, "UNKNOWN_COMMAND", reason)
            else:
                long_list = command(self._connection, frame)
                if long_list is not None:
                    self._compress_list(frame.id, long_list)
        except ANSWERED as error:
            self._connection.fail(frame.id, error)

    def _compress_list(self, identity: str, response: bytes) -> None:
        """Compress the response to the request of that id before further frames are processed."""
        compression = self._connection.compression
        work = partial(compressed, response, compression, self._options.threshold)
        self._channel.hold([], 0)
        self._job.start(work, partial(self._send_list, identity), 2 * len(response))

    def _send_list(self, identity: str, result: bytes | ProtocolError) -> None:
        """Send a compressed list, and process the frames after its request."""
        if isinstance(result, ProtocolError):  # it is too long
            self._connection.refuse(identity, "SERVER_ERROR", str(result))
        else:
            self._channel.write([result])
        self._process_next()

    def _answer_malformed(self, error: ProtocolError) -> None:
        """Answer a malformed frame, and close once everything before it is answered."""
        identity = self._decoder.error_id or secrets.token_hex(16)
        self._connection.refuse(identity, "INVALID_MESSAGE", str(error))
        self._close_when_durable(str(error))

    def _refuse_excess(self, frames: list[Frame]) -> list[Frame]:
        """Refuse the frames above the rate limit and return the others."""
        limit = self._options.rate_limit
        second = self._connection.broker.clock.steady // 1000
        if second != self._second:
            self._second = second
            self._requests_in_second = 0
        allowed: list[Frame] = []
        for frame in frames:
            if frame.type not in _NEVER_LIMITED:
                self._requests_in_second += 1
                if self._requests_in_second > limit:
                    reason = "Message rate limit exceeded."
                    self._connection.refuse(frame.id, "RATE_LIMITED", reason)
                    continue
            allowed.append(frame)
        return allowed

    # --- login -------------------------------------------------------------------------------

    def _connect(self, frame: Frame) -> None:
        """Check the credentials."""
        if self._options.refused:
            self._answer_login(frame, TooManyConnections("the limit of connections is reached"))
            return
        headers = frame.headers
        credentials = Credentials(
            headers.get("authUsername", ""),
            headers.get("authPassword", ""),
            headers.get("authToken", ""),
        )
        self._login.check(frame, credentials)

    def _answer_login(self, request: Frame, result: Identity | AccessError) -> None:
        """Answer a Connect with ConnectAck and act as its user from then on, or with an Error.

        After the last permitted attempt the frames behind it are dropped, and the connection closes
        once the publishes before it are answered.
        """
        if isinstance(result, Identity):
            self._log_in(request)
            return
        code, reason = _login_error(result, request)
        self._connection.refuse(request.id, code, reason)
        self._failures += 1
        may_retry = self._failures < self._options.login_failures
        if may_retry and (self._login.logged_in or not isinstance(result, TooManyConnections)):
            return
        self._refusal = str(result)
        self._channel.end()

    def _log_in(self, frame: Frame) -> None:
        limits = Limits(
            frame=self._options.frame,
            unpacked=self._options.unpacked,
            batch=MAX_UNPACKED_BYTES,
            inline=LARGE,
            skip=True,
        )
        self._decoder.allow(limits)
        self._connection.targets.clear()  # another user has other permissions
        headers = frame.headers
        connection = self._connection
        connection.reads_mode_names = "clientVersion" in headers
        compression = negotiate(headers.get("supported-compression", ""), self._options.compression)
        answer = {"connectionId": connection.name, "serverVersion": __version__}
        if compression:
            answer["negotiated-compression"] = compression.name.lower()
        # the ConnectAck itself is not compressed
        connection.compression = Compression.NONE
        connection.send(Frame(CONNECT_ACK, frame.id, headers=answer))
        connection.compression = compression

    # --- subscriptions -----------------------------------------------------------------------

    def _subscribe(self, frame: Frame) -> None:
        connection = self._connection
        connection.demand(frame, Operation.CONSUME)
        name = frame.queue
        by_name = self._subscriptions.by_name
        existing = by_name.get(name)
        if existing is not None and existing.consumer is not None:
            self._answer_subscribed(frame)
            return
        self._subscriptions.remove(name)
        if len(by_name) >= MAX_SUBSCRIPTIONS:
            raise LimitExceeded(
                f"the connection has {MAX_SUBSCRIPTIONS} subscriptions, the limit; end some first"
            )
        destination = connection.creation.find_or_create(name, self._channel.identity.creator)
        subscriber = Subscriber(self._subscriptions, name)
        subscriber.attach(destination, partial(self._answer_subscribed, frame))
        by_name[name] = subscriber

    def _answer_subscribed(self, frame: Frame) -> None:
        headers = {"queueName": frame.queue, "subscriptionId": frame.id}
        self._connection.send(Frame(SUBSCRIBE_ACK, frame.id, frame.queue, headers=headers))

    def _unsubscribe(self, frame: Frame, follows_ack: bool) -> None:
        check_queue_name(frame)
        self._subscriptions.remove(frame.queue, follows_ack)
        headers = {"queueName": frame.queue}
        self._connection.send(Frame(UNSUBSCRIBE_ACK, frame.id, frame.queue, headers=headers))

    # --- the end -----------------------------------------------------------------------------

    def _close_when_durable(self, reason: str = "", last_frame: Frame | None = None) -> None:
        """Process no further input, and close once all publishes are answered, after sending
        `last_frame`."""
        self._channel.end()
        self._end_subscriptions()
        self._connection.publisher.when_durable(self._close, reason, last_frame)

    def _end_subscriptions(self) -> None:
        self._subscriptions.end()
        self._connection.publisher.end()

    def _stop_processing(self) -> None:
        """Drop the input that is not processed yet."""
        self._next.cancel()
        self._job.cancel()
        self._decoder.large = None
        self._channel.release()

    def _stop(self) -> None:
        """Stop processing input and sending responses."""
        self._channel.close()
        self._stop_processing()
        self._end_subscriptions()

    def _close(self, reason: str, last_frame: Frame | None) -> None:
        if not self._channel.closed:
            if last_frame is not None:
                self._connection.send(last_frame)
            self._stop()
            if self._refusal:
                self._login.close_later(reason)
            else:
                self._channel.transport.close(reason)


def _size(frames: list[Frame]) -> int:
    """Return the size of frames as plain input with ASCII text, in bytes."""
    return sum(
        _FIXED_BYTES
        + len(frame.id)
        + len(frame.queue)
        + len(frame.payload)
        + len(frame.error_code)
        + len(frame.error_message)
        + sum(4 + len(key) + len(value) for key, value in frame.headers.items())
        for frame in frames
    )


def _login_error(error: AccessError, connect: Frame) -> tuple[str, str]:
    """Return code and text of the Error that answers `connect`.

    The code tells the client whether it may repeat the same login.
    """
    if isinstance(error, (LoginBusy, TooManyFailures)):
        return "RATE_LIMITED", str(error)
    if isinstance(error, TooManyConnections):
        return "CONNECTION_LIMIT", "Maximum connections reached."
    # a password without a user name may be a token, so it was checked
    headers = connect.headers
    has_credentials = "authToken" in headers or {"authUsername", "authPassword"} <= headers.keys()
    if isinstance(error, AuthenticationMissing) or not has_credentials:
        return "AUTH_REQUIRED", "Username and password are required."
    return "AUTH_FAILED", "Invalid username or password."
