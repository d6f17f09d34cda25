"""The broker's side of one VibeMQ connection.

    connected ──Connect──> logging in ──> logged in ──Disconnect, end of input──> closing
        ↑ └── anything but Connect and Ping: NOT_AUTHENTICATED
        └─────refused: Error───┴──────────the last one that may be refused──────> closing

Whoever has logged in stays logged in when another Connect is refused.

Requests are carried out in their order; answers carry the request's id and may come in another
order, as the protocol allows: a PublishAck when the message is on disk, that of a login when the
password has been checked (what follows it waits), that of a change of the users when it is on disk.
A malformed frame is answered INVALID_MESSAGE and ends the connection; whatever else is wrong with a
request is answered, and the connection goes on.

A large frame is unpacked and checked in another thread. Until that has been done nothing is read
from its client, and nothing behind the frame is carried out.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from sluicemq import __version__
from sluicemq.broker import Broker, Consumer, Destination
from sluicemq.model.access import Identity, Operation
from sluicemq.model.errors import (
    AccessError,
    AuthenticationMissing,
    BrokerError,
    LoginBusy,
    ProtocolError,
    TooManyConnections,
    TooManyFailures,
)
from sluicemq.model.message import Durability
from sluicemq.protocols.access import Access, Credentials
from sluicemq.protocols.transport import Login, SessionInfo, State, Timer, Transport
from sluicemq.protocols.vibemq import error_texts, queues
from sluicemq.protocols.vibemq.admin import administer
from sluicemq.protocols.vibemq.compression import SUPPORTED, Compression, negotiate
from sluicemq.protocols.vibemq.creation import ListenerDefaults, QueueCreation
from sluicemq.protocols.vibemq.mapping import MAX_QUEUE_NAME, is_queue_name, utf16_units
from sluicemq.protocols.vibemq.offload import LARGE, Offload, OffloadedJob
from sluicemq.protocols.vibemq.outgoing import LargeDeliveries
from sluicemq.protocols.vibemq.ownership import foreign, takes_options
from sluicemq.protocols.vibemq.payload import check_in_pieces
from sluicemq.protocols.vibemq.publisher import BLOCK_TIMEOUT, MOST_UNCONFIRMED, Publisher
from sluicemq.protocols.vibemq.responses import MOST_UNREAD, ResponseWriter, error_code
from sluicemq.protocols.vibemq.subscriber import ConnectionContext, DeliveryTerms, Subscriber
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
    MAX_UNPACKED,
    PING,
    PONG,
    PUBLISH,
    QUEUE_INFO,
    SUBSCRIBE,
    SUBSCRIBE_ACK,
    TOO_LONG,
    UNSUBSCRIBE,
    UNSUBSCRIBE_ACK,
    Decoder,
    Frame,
    LargeFrame,
    Limits,
)

REFUSED_SECONDS: Final = 0.25
"""From a refused login to the end of the connection."""
MOST_UNPACKED: Final = 4 * MAX_BODY
"""Bytes that compressed frames of one connection may unpack to before others are served. A single
one that unpacks to more waits for the memory of the largest frame that is accepted."""
_NEVER_LIMITED: Final = frozenset({ACK, PING, DISCONNECT})


def _ignore(_: str) -> None:
    return None


class Options(NamedTuple):
    """What a listener says about its connections.

    durability      of the messages sent here: the protocol leaves it open
    frame           bytes of a frame's body accepted, as it travels
    unpacked        bytes of a frame's body accepted, decompressed
    terms           of subscriptions
    compression     offered to the clients
    strict_create   CreateQueue answers QUEUE_EXISTS even if nothing is different
    foreign_delete  DeleteQueue deletes queues that others have created or use (ownership.py)
    notify          called with what an operator should know, as text; must not raise
    rate_limit      requests of a connection in a second, acknowledgements and pings not counted;
                    0 = as many as it likes
    login_bytes     bytes of a frame's body accepted before the login
    login_failures  refused logins, from 1, with the last of which a connection is closed
    refused         the connection is beyond the limit: its Connect is refused
    block_timeout   ms for which a publish waits for room in a queue that blocks its publishers
    defaults        of queues for which a client gives no options
    """

    durability: Durability = Durability.SYNC
    frame: int = MAX_BODY
    unpacked: int = MAX_UNPACKED
    terms: DeliveryTerms = DeliveryTerms()
    compression: tuple[Compression, ...] = SUPPORTED
    strict_create: bool = False
    foreign_delete: bool = False
    notify: Callable[[str], None] = _ignore
    rate_limit: int = 0
    login_bytes: int = 64 * 1024
    login_failures: int = 5
    refused: bool = False
    block_timeout: int = BLOCK_TIMEOUT
    defaults: ListenerDefaults = ListenerDefaults()


class VibemqSession:
    """See the module, and `sluicemq.protocols.transport.Session` for the contract."""

    __slots__ = (
        "_access",
        "_broker",
        "_by_name",
        "_context",
        "_creation",
        "_decoder",
        "_ended",
        "_failures",
        "_identity",
        "_input_ended",
        "_large",
        "_late",
        "_login",
        "_offload",
        "_options",
        "_paused",
        "_publisher",
        "_rate",
        "_refused",
        "_responses",
        "_second",
        "_subscribers",
        "_transport",
        "_unacked_back",
        "_unacked_bytes",
        "_unpacking",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        access: Access,
        options: Options | None = None,
        large: LargeDeliveries | None = None,
    ) -> None:
        """`large` is for all connections of a broker; without it large frames are read and made on
        the event loop."""
        large = large or LargeDeliveries(Offload())
        options = options or Options()
        self._transport = transport
        self._broker = broker
        self._access = access
        self._options = options
        self._offload = large.offload
        strange = min(options.frame, options.login_bytes)
        self._decoder = Decoder(Limits(frame=strange, compressed=False))
        self._context = ConnectionContext(
            transport, broker, options.terms, secrets.token_hex(8), large
        )
        self._responses = ResponseWriter(self._context, self._read_or_not)
        self._creation = QueueCreation(broker, options.defaults)
        self._publisher = Publisher(
            self._context,
            self._responses,
            options.durability,
            self._may,
            self._read_or_not,
            self._creation,
            options.block_timeout,
        )
        self._subscribers: dict[str, Subscriber] = {}
        self._identity: Identity | None = None
        self._login: Frame | None = None
        """The Connect that is being answered."""
        self._unacked_back: list[Frame] | None = None
        """Frames behind it; None while there is no such one."""
        self._unacked_bytes = 0
        """Bytes that they have come in, or have been unpacked to."""
        self._unpacking: Timer | None = None
        """The next frames of the decoder's backlog are about to be unpacked, or its large one."""
        self._large: OffloadedJob | None = None
        """The decoder's large frame is being read."""
        self._input_ended = False
        """The client will send no more, and the decoder has a backlog."""
        self._late = False
        """Its answer comes in a later turn."""
        self._failures = 0
        """Logins that were refused."""
        self._refused: Timer | None = None
        """The connection is about to be closed after a refused login."""
        self._by_name = False
        """This client reads delivery modes by name."""
        self._second = 0
        self._rate = 0
        self._paused = False
        self._ended = False
        """Nothing more is listened to."""

    # --- from the connection -----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Frames from the client."""
        if self._ended:
            return
        decoder = self._decoder
        frames = decoder.feed(data)
        if self._options.rate_limit:
            frames = self._limit(frames)
        size = len(data) + decoder.unpacked
        if self._unacked_back is not None:
            self._unacked_back += frames
            self._unacked_bytes += size
        else:
            self._handle(frames, size)

    def _unpack_more(self) -> None:
        """Carry out the next frames of the decoder's backlog."""
        self._unpacking = None
        self.receive(b"")

    def _read_large(self) -> None:
        """Have the decoder's large frame read: with little memory, if that is enough."""
        self._unpacking = None
        large = self._decoder.large
        if large is not None:
            self._submit_large(large, MOST_UNPACKED, 2 * MOST_UNPACKED)

    def _submit_large(self, large: LargeFrame, limit: int, memory: int) -> None:
        job = self._offload.submit(partial(_read, large, limit), self._has_read, memory)
        if not job.ended:
            self._large = job

    def _has_read(self, result: _Read | Exception | None) -> None:
        """The large frame has been read, or needs more memory."""
        self._large = None
        large = self._decoder.large
        if large is None or self._responses.closed:
            return
        if result is None:
            self._submit_large(large, 0, 2 * self._options.unpacked)
        else:
            # as everything that happens to a connection, so that an error ends no other
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
            self._responses.refuse(frame.id, "INVALID_MESSAGE", fault)
            frames = []
        self._handle(frames, len(frame.payload), checked=True)

    def end_of_input(self) -> None:
        """The client is done. What it has published is still answered, unless its login waits for a
        check: most likely the client has gone."""
        unread = self._decoder.backlog or self._decoder.large is not None
        if unread and self._unacked_back is None:
            self._input_ended = True
            return
        self._ended = True
        self._access.cancel_login()
        if self._unacked_back is None:
            self._leave()

    @property
    def buffered(self) -> int:
        """See Session. Messages that wait for room in their queues count, too."""
        return self._decoder.buffered + self._unacked_bytes + self._publisher.parked_bytes

    @property
    def incomplete(self) -> bool:
        """See Session."""
        return self._decoder.incomplete

    @property
    def login(self) -> Login:
        """See Session."""
        if self._identity is not None or self._responses.closed:
            return Login.DONE
        return Login.DUE if self._login is None else Login.CHECKING

    def discard_input(self) -> None:
        """See Session."""
        self._decoder.discard()

    def flushed(self) -> None:
        """Deliveries that nobody acknowledges are settled when they have left."""
        unsent = self._context.unsent
        if unsent:
            self._context.unsent = []
            for subscriber, delivery in unsent:
                subscriber.sent(delivery)
            # this turn's flush is over
            self._broker.wake()

    def pause_delivery(self) -> None:
        """The client reads too slowly: nothing is delivered, but answers still are."""
        self._context.congested = True
        for subscriber in self._subscribers.values():
            subscriber.suspend()

    def resume_delivery(self) -> None:
        """Go on delivering."""
        self._context.congested = False
        self._responses.unread = 0
        for subscriber in self._subscribers.values():
            subscriber.resume()
        self._read_or_not()

    def closed(self) -> None:
        """Give everything back."""
        self._stop()
        self._access.cancel_login()
        if self._refused is not None:
            self._refused.cancel()
        self._responses.release()
        self._publisher.release()
        self._context.unacked.release()

    def shutdown(self) -> None:
        """Say goodbye: a .NET client begins to look for the broker then."""
        self._take_leave("server_shutdown", "the broker stops")

    def disconnect(self, reason: str) -> None:
        """The same, in other words."""
        self._take_leave(reason, reason)

    def _take_leave(self, said: str, reason: str) -> None:
        if not self._responses.closed:
            headers = {"reason": said}
            self._responses.say(Frame(DISCONNECT, secrets.token_hex(16), headers=headers))
            self._close(reason)

    def session_info(self) -> SessionInfo:
        """See Session. The name is that of the CONNECT_ACK, and of its subscriptions to topics."""
        if self._identity is None:
            return SessionInfo("vibemq", state="closing" if self._ended else "connecting")
        state: State = "closing" if self._ended else "open"
        return SessionInfo("vibemq", self._identity.name, self._context.name, state)

    def consumers(self) -> list[Consumer]:
        """See Session."""
        found = [subscriber.consumer for subscriber in self._subscribers.values()]
        return [consumer for consumer in found if consumer is not None]

    # --- frames ------------------------------------------------------------------------------

    def _handle(self, frames: list[Frame], size: int = 0, *, checked: bool = False) -> None:
        """Carry out frames, which came in `size` bytes, up to a login that takes its time. If
        `checked`, their payloads are JSON."""
        acknowledge = self._context.unacked.acknowledge
        publish = self._publisher.publish
        for place, frame in enumerate(frames):
            kind = frame[0]
            if self._identity is None and kind != CONNECT and kind != PING:
                self._responses.refuse(frame.id, "NOT_AUTHENTICATED", error_texts.CONNECT_FIRST)
            elif kind == PUBLISH:
                publish(frame, checked)
            elif kind == ACK:
                headers = frame[4]
                acknowledge(headers.get("messageId") or frame[1] if headers else frame[1])
            elif kind == PING:
                self._responses.say(Frame(PONG, frame.id))
            elif kind == CONNECT:
                self._connect(frame)
                if self._unacked_back is not None:
                    self._late = True
                    if behind := frames[place + 1 :]:
                        self._unacked_back += behind
                        self._unacked_bytes = size
                    break
            elif kind == DISCONNECT:
                self._ended = True
                break
            elif kind == TOO_LONG:
                self._responses.refuse(frame.id, "INVALID_MESSAGE", frame.error_message)
            else:
                self._carry_out(frame)
            if self._responses.closed:
                break
        self._publisher.confirm(size)
        if self._responses.closed:
            return
        if self._unacked_back is None:
            decoder = self._decoder
            unread = decoder.backlog or decoder.large is not None
            if self._ended or (self._input_ended and not unread and decoder.error is None):
                self._leave()
            elif decoder.error is not None:
                self._answer_malformed(decoder.error)
        self._read_or_not()

    def _carry_out(self, frame: Frame) -> None:
        """A request that is not frequent."""
        try:
            if frame.type == SUBSCRIBE:
                self._subscribe(frame)
            elif frame.type == UNSUBSCRIBE:
                self._unsubscribe(frame)
            elif frame.type == CREATE_QUEUE:
                self._create_queue(frame)
            elif frame.type == DELETE_QUEUE:
                self._delete_queue(frame)
            elif frame.type == QUEUE_INFO:
                self._queue_info(frame)
            elif frame.type == LIST_QUEUES:
                self._list_queues(frame)
            elif frame.type in ADMIN and self._access.users is not None:
                self._administer(frame)
            else:
                why = error_texts.unknown_command(frame.type)
                self._responses.refuse(frame.id, "UNKNOWN_COMMAND", why)
        except ProtocolError as error:
            self._responses.refuse(frame.id, "INVALID_MESSAGE", str(error))
        except BrokerError as error:
            self._responses.refuse(frame.id, error_code(error), str(error))

    def _answer_malformed(self, error: ProtocolError) -> None:
        """And close, when what came before it has been answered, too."""
        identity = self._decoder.error_id or secrets.token_hex(16)
        self._responses.refuse(identity, "INVALID_MESSAGE", str(error))
        self._leave(str(error))

    def _limit(self, frames: list[Frame]) -> list[Frame]:
        """Answer what is too much in this second, and leave it out."""
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
                    self._responses.refuse(frame.id, "RATE_LIMITED", error_texts.TOO_MANY_REQUESTS)
                    continue
            allowed.append(frame)
        return allowed

    # --- login -------------------------------------------------------------------------------

    def _connect(self, frame: Frame) -> None:
        """Find out who it is; what follows waits in `_held_back` if that takes a while."""
        if self._options.refused:
            self._refuse_login(frame, TooManyConnections("the limit of connections is reached"))
            return
        headers = frame.headers
        credentials = Credentials(
            headers.get("authUsername", ""),
            headers.get("authPassword", ""),
            headers.get("authToken", ""),
        )
        self._login = frame
        self._unacked_back = []
        guest = self._access.guest
        if guest is not None and not any(credentials):
            self._admitted(guest)
        else:
            self._access.login(self._transport.peer, credentials, self._admitted)

    def _admitted(self, identity: Identity | AccessError) -> None:
        """Who it is, or that it is nobody."""
        frame, self._login = self._login, None
        unacked_back, self._unacked_back = self._unacked_back, None
        self._unacked_bytes = 0
        if frame is None or self._responses.closed:
            return
        if isinstance(identity, Identity):
            try:
                self._transport.claim_user(identity.name)
            except TooManyConnections as error:
                self._refuse_login(frame, error)
            else:
                self._log_in(frame, identity)
        else:
            self._refuse_login(frame, identity)
        if self._late and not self._responses.closed:
            self._late = False
            self._handle(unacked_back or [])

    def _log_in(self, frame: Frame, identity: Identity) -> None:
        """Answer a Connect with ConnectAck, and act as its user from now on."""
        self._identity = identity
        limits = Limits(
            frame=self._options.frame,
            unpacked=self._options.unpacked,
            batch=MOST_UNPACKED,
            inline=LARGE,
            skip=True,
        )
        self._decoder.allow(limits)
        self._context.creator = identity.creator
        self._publisher.forget()
        headers = frame.headers
        self._by_name = "clientVersion" in headers
        how = negotiate(headers.get("supported-compression", ""), self._options.compression)
        answer = {"connectionId": self._context.name, "serverVersion": __version__}
        if how:
            answer["negotiated-compression"] = how.name.lower()
        # it is not compressed yet itself
        self._context.compression = Compression.NONE
        self._responses.say(Frame(CONNECT_ACK, frame.id, headers=answer))
        self._context.compression = how

    def _refuse_login(self, frame: Frame, error: AccessError) -> None:
        """Answer a Connect with an Error; close if the client may not try again."""
        code, why = _login_error(error, frame)
        self._responses.refuse(frame.id, code, why)
        self._failures += 1
        again = self._failures < self._options.login_failures
        if again and not isinstance(error, TooManyConnections):
            return
        self._stop()
        close = partial(self._transport.close, str(error))
        self._refused = self._transport.call_later(REFUSED_SECONDS, close)

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
        destination = self._creation.find_or_create(name, self._context.creator)
        subscriber = Subscriber(self._context, name)
        subscriber.attach(destination, partial(self._answer_subscribed, frame))
        self._subscribers[name] = subscriber

    def _answer_subscribed(self, frame: Frame) -> None:
        headers = {"queueName": frame.queue, "subscriptionId": frame.id}
        self._responses.say(Frame(SUBSCRIBE_ACK, frame.id, frame.queue, headers=headers))

    def _unsubscribe(self, frame: Frame) -> None:
        if not self._names_queue(frame):
            return
        subscriber = self._subscribers.pop(frame.queue, None)
        if subscriber is not None:
            subscriber.end(self._context.unacked.timeouts.begun())
        headers = {"queueName": frame.queue}
        self._responses.say(Frame(UNSUBSCRIBE_ACK, frame.id, frame.queue, headers=headers))

    # --- queues ------------------------------------------------------------------------------

    def _create_queue(self, frame: Frame) -> None:
        """What exists already stays as it is, unless it came into being by VibeMQ use and nobody
        has declared it so far. A dead-letter queue stays as it is."""
        written = queues.read_written(frame.payload, frame.headers)
        if not self._may(frame, Operation.CREATE):
            return
        name = frame.queue
        options = written.options(self._creation.options)
        existing = queues.find(self._broker, name)
        if existing is not None and self._options.strict_create:
            self._responses.refuse(frame.id, "QUEUE_EXISTS", f"there is a queue {name}")
            return
        if existing is None or takes_options(self._broker, existing, options):
            letters = options.dead_letter_queue
            # else whoever may create one queue could fill any other, by letting messages expire
            if letters and not self._permits(frame, Operation.PRODUCE, letters):
                return
            created = 0
            if existing is not None and existing.address.kind is not options.kind:
                created = existing.created
                self._broker.remove(existing)
            self._creation.declare(name, written, self._context.creator, created)
        elif ignored := queues.ignored(existing, written):
            self._options.notify(
                f"CreateQueue of {name} by {self._transport.peer} changed nothing, because the "
                f"queue exists with other options: {ignored}"
            )
        self._responses.say(Frame(CREATE_QUEUE, frame.id, name))

    def _delete_queue(self, frame: Frame) -> None:
        """What does not exist need not be deleted."""
        if not self._may(frame, Operation.DELETE):
            return
        identity = self._identity
        assert identity is not None
        destination = queues.find(self._broker, frame.queue)
        if destination is not None:
            if not self._options.foreign_delete:
                why = foreign(self._broker, destination, identity)
                if why:
                    self._responses.refuse(frame.id, "FORBIDDEN", why)
                    return
            self._broker.remove(destination, force=True)
        self._responses.say(Frame(DELETE_QUEUE, frame.id, frame.queue))

    def _queue_info(self, frame: Frame) -> None:
        if not self._may(frame, Operation.BROWSE):
            return
        destination = queues.find(self._broker, frame.queue)
        if destination is not None:
            payload = queues.info(destination, self._by_name)
            self._responses.say(Frame(QUEUE_INFO, frame.id, frame.queue, payload))
            return
        # an Error would make the .NET client's attempt to connect fail
        missing = f"there is no queue {frame.queue}"
        answer = Frame(QUEUE_INFO, frame.id, frame.queue)
        self._responses.say(answer._replace(error_code="QUEUE_NOT_FOUND", error_message=missing))

    def _list_queues(self, frame: Frame) -> None:
        identity = self._identity
        assert identity is not None
        payload = queues.listed(filter(identity.sees, queues.names(self._broker)))
        self._responses.say(Frame(LIST_QUEUES, frame.id, payload=payload))

    def _may(self, frame: Frame, operation: Operation, named: Destination | None = None) -> bool:
        """Whether the frame names a queue, or `named`, and the user may do that with it; refused if
        not. Who is told of somebody's temporary destination may use it."""
        if named is None and not self._names_queue(frame):
            return False
        if named is not None and named.temporary:
            return True
        return self._permits(frame, operation, frame.queue if named is None else named.name)

    def _permits(self, frame: Frame, operation: Operation, name: str) -> bool:
        """Whether the user may do that with the destination of this name; refused if not."""
        identity = self._identity
        assert identity is not None
        if identity.may(operation, name):
            return True
        what = f"{operation.value} {name}"
        self._access.denied(self._transport.peer, identity, what)
        self._responses.refuse(frame.id, "NOT_AUTHORIZED", error_texts.ACCESS_DENIED)
        return False

    def _names_queue(self, frame: Frame) -> bool:
        """Whether the frame names a queue; refused if not."""
        if is_queue_name(frame.queue):
            return True
        if not frame.queue:
            self._responses.refuse(
                frame.id, "INVALID_QUEUE", error_texts.queue_name_missing(frame.type)
            )
            return False
        why = error_texts.QUEUE_NAME_CHARACTERS
        if utf16_units(frame.queue) > MAX_QUEUE_NAME:
            why = error_texts.queue_name_too_long(MAX_QUEUE_NAME)
        self._responses.refuse(frame.id, "INVALID_MESSAGE", why)
        return False

    # --- users -------------------------------------------------------------------------------

    def _administer(self, frame: Frame) -> None:
        users, identity = self._access.users, self._identity
        assert users is not None
        assert identity is not None

        def answer(payload: bytes) -> None:
            self._responses.say(Frame(frame.type, frame.id, payload=payload))

        def refuse(code: str, why: str) -> None:
            if code == "NOT_AUTHORIZED":
                self._access.denied(self._transport.peer, identity, f"command {frame.type}")
            self._responses.refuse(frame.id, code, why)

        administer(frame, users, identity, answer, refuse)

    # --- the end -----------------------------------------------------------------------------

    def _read_or_not(self) -> None:
        """Back-pressure: read on, unless something says not to. What has been read is unpacked
        before more is read."""
        wait = (
            self._unacked_back is not None
            or self._publisher.unconfirmed > MOST_UNCONFIRMED
            or self._responses.unread > MOST_UNREAD
        )
        decoder = self._decoder
        if (decoder.backlog or decoder.large is not None) and not self._responses.closed:
            if not wait and self._unpacking is None and self._large is None:
                more = self._unpack_more if decoder.large is None else self._read_large
                self._unpacking = self._transport.call_later(0, more)
            wait = True
        if wait != self._paused and not self._responses.closed:
            self._paused = wait
            if wait:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _leave(self, reason: str = "") -> None:
        """Take nothing more, and close when all that was published is answered."""
        self._ended = True
        self._give_back()
        self._broker.when_durable(self._publisher.last_sync, partial(self._close, reason))

    def _give_back(self) -> None:
        begun = self._context.unacked.timeouts.begun() if self._subscribers else set()
        for subscriber in self._subscribers.values():
            subscriber.end(begun)
        self._subscribers.clear()
        self._context.unacked.timeouts.stop()
        self._publisher.end()

    def _stop(self) -> None:
        """Neither listen nor speak any more."""
        self._ended = True
        self._responses.closed = True
        if self._unpacking is not None:
            self._unpacking.cancel()
            self._unpacking = None
        if self._large is not None:
            self._large.cancel()
            self._large = None
        self._decoder.large = None
        self._unacked_back = None
        self._unacked_bytes = 0
        self._give_back()

    def _close(self, reason: str) -> None:
        if not self._responses.closed:
            self._stop()
            self._transport.close(reason)


