"""Broker side of one VibeMQ connection.

    connected ──Connect──> logging in ──> logged in ──Disconnect, end of input──> closing
        ↑ └── any frame but Connect and Ping: NOT_AUTHENTICATED
        └─────failed: Error────┴────────────the last login that may fail────────> closing

A logged-in client stays logged in when a further Connect fails.

The session processes requests in order. Responses carry the request's id and may arrive in
another order, as the protocol allows: a PublishAck once the message is on disk, a ConnectAck once
the password is checked (later requests wait for it), the response to a change of the users once it
is on disk. A malformed frame is answered with INVALID_MESSAGE and ends the connection; other
invalid requests are answered with an error and the connection goes on.

Another thread unpacks and checks large frames. Until it has finished, the session neither reads
from the client nor processes the frames behind the large one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

from sluicemq import __version__
from sluicemq.broker import Broker, Consumer, Destination
from sluicemq.model.access import Identity, Operation
from sluicemq.model.errors import (
    AccessError,
    BrokerError,
    ProtocolError,
    TooManyConnections,
)
from sluicemq.protocols.channel import Channel, LoginCheck
from sluicemq.protocols.transport import Login, SessionInfo, State, Timer, Transport
from sluicemq.protocols.vibemq import error_texts, queues
from sluicemq.protocols.vibemq.admin import administer
from sluicemq.protocols.vibemq.compression import Compression, negotiate
from sluicemq.protocols.vibemq.connection import (
    SessionOptions,
    VibemqConnection,
    error_code,
    login_error,
)
from sluicemq.protocols.vibemq.creation import QueueCreation
from sluicemq.protocols.vibemq.decoder import Decoder, LargeFrame, Limits
from sluicemq.protocols.vibemq.mapping import MAX_QUEUE_NAME, is_queue_name, utf16_units
from sluicemq.protocols.vibemq.offload import LARGE, Offload, OffloadedJob
from sluicemq.protocols.vibemq.outgoing import LargeDeliveries
from sluicemq.protocols.vibemq.ownership import foreign, takes_options
from sluicemq.protocols.vibemq.payload import check_in_chunks
from sluicemq.protocols.vibemq.publisher import PublishCommands
from sluicemq.protocols.vibemq.subscriber import Subscriber
from sluicemq.protocols.vibemq.wire import (
    ACK,
    ADMIN,
    CONNECT,
    CONNECT_ACK,
    CREATE_QUEUE,
    DELETE_QUEUE,
    DISCONNECT,
    LIST_QUEUES,
    MAX_BODY,
    PING,
    PONG,
    PUBLISH,
    QUEUE_INFO,
    SUBSCRIBE,
    SUBSCRIBE_ACK,
    TOO_LONG,
    UNSUBSCRIBE,
    UNSUBSCRIBE_ACK,
    Frame,
)
from sluicemq.security.access import Access, Credentials

MOST_UNPACKED: Final = 4 * MAX_BODY
"""Bytes that compressed frames of one connection may unpack to before other connections are served.
A single larger frame waits for the memory of the largest frame that is accepted."""
_NEVER_LIMITED: Final = frozenset({ACK, PING, DISCONNECT})


class VibemqSession:
    """VibeMQ session of one connection. Implements `sluicemq.protocols.transport.Session`."""

    __slots__ = (
        "_access",
        "_broker",
        "_by_name",
        "_channel",
        "_connection",
        "_creation",
        "_decoder",
        "_failures",
        "_input_ended",
        "_large",
        "_login",
        "_offload",
        "_options",
        "_publishing",
        "_rate",
        "_second",
        "_subscribers",
        "_transport",
        "_unpacking",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        access: Access,
        options: SessionOptions | None = None,
        large: LargeDeliveries | None = None,
    ) -> None:
        """`large` is shared by all connections of a broker. Without it large frames are decoded and
        encoded on the event loop."""
        large = large or LargeDeliveries(Offload())
        options = options or SessionOptions()
        self._transport = transport
        self._broker = broker
        self._access = access
        self._options = options
        self._offload = large.offload
        strange = min(options.frame, options.login_bytes)
        self._decoder = Decoder(Limits(frame=strange, compressed=False))
        self._connection = VibemqConnection(
            transport, broker, access, options.terms, secrets.token_hex(8), large
        )
        self._channel: Channel[Frame] = self._connection.channel
        self._channel.has_backlog = self._has_backlog
        self._login = LoginCheck(self._channel, self)
        self._creation = QueueCreation(broker, options.defaults)
        self._publishing = PublishCommands(
            self._connection, options.durability, self._may, self._creation, options.block_timeout
        )
        self._subscribers: dict[str, Subscriber] = {}
        self._unpacking: Timer | None = None
        """Scheduled call that unpacks the decoder's backlog or reads its large frame."""
        self._large: OffloadedJob | None = None
        """Job that reads the decoder's large frame."""
        self._input_ended = False
        """The client has sent EOF, and the decoder still has a backlog."""
        self._failures = 0
        """Failed logins."""
        self._by_name = False
        """The client reads delivery modes by name."""
        self._second = 0
        self._rate = 0

    # --- from the connection -----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Process bytes from the client."""
        channel = self._channel
        if channel.ended:
            return
        decoder = self._decoder
        frames = decoder.feed(data)
        if self._options.rate_limit:
            frames = self._limit(frames)
        size = len(data) + decoder.unpacked
        if channel.held is not None:
            channel.hold(frames, size)
        else:
            self._handle(frames, size)

    def _unpack_more(self) -> None:
        """Process the next frames of the decoder's backlog."""
        self._unpacking = None
        self.receive(b"")

    def _read_large(self) -> None:
        """Submit the decoder's large frame for reading, first with a small memory limit."""
        self._unpacking = None
        large = self._decoder.large
        if large is not None:
            self._submit_large(large, MOST_UNPACKED, 2 * MOST_UNPACKED)

    def _submit_large(self, large: LargeFrame, limit: int, memory: int) -> None:
        job = self._offload.submit(partial(_read, large, limit), self._has_read, memory)
        if not job.ended:
            self._large = job

    def _has_read(self, result: _Read | Exception | None) -> None:
        """Process the result of reading the large frame; None = it needs more memory."""
        self._large = None
        large = self._decoder.large
        if large is None or self._channel.closed:
            return
        if result is None:
            self._submit_large(large, 0, 2 * self._options.unpacked)
        else:
            # in a callback of this connection, so that an error ends only this connection
            self._unpacking = self._transport.call_later(0, partial(self._carry_out_large, result))

    def _carry_out_large(self, result: _Read | Exception) -> None:
        self._unpacking = None
        if isinstance(result, Exception):
            if not isinstance(result, ProtocolError):
                raise result
            self._decoder.finish_large(result)
            self._handle([])
            return
        self._decoder.finish_large()
        frame, fault = result
        frames = [frame]
        if self._options.rate_limit:
            frames = self._limit(frames)
        if frames and fault:
            self._connection.refuse(frame.id, "INVALID_MESSAGE", fault)
            frames = []
        self._handle(frames, len(frame.payload), checked=True)

    def end_of_input(self) -> None:
        """Process the remaining requests, then close. A login that waits for its password check is
        cancelled: most likely the client has disconnected."""
        unread = self._decoder.backlog or self._decoder.large is not None
        if unread and self._channel.held is None:
            self._input_ended = True
            return
        self._channel.end()
        self._access.cancel_login()
        if self._channel.held is None:
            self._leave()

    @property
    def buffered(self) -> int:
        """Bytes of unprocessed input, including messages that wait for room in their queues."""
        parked = self._publishing.publisher.parked_bytes
        return self._decoder.buffered + self._channel.held_bytes + parked

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
        """Acknowledge the sent deliveries of queues without acknowledgements."""
        sent = self._connection.sent.acknowledge()
        for consumer in {consumer for consumer, _ in sent}:
            subscriber = self._connection.unacked.mine.get(consumer)
            if subscriber is not None:
                subscriber.measure()

    def pause_delivery(self) -> None:
        """Stop deliveries because the client reads too slowly. Responses are still sent."""
        self._channel.fall_behind()
        for subscriber in self._subscribers.values():
            subscriber.suspend()

    def resume_delivery(self) -> None:
        """Resume deliveries and reading."""
        self._channel.catch_up()
        for subscriber in self._subscribers.values():
            subscriber.resume()
        self._channel.update_reading()

    def closed(self) -> None:
        """Release everything that the connection holds."""
        self._stop()
        self._login.release()
        self._publishing.release()
        self._channel.has_backlog = None
        self._connection.unacked.release()

    def shutdown(self) -> None:
        """Send Disconnect, on which a .NET client starts to reconnect, and close."""
        self._notify_and_close("server_shutdown", "the broker stops")

    def disconnect(self, reason: str) -> None:
        """Send Disconnect with the administrator's reason, and close."""
        self._notify_and_close(reason, reason)

    def _notify_and_close(self, header: str, reason: str) -> None:
        if not self._channel.closed:
            headers = {"reason": header}
            self._connection.send(Frame(DISCONNECT, secrets.token_hex(16), headers=headers))
            self._close(reason)

    def session_info(self) -> SessionInfo:
        """Return the session info. The client id is the connection id sent with ConnectAck."""
        state: State = "open" if self._login.logged_in else "connecting"
        if self._channel.ended:
            state = "closing"
        client_id = self._connection.name if self._login.logged_in else ""
        return SessionInfo("vibemq", self._channel.identity.name, client_id, state)

    def consumers(self) -> list[Consumer]:
        """Return the consumers of all subscriptions that have a queue."""
        consumers = [subscriber.consumer for subscriber in self._subscribers.values()]
        return [consumer for consumer in consumers if consumer is not None]

    # --- frames ------------------------------------------------------------------------------

    def _handle(self, frames: list[Frame], size: int = 0, *, checked: bool = False) -> None:
        """Process frames, up to a Connect whose password check takes time.

        `size` is the bytes in which they were received; `checked`: their payloads are JSON.
        """
        channel = self._channel
        acknowledge = self._connection.unacked.acknowledge
        publish = self._publishing.publish
        for index, frame in enumerate(frames):
            kind = frame[0]
            if not self._login.logged_in and kind != CONNECT and kind != PING:
                self._connection.refuse(frame.id, "NOT_AUTHENTICATED", error_texts.CONNECT_FIRST)
            elif kind == PUBLISH:
                publish(frame, checked)
            elif kind == ACK:
                headers = frame[4]
                acknowledge(headers.get("messageId") or frame[1] if headers else frame[1])
            elif kind == PING:
                self._connection.send(Frame(PONG, frame.id))
            elif kind == CONNECT:
                self._connect(frame)
                if channel.held is not None:
                    if behind := frames[index + 1 :]:
                        channel.hold(behind, size)
                    break
            elif kind == DISCONNECT:
                channel.end()
                break
            elif kind == TOO_LONG:
                self._connection.refuse(frame.id, "INVALID_MESSAGE", frame.error_message)
            else:
                self._carry_out(frame)
            if self._channel.closed:
                break
        self._publishing.confirm(size)
        if channel.closed:
            return
        if channel.held is None:
            decoder = self._decoder
            unread = decoder.backlog or decoder.large is not None
            if channel.ended or (self._input_ended and not unread and decoder.error is None):
                self._leave()
            elif decoder.error is not None:
                self._answer_malformed(decoder.error)
        self._channel.update_reading()

    def _carry_out(self, frame: Frame) -> None:
        """Process an infrequent request."""
        command = _COMMANDS.get(frame.type)
        if command is None or (frame.type in ADMIN and self._access.users is None):
            why = error_texts.unknown_command(frame.type)
            self._connection.refuse(frame.id, "UNKNOWN_COMMAND", why)
            return
        try:
            command(self, frame)
        except ProtocolError as error:
            self._connection.refuse(frame.id, "INVALID_MESSAGE", str(error))
        except BrokerError as error:
            self._connection.refuse(frame.id, error_code(error), str(error))

    def _answer_malformed(self, error: ProtocolError) -> None:
        """Answer a malformed frame, and close once everything before it is answered."""
        identity = self._decoder.error_id or secrets.token_hex(16)
        self._connection.refuse(identity, "INVALID_MESSAGE", str(error))
        self._leave(str(error))

    def _limit(self, frames: list[Frame]) -> list[Frame]:
        """Refuse the frames above the rate limit and return the others."""
        limit = self._options.rate_limit
        second = self._broker.clock.steady // 1000
        if second != self._second:
            self._second = second
            self._rate = 0
        allowed: list[Frame] = []
        for frame in frames:
            if frame.type not in _NEVER_LIMITED:
                self._rate += 1
                if self._rate > limit:
                    self._connection.refuse(frame.id, "RATE_LIMITED", error_texts.TOO_MANY_REQUESTS)
                    continue
            allowed.append(frame)
        return allowed

    # --- login -------------------------------------------------------------------------------

    def _connect(self, frame: Frame) -> None:
        """Check the credentials."""
        if self._options.refused:
            self.answer_login(frame, TooManyConnections("the limit of connections is reached"))
            return
        headers = frame.headers
        credentials = Credentials(
            headers.get("authUsername", ""),
            headers.get("authPassword", ""),
            headers.get("authToken", ""),
        )
        self._login.check(frame, credentials)

    def process_held(self, frames: list[Frame]) -> None:
        """Process the frames behind a Connect whose check took time."""
        self._handle(frames)

    def answer_login(self, request: Frame, result: Identity | AccessError) -> None:
        """Answer a Connect with ConnectAck and act as its user from then on, or with an Error, and
        close after the last permitted attempt."""
        if isinstance(result, Identity):
            self._log_in(request)
            return
        code, why = login_error(result, request)
        self._connection.refuse(request.id, code, why)
        self._failures += 1
        again = self._failures < self._options.login_failures
        if again and not isinstance(result, TooManyConnections):
            return
        self._stop()
        self._login.close_later(str(result))

    def _log_in(self, frame: Frame) -> None:
        limits = Limits(
            frame=self._options.frame,
            unpacked=self._options.unpacked,
            batch=MOST_UNPACKED,
            inline=LARGE,
            skip=True,
        )
        self._decoder.allow(limits)
        self._publishing.forget()
        headers = frame.headers
        self._by_name = "clientVersion" in headers
        connection = self._connection
        how = negotiate(headers.get("supported-compression", ""), self._options.compression)
        answer = {"connectionId": connection.name, "serverVersion": __version__}
        if how:
            answer["negotiated-compression"] = how.name.lower()
        # the ConnectAck itself is not compressed
        connection.compression = Compression.NONE
        connection.send(Frame(CONNECT_ACK, frame.id, headers=answer))
        connection.compression = how

    # --- subscriptions -----------------------------------------------------------------------

    def _subscribe(self, frame: Frame) -> None:
        if not self._may(frame, Operation.CONSUME):
            return
        name = frame.queue
        existing = self._subscribers.get(name)
        if existing is not None:
            if existing.active:
                self._answer_subscribed(frame)
                return
            del self._subscribers[name]
            existing.end(set())
        destination = self._creation.find_or_create(name, self._channel.identity.creator)
        subscriber = Subscriber(self._connection, name)
        subscriber.attach(destination, partial(self._answer_subscribed, frame))
        self._subscribers[name] = subscriber

    def _answer_subscribed(self, frame: Frame) -> None:
        headers = {"queueName": frame.queue, "subscriptionId": frame.id}
        self._connection.send(Frame(SUBSCRIBE_ACK, frame.id, frame.queue, headers=headers))

    def _unsubscribe(self, frame: Frame) -> None:
        if not self._names_queue(frame):
            return
        subscriber = self._subscribers.pop(frame.queue, None)
        if subscriber is not None:
            subscriber.end(self._connection.unacked.timeouts.begun())
        headers = {"queueName": frame.queue}
        self._connection.send(Frame(UNSUBSCRIBE_ACK, frame.id, frame.queue, headers=headers))

    # --- queues ------------------------------------------------------------------------------

    def _create_queue(self, frame: Frame) -> None:
        """Create the queue, or apply the options to an existing one.

        An existing queue takes the options only if VibeMQ use created it and no client has declared
        it yet. A dead-letter queue is never changed.
        """
        written = queues.read_written(frame.payload, frame.headers)
        if not self._may(frame, Operation.CREATE):
            return
        name = frame.queue
        options = written.options(self._creation.options)
        existing = queues.find(self._broker, name)
        if existing is not None and self._options.strict_create:
            self._connection.refuse(frame.id, "QUEUE_EXISTS", f"there is a queue {name}")
            return
        if existing is None or takes_options(self._broker, existing, options):
            dlq = options.dead_letter_queue
            # else a user who may create one queue could fill any other, by letting messages expire
            if dlq and not self._permits(frame, Operation.PRODUCE, dlq):
                return
            created = 0
            if existing is not None and existing.address.kind is not options.kind:
                created = existing.created
                self._broker.remove(existing)
            self._creation.declare(name, written, self._channel.identity.creator, created)
        elif ignored := queues.ignored(existing, written):
            self._options.notify(
                f"CreateQueue of {name} by {self._transport.peer} changed nothing, because the "
                f"queue exists with other options: {ignored}"
            )
        self._connection.send(Frame(CREATE_QUEUE, frame.id, name))

    def _delete_queue(self, frame: Frame) -> None:
        """Delete the queue. A missing queue is a success."""
        if not self._may(frame, Operation.DELETE):
            return
        identity = self._channel.identity
        destination = queues.find(self._broker, frame.queue)
        if destination is not None:
            if not self._options.foreign_delete:
                why = foreign(self._broker, destination, identity)
                if why:
                    self._connection.refuse(frame.id, "FORBIDDEN", why)
                    return
            self._broker.remove(destination, force=True)
        self._connection.send(Frame(DELETE_QUEUE, frame.id, frame.queue))

    def _queue_info(self, frame: Frame) -> None:
        if not self._may(frame, Operation.BROWSE):
            return
        destination = queues.find(self._broker, frame.queue)
        if destination is not None:
            payload = queues.info(destination, self._by_name)
            self._connection.send(Frame(QUEUE_INFO, frame.id, frame.queue, payload))
            return
        # an Error would make the .NET client's attempt to connect fail
        missing = f"there is no queue {frame.queue}"
        answer = Frame(QUEUE_INFO, frame.id, frame.queue)
        self._connection.send(answer._replace(error_code="QUEUE_NOT_FOUND", error_message=missing))

    def _list_queues(self, frame: Frame) -> None:
        identity = self._channel.identity
        payload = queues.listed(filter(identity.sees, queues.names(self._broker)))
        self._connection.send(Frame(LIST_QUEUES, frame.id, payload=payload))

    def _may(self, frame: Frame, operation: Operation, named: Destination | None = None) -> bool:
        """Return whether the user may perform the operation on the frame's queue, or on `named`.

        Sends an Error if not. Any client that knows a temporary destination's name may use it.
        """
        if named is None and not self._names_queue(frame):
            return False
        if named is not None and named.temporary:
            return True
        return self._permits(frame, operation, frame.queue if named is None else named.name)

    def _permits(self, frame: Frame, operation: Operation, name: str) -> bool:
        """Return whether the user may perform the operation. Sends an Error if not."""
        identity = self._channel.identity
        if identity.may(operation, name):
            return True
        what = f"{operation.value} {name}"
        self._channel.deny(what)
        self._connection.refuse(frame.id, "NOT_AUTHORIZED", error_texts.ACCESS_DENIED)
        return False

    def _names_queue(self, frame: Frame) -> bool:
        """Return whether the frame has a valid queue name. Sends an Error if not."""
        if is_queue_name(frame.queue):
            return True
        if not frame.queue:
            self._connection.refuse(
                frame.id, "INVALID_QUEUE", error_texts.queue_name_missing(frame.type)
            )
            return False
        why = error_texts.QUEUE_NAME_CHARACTERS
        if utf16_units(frame.queue) > MAX_QUEUE_NAME:
            why = error_texts.queue_name_too_long(MAX_QUEUE_NAME)
        self._connection.refuse(frame.id, "INVALID_MESSAGE", why)
        return False

    # --- users -------------------------------------------------------------------------------

    def _administer(self, frame: Frame) -> None:
        users, identity = self._access.users, self._channel.identity
        assert users is not None

        def answer(payload: bytes) -> None:
            self._connection.send(Frame(frame.type, frame.id, payload=payload))

        def refuse(code: str, why: str) -> None:
            if code == "NOT_AUTHORIZED":
                self._channel.deny(f"command {frame.type}")
            self._connection.refuse(frame.id, code, why)

        administer(frame, users, identity, answer, refuse)

    # --- the end -----------------------------------------------------------------------------

    def _has_backlog(self, wait: bool) -> bool:
        """Return whether received frames are still packed, and unpack them unless they `wait`."""
        decoder = self._decoder
        if not decoder.backlog and decoder.large is None:
            return False
        if not wait and self._unpacking is None and self._large is None:
            more = self._unpack_more if decoder.large is None else self._read_large
            self._unpacking = self._transport.call_later(0, more)
        return True

    def _leave(self, reason: str = "") -> None:
        """Stop processing input, and close once all publishes are answered."""
        self._channel.end()
        self._end_subscriptions()
        self._broker.when_durable(
            self._publishing.publisher.last_sync, partial(self._close, reason)
        )

    def _end_subscriptions(self) -> None:
        begun = self._connection.unacked.timeouts.begun() if self._subscribers else set()
        for subscriber in self._subscribers.values():
            subscriber.end(begun)
        self._subscribers.clear()
        self._connection.unacked.timeouts.stop()
        self._publishing.publisher.end()

    def _stop(self) -> None:
        """Stop processing input and sending responses."""
        self._channel.close()
        if self._unpacking is not None:
            self._unpacking.cancel()
            self._unpacking = None
        if self._large is not None:
            self._large.cancel()
            self._large = None
        self._decoder.large = None
        self._channel.release()
        self._end_subscriptions()

    def _close(self, reason: str) -> None:
        if not self._channel.closed:
            self._stop()
            self._transport.close(reason)