_Read = tuple[Frame, str]
"""A frame, and why its payload is refused; "" if it is not."""


def _read(large: LargeFrame, size: int) -> _Read | None:
    """Read a large frame and check its payload, in any thread. None if it unpacks to more than
    `size` bytes, unless that is 0. Raises ProtocolError."""
    frame = large.read(size)
    if frame is None:
        return None
    if frame.type != PUBLISH:
        why = f"only a Publish may have more than {LARGE} bytes"
        return frame._replace(payload=b"", headers={}), why
    try:
        if frame.payload:
            check_in_pieces(frame.payload)
    except ProtocolError as error:
        return frame._replace(payload=b""), str(error)
    return frame, ""


def _login_error(error: AccessError, connect: Frame) -> tuple[str, str]:
    """Return code and text of the Error that answers `connect`. The code tells a client whether it
    may try the same login again."""
    headers = connect.headers
    shown = "authToken" in headers or {"authUsername", "authPassword"} <= headers.keys()
    if isinstance(error, AuthenticationMissing):
        return "AUTH_REQUIRED", error_texts.CREDENTIALS_MISSING
    if isinstance(error, (LoginBusy, TooManyFailures)):
        return "RATE_LIMITED", str(error)
    if isinstance(error, TooManyConnections):
        return "CONNECTION_LIMIT", error_texts.TOO_MANY_CONNECTIONS
    # a password without a user name may have been a token, so it has been looked at
    if not shown:
        return "AUTH_REQUIRED", error_texts.CREDENTIALS_MISSING
    return "AUTH_FAILED", error_texts.CREDENTIALS_WRONG