_COMMANDS: Final[dict[int, Callable[[VibemqSession, Frame], None]]] = {
    SUBSCRIBE: VibemqSession._subscribe,
    UNSUBSCRIBE: VibemqSession._unsubscribe,
    CREATE_QUEUE: VibemqSession._create_queue,
    DELETE_QUEUE: VibemqSession._delete_queue,
    QUEUE_INFO: VibemqSession._queue_info,
    LIST_QUEUES: VibemqSession._list_queues,
    **dict.fromkeys(ADMIN, VibemqSession._administer),
}
"""Infrequent requests of a logged-in client."""

_Read = tuple[Frame, str]
"""Frame, and the reason for which its payload is refused; "" if it is valid."""


def _read(large: LargeFrame, size: int) -> _Read | None:
    """Read a large frame and check its payload, in any thread.

    Return None if it unpacks to more than `size` bytes, unless `size` is 0. Raises ProtocolError.
    """
    frame = large.read(size)
    if frame is None:
        return None
    if frame.type != PUBLISH:
        why = f"only a Publish may have more than {LARGE} bytes"
        return frame._replace(payload=b"", headers={}), why
    try:
        if frame.payload:
            check_in_chunks(frame.payload)
    except ProtocolError as error:
        return frame._replace(payload=b""), str(error)
    return frame, ""
