"""Server side of one JMQ connection.

    connected ──HELLO──> greeted ──AUTHENTICATE──> logged in ──GOODBYE, end of input──> closing
        │                   └──refused: AUTHENTICATE_REPLY 413────────────────────────> closing
        ├── HELLO whose reply would not be OK ────────────────────────────────────────> closing
        └── anything but HELLO, AUTHENTICATE, PING and GOODBYE: 500

The session processes packets in order. Replies carry the request's consumer id and may have another
order: the session sends a SEND_REPLY and the reply to a commit when the data is durable. Packets
after a login wait until the password is checked, and packets after a request with a long selector
wait until another thread has compiled the selector. The reply to a rejected request has a status,
and the connection stays open; an invalid packet closes it. The session never sends ERROR or DEBUG,
which clients do not implement. (Protocol specification, sections 2.5, 3 and 5.)
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

from sluicemq.broker import Broker, Consumer
from sluicemq.model.access import ANONYMOUS, Identity
from sluicemq.model.errors import AccessError, SelectorError, SluiceError
from sluicemq.model.message import Origin
from sluicemq.protocols.channel import Channel, LoginCheck, SentDeliveries
from sluicemq.protocols.jmq.connection import (
    LOGIN_STATUSES,
    MISSED_PINGS,
    CompilationResult,
    JmqConnection,
    RequestPending,
    SelectorPending,
    SessionOptions,
    encode_challenge,
    read_credentials,
    reply_to_hello,
)
from sluicemq.protocols.jmq.consumer_commands import ConsumerCommands
from sluicemq.protocols.jmq.consumers import Outbound
from sluicemq.protocols.jmq.destination_commands import (
    Browsing,
    create_destination,
    destroy_destination,
    verify_destination,
)
from sluicemq.protocols.jmq.destinations import create_dead_messages
from sluicemq.protocols.jmq.fields import DIGEST
from sluicemq.protocols.jmq.mapping import JmqDeadLetterPolicy
from sluicemq.protocols.jmq.packets import (
    LAST_MESSAGE_TYPE,
    PAGE_VERIFY_TRANSACTION,
    REQUEST_ERRORS,
    A,
    GoodbyeReason,
    Level,
    PacketType,
    RejectedRequest,
    Status,
)
from sluicemq.protocols.jmq.producers import Producers
from sluicemq.protocols.jmq.subscriptions import (
    ClientIds,
    Durables,
    client_id_in_use_error,
    expand_client_id,
)
from sluicemq.protocols.jmq.transaction_commands import TransactionCommands
from sluicemq.protocols.jmq.transactions import Branches
from sluicemq.protocols.jmq.wire import (
    MAX_HEADER,
    MAX_PROPERTIES,
    Decoder,
    Limits,
    Oversized,
    Packet,
    boolean,
    encode_packet,
    number,
    text,
)
from sluicemq.protocols.transport import (
    Alarm,
    Background,
    Job,
    Login,
    SessionInfo,
    Transport,
)
from sluicemq.security.access import OPEN, Access, Credentials

MAX_IDS: Final = 10_000
"""Maximum number of unique ids in one GENERATE_UID_REPLY."""

_ACKNOWLEDGE: Final = PacketType.ACKNOWLEDGE.value
_BEFORE_LOGIN: Final = frozenset(
    {PacketType.HELLO, PacketType.AUTHENTICATE, PacketType.GOODBYE, PacketType.PING}
)

_LONG_REQUESTS: Final = frozenset(
    {
        PacketType.START,
        PacketType.STOP,
        PacketType.ADD_CONSUMER,
        PacketType.DELETE_CONSUMER,
        PacketType.ADD_PRODUCER,
        PacketType.CREATE_DESTINATION,
        PacketType.DESTROY_SESSION,
        PacketType.SET_CLIENTID,
        PacketType.GENERATE_UID,
        PacketType.ROLLBACK_TRANSACTION,
        PacketType.RECOVER_TRANSACTION,
    }
)
"""Requests whose time depends on the number of consumers, subscriptions, transactions, their
acknowledgements, or ids: a new topic is compared with all wildcards. They and messages to wildcards
and to new destinations use the time for scans, so that many of them do not delay other clients."""
MANY_CONSUMERS: Final = 20
"""Number of consumers of a connection above which RESUME_FLOW, and in safe mode ACKNOWLEDGE and
REDELIVER, use the time for scans, too: they pause or resume the flow of all of them."""
_FLOW_REQUESTS: Final = frozenset({PacketType.RESUME_FLOW})
_SAFE_MODE_REQUESTS: Final = _FLOW_REQUESTS | {PacketType.ACKNOWLEDGE, PacketType.REDELIVER}

_COUNT_BITS: Final = 22
"""Bits of a unique id below the time: more ids per millisecond than the broker ever assigns."""
_MAX_LONG: Final = (1 << 63) - 1


class Coordinator:
    """State shared by all JMQ connections of a broker.

    session      JMQBrokerSessionID, unique for each run of the broker
    connections  logged-in connections by JMQConnectionID
    background   runs long computations off the event loop, or None
    """

    __slots__ = (
        "background",
        "branches",
        "client_ids",
        "connections",
        "durables",
        "session",
        "uid",
    )

    def __init__(self, broker: Broker, background: Background | None = None) -> None:
        """Create the shared state; without `background`, long selectors are compiled on the event
        loop."""
        self.background = background
        self.uid = count((broker.clock.wall << _COUNT_BITS) & _MAX_LONG).__next__
        """Returns a number of 63 bits that is unique within the broker, also across restarts."""
        self.session = self.uid()
        self.connections: dict[int, JmqSession] = {}
        self.client_ids = ClientIds()
        self.durables = Durables(broker)
        self.branches = Branches(broker, self.uid)
        broker.dead_letters.policies[Origin.JMQ] = JmqDeadLetterPolicy()


class JmqSession:
    """JMQ session of a connection (`sluicemq.protocols.transport.Session`)."""

    __slots__ = (
        "_browsing",
        "_channel",
        "_compilation",
        "_connection",
        "_consumer_commands",
        "_coordinator",
        "_decoder",
        "_handlers",
        "_idle_checks",
        "_interrupted",
        "_login",
        "_nonce",
        "_producers",
        "_reached_eof",
        "_timer",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        coordinator: Coordinator,
        access: Access = OPEN,
        options: SessionOptions | None = None,
    ) -> None:
        options = options or SessionOptions()
        self._coordinator = coordinator
        login_limit = min(options.max_packet_size, options.login_bytes)
        self._decoder = Decoder(
            Limits(login_limit, min(login_limit, MAX_HEADER), min(login_limit, MAX_PROPERTIES))
        )
        self._channel: Channel[Packet] = Channel(transport, broker, access, "jmq", ANONYMOUS)
        connection = JmqConnection(
            self._channel,
            broker,
            Outbound(self._channel, options.max_unacked, SentDeliveries(broker, refill=True)),
            options,
            coordinator.uid,
            coordinator.uid(),
            coordinator.background,
        )
        self._connection = connection
        self._producers = Producers(connection, coordinator.branches)
        self._consumer_commands = ConsumerCommands(
            connection, coordinator.branches, coordinator.durables
        )
        self._browsing = Browsing(connection)
        self._nonce: str | None = None
        """Nonce of the login, set by HELLO; "" for a login without one."""
        self._login = LoginCheck(self._channel, self._answer_login, self._handle)
        self._compilation: Job | None = None
        """Compilation job of the selector."""
        self._reached_eof = False
        """True after EOF; the session still processes the packets that are held."""
        self._interrupted = False
        """True while packets are held because the time for scans is used up."""
        self._timer = Alarm(transport)
        """Timer of the next check for an idle client."""
        self._idle_checks = 0
        """Number of checks since the client sent something."""
        self._handlers = self._packet_handlers()

    def _packet_handlers(self) -> dict[int, Callable[[Packet], None]]:
        """Return the packet handlers of a logged-in client, by packet type."""
        connection = self._connection
        consumers = self._consumer_commands
        transactions = TransactionCommands(connection, self._coordinator.branches)
        return {
            PacketType.HELLO: self._hello,
            PacketType.AUTHENTICATE: self._authenticate,
            PacketType.GOODBYE: self._goodbye,
            PacketType.PING: connection.reply,
            PacketType.PING_REPLY: _ignore,
            PacketType.FLOW_PAUSED: _ignore,
            PacketType.SET_CLIENTID: self._set_client_id,
            PacketType.GENERATE_UID: self._generate_uid,
            PacketType.GET_LICENSE: connection.reply,
            PacketType.INFO_REQUEST: connection.reply_info,
            PacketType.CREATE_SESSION: consumers.create_session,
            PacketType.DESTROY_SESSION: consumers.destroy_session,
            PacketType.START: consumers.start,
            PacketType.STOP: consumers.stop,
            PacketType.ADD_CONSUMER: consumers.add_consumer,
            PacketType.DELETE_CONSUMER: consumers.delete_consumer,
            PacketType.RESUME_FLOW: consumers.resume_flow,
            PacketType.ADD_PRODUCER: self._producers.add,
            PacketType.DELETE_PRODUCER: self._producers.delete,
            PacketType.ACKNOWLEDGE: consumers.acknowledge,
            PacketType.REDELIVER: consumers.redeliver,
            PacketType.BROWSE: self._browsing.browse,
            PacketType.DELIVER: self._browsing.deliver,
            PacketType.CREATE_DESTINATION: partial(create_destination, connection),
            PacketType.DESTROY_DESTINATION: partial(destroy_destination, connection),
            PacketType.VERIFY_DESTINATION: partial(verify_destination, connection),
            PacketType.START_TRANSACTION: transactions.start,
            PacketType.END_TRANSACTION: transactions.end,
            PacketType.PREPARE_TRANSACTION: transactions.prepare,
            PacketType.COMMIT_TRANSACTION: transactions.commit,
            PacketType.ROLLBACK_TRANSACTION: transactions.roll_back,
            PacketType.RECOVER_TRANSACTION: transactions.recover,
            PacketType.VERIFY_TRANSACTION: self._verify_or_reply_info,
            PAGE_VERIFY_TRANSACTION: transactions.verify,
        }

    # --- from the connection -----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Process bytes from the client."""
        channel = self._channel
        if channel.ended:
            return
        self._idle_checks = 0
        packets = self._decoder.feed(data)
        if channel.held_frames is not None:
            channel.hold(packets, _size(packets))
        else:
            self._handle(packets)
        self._producers.publisher.count_received(len(data))

    @property
    def buffered(self) -> int:
        """Bytes of input that are not processed yet."""
        return self._decoder.buffered + self._channel.held_bytes

    @property
    def incomplete(self) -> bool:
        """True if a packet has been received in part."""
        return self._decoder.incomplete

    @property
    def login(self) -> Login:
        """State of the client's login."""
        return self._login.state

    def discard_input(self) -> None:
        """Drop the unfinished packet."""
        self._decoder.discard()

    def end_of_input(self) -> None:
        """Handle EOF: send the replies to the received requests, then close.

        A login check in progress is cancelled, because the client has most likely closed.
        """
        self._reached_eof = True
        self._channel.access.cancel_login()
        if self._channel.held_frames is None:
            self._close_after_replies()

    def flushed(self) -> None:
        """Acknowledge the sent messages of consumers that do not acknowledge, and resume deliveries
        to a client that was slow."""
        outbound = self._connection.outbound
        outbound.sent.acknowledge()
        if self._channel.congested:
            self._channel.clear_congestion()
            outbound.update_capacity()
            self._browsing.resume()
            if self._interrupted:
                self._continue_later()

    def pause_delivery(self) -> None:
        """Pause deliveries to a slow client. The session still sends replies."""
        self._channel.mark_congested()
        self._connection.outbound.update_capacity()

    def closed(self) -> None:
        """Requeue the unacked messages and release all resources."""
        self._stop()
        self._login.release()
        self._producers.publisher.release()
        self._handlers.clear()

    def disconnect(self, reason: str, *, stopping: bool = False) -> None:
        """Send GOODBYE (SHUTDOWN or ADMIN_KILLED) after the pending replies, and close; the client
        may reconnect. Input that is not processed yet is dropped."""
        self._drop_input()
        kind = GoodbyeReason.SHUTDOWN if stopping else GoodbyeReason.ADMIN_KILLED
        self._call_after_replies(partial(self._send_goodbye, kind, reason))

    def session_info(self) -> SessionInfo:
        """Return protocol, user, client id and state of the connection."""
        return SessionInfo(
            "jmq",
            self._channel.identity.name,
            self._connection.sender.client_id,
            "open" if self._login.logged_in else "connecting",
        )

    def consumers(self) -> list[Consumer]:
        """Return the current consumers; for a wildcard consumer, one per matching topic."""
        return [
            engine
            for consumer in self._connection.outbound.consumers.values()
            for engine in consumer.pauses.consumers
        ]

    # --- packets -----------------------------------------------------------------------------

    def _handle(self, packets: list[Packet], size: int = 0) -> None:
        """Process packets of `size` bytes, or less (0 = not measured), up to a login or selector
        that takes time, or until the time for scans is used up."""
        channel = self._channel
        login = self._login
        send = self._producers.send
        outbound = self._connection.outbound
        repeats_packet = False
        for index, packet in enumerate(packets):
            kind = packet.type
            uses_scan_time = False
            try:
                if isinstance(packet, Oversized):
                    when = "" if login.logged_in else "before the login, "
                    raise RejectedRequest(Status.ENTITY_TOO_LARGE, when + packet.reason)
                if login.logged_in and 0 < kind <= LAST_MESSAGE_TYPE:
                    uses_scan_time = send(packet)
                else:
                    uses_scan_time = kind in _LONG_REQUESTS or (
                        len(outbound.consumers) > MANY_CONSUMERS
                        and kind in (_SAFE_MODE_REQUESTS if outbound.safe else _FLOW_REQUESTS)
                    )
                    self._find_handler(kind)(packet)
            except REQUEST_ERRORS as error:
                uses_scan_time = True  # a refused message may have created its destination
                self._refuse(packet, error)
            except SelectorPending as pending:
                repeats_packet = True
                self._compile(pending)
            except RequestPending:
                repeats_packet = True
                self._continue_later()
            if channel.ended:
                break
            if (
                uses_scan_time
                and channel.held_frames is None
                and self._connection.broker.scans.is_time_up()
            ):
                self._continue_later()
            if channel.held_frames is not None:
                if remaining := packets[index if repeats_packet else index + 1 :]:
                    channel.hold(remaining, size or _size(remaining))
                break
        self._producers.publisher.confirm()
        self._consumer_commands.confirm()
        if channel.closed:
            return
        if channel.held_frames is None:
            if channel.ended or self._reached_eof:
                self._close_after_replies()
            elif self._decoder.error is not None:
                self._close_after_replies(str(self._decoder.error))
        self._channel.update_reading()

    def _find_handler(self, kind: int) -> Callable[[Packet], None]:
        """Return the handler of packets of a type. Raises RejectedRequest."""
        if not self._login.logged_in and kind not in _BEFORE_LOGIN:
            raise RejectedRequest(
                Status.ERROR, "the connection is not logged in: send HELLO and AUTHENTICATE first"
            )
        handler = self._handlers.get(kind)
        if handler is None:
            raise RejectedRequest(
                Status.NOT_IMPLEMENTED, f"packets of type {kind} are not supported"
            )
        return handler

    def _continue_later(self) -> None:
        """Process further packets in a later iteration."""
        self._channel.hold([], 0)
        self._interrupted = True
        self._connection.broker.scans.schedule(
            partial(self._channel.transport.call, self._process_interrupted)
        )

    def _process_interrupted(self) -> None:
        """Process the packets after an interruption, unless the client does not read."""
        channel = self._channel
        if self._interrupted and not channel.congested:
            self._interrupted = False
            self._handle(*channel.release())

    def _compile(self, pending: SelectorPending) -> None:
        """Compile a selector in another thread before further packets are processed."""
        self._channel.hold([], 0)
        work = partial(self._connection.compile, pending.selector)
        self._compilation = pending.background.submit(
            work, partial(self._channel.transport.call, self._selector_compiled)
        )

    def _selector_compiled(self, compiled: CompilationResult) -> None:
        """Process the packets that wait for the selector, the first of which has it."""
        self._compilation = None
        packets, size = self._channel.release()
        if packets and isinstance(compiled, SelectorError):
            self._connection.refuse(packets.pop(0), compiled)
        self._handle(packets, size)

    def _refuse(self, packet: Packet, error: SluiceError) -> None:
        """Reply to a refused request. The transaction of a message or acknowledgement fails if its
        client gets no reply."""
        self._connection.refuse(packet, error)
        if self._login.logged_in and packet.is_message:
            self._producers.resume(packet)
        if self._login.logged_in and (packet.is_message or packet.type == _ACKNOWLEDGE):
            self._coordinator.branches.fail(packet, self._connection, error)

    # --- login -------------------------------------------------------------------------------

    def _hello(self, packet: Packet) -> None:
        connection = self._connection
        if self._nonce is not None:
            raise RejectedRequest(Status.ERROR, "HELLO was sent before")
        status = reply_to_hello(connection, packet, self._coordinator.session)
        if status not in LOGIN_STATUSES:
            self._close_after_replies(f"HELLO: {status.name}")
            return
        create_dead_messages(connection.broker)
        options = connection.options
        self._nonce = secrets.token_hex(16) if options.authentication == DIGEST else ""
        connection.write(encode_challenge(options, packet, self._nonce))
        if options.ping_interval:
            self._timer.set(options.ping_interval, self._ping_if_idle)

    def _authenticate(self, packet: Packet) -> None:
        """Check the login; later packets wait until the check ends."""
        nonce = self._nonce
        if nonce is None:
            raise RejectedRequest(Status.ERROR, "send HELLO first")
        if self._login.logged_in:
            raise RejectedRequest(Status.ERROR, "the connection is already logged in")
        try:
            credentials = read_credentials(self._connection.options, packet, nonce)
        except RejectedRequest as error:
            if self._channel.access.guest is None:
                self._refuse_login(packet, error)
                return
            # the client may be anonymous and needs no password
            credentials = Credentials(nonce=nonce)
        self._login.check(packet, credentials)

    def _refuse_login(self, packet: Packet, error: AccessError | RejectedRequest) -> None:
        self._connection.refuse(packet, error)
        self._stop()
        self._login.close_later(str(error))

    def _answer_login(self, request: Packet, result: Identity | AccessError) -> None:
        """Reply to AUTHENTICATE."""
        if not isinstance(result, Identity):
            self._refuse_login(request, result)
            return
        connection = self._connection
        self._decoder.allow(Limits(packet=connection.options.max_packet_size))
        self._close_previous()
        self._coordinator.connections[connection.number] = self
        connection.reply(request)

    def _close_previous(self) -> None:
        """Close the previous connection of this client, if it is still open."""
        previous = self._coordinator.connections.get(self._connection.previous_number)
        if (
            previous
            and previous._connection.reconnectable
            and previous._channel.identity.name == self._channel.identity.name
        ):
            previous._close("the client has reconnected")

    # --- other requests ---------------------------------------------------------------------

    def _set_client_id(self, packet: Packet) -> None:
        """Handle SET_CLIENTID, which sets or removes the client id."""
        connection = self._connection
        if "JMQClientID" in packet.properties:
            identity = self._channel.identity
            durables = self._coordinator.durables
            client_id = expand_client_id(text(packet, "JMQClientID"), identity.name)
            if not durables.may_use_client_id(client_id, identity):
                self._channel.deny(f"client id {client_id}")
                raise client_id_in_use_error(client_id)
            self._coordinator.client_ids.assign(
                connection.sender,
                client_id,
                identity,
                shared=boolean(packet, "JMQShare"),
                namespace=text(packet, "JMQNamespace"),
            )
            durables.claim(client_id, identity)
        else:
            self._coordinator.client_ids.release(connection.sender)
            connection.sender.client_id = ""
        connection.reply(packet)

    def _generate_uid(self, packet: Packet) -> None:
        quantity = number(packet, "JMQQuantity", 1)
        if not 0 < quantity <= MAX_IDS:
            raise RejectedRequest(Status.BAD_REQUEST, f"JMQQuantity must be 1 to {MAX_IDS}")
        ids = b"".join([self._coordinator.uid().to_bytes(8, "big") for _ in range(quantity)])
        self._connection.reply(packet, properties={"JMQQuantity": quantity}, body=ids)

    def _verify_or_reply_info(self, packet: Packet) -> None:
        """Handle packet type 78: VERIFY_TRANSACTION, or INFO_REQUEST if it has JMQRequestType.

        The published protocol page assigns 78 to INFO_REQUEST. Raises RejectedRequest.
        """
        if "JMQRequestType" in packet.properties:
            self._connection.reply_info(packet)
        else:
            self._handlers[PAGE_VERIFY_TRANSACTION](packet)

    def _ping_if_idle(self) -> None:
        """Send PING to an idle client. Any received packet proves that it is alive."""
        connection = self._connection
        if self._channel.closed:
            return
        if self._idle_checks > MISSED_PINGS:
            self._close("the client does not answer")
            return
        if self._idle_checks and self._login.logged_in:
            expects_reply = connection.level >= Level.MQ_3_6_SP4
            connection.write(encode_packet(PacketType.PING, A if expects_reply else 0))
            if not expects_reply:
                self._idle_checks = 0  # the bytes let the operating system detect a lost peer
        self._idle_checks += 1
        self._timer.set(connection.options.ping_interval, self._ping_if_idle)

    # --- closing -----------------------------------------------------------------------------

    def _goodbye(self, packet: Packet) -> None:
        """Handle GOODBYE: release all resources, then reply."""
        self._call_after_replies(partial(self._connection.reply, packet))

    def _send_goodbye(self, kind: GoodbyeReason, reason: str) -> None:
        """Send GOODBYE to a client that has sent HELLO, and close."""
        if self._nonce is not None and not self._channel.closed:
            self._connection.write(
                encode_packet(
                    PacketType.GOODBYE,
                    properties={
                        "JMQExit": False,
                        "JMQGoodbyeReason": kind.value,
                        "JMQGoodbyeReasonString": reason,
                    },
                )
            )
        self._close(reason)

    def _close_after_replies(self, reason: str = "") -> None:
        """Ignore further input, and close after all replies."""
        self._call_after_replies(partial(self._close, reason))

    def _call_after_replies(self, callback: Callable[[], None]) -> None:
        """Ignore further input, and call `callback` after all replies."""
        self._channel.end()
        self._release_resources()
        self._consumer_commands.confirm()
        connection = self._connection
        broker = connection.broker
        last_sync = self._producers.publisher.last_sync
        when_answered = partial(self._channel.transport.call, connection.when_answered, callback)
        broker.when_completed(partial(broker.when_durable, last_sync, when_answered))

    def _release_resources(self) -> None:
        """Release transactions, then sessions.

        This order requeues messages acknowledged in a transaction before unacked messages.
        """
        connection = self._connection
        self._consumer_commands.pause()
        self._coordinator.branches.remove_connection(connection)
        for session in list(connection.sessions.values()):
            self._consumer_commands.end_session(session)
        connection.sessions.clear()
        self._producers.end()
        self._browsing.end()
        connection.broker.delete_temporary(self._channel)
        self._coordinator.client_ids.release(connection.sender)
        self._coordinator.connections.pop(connection.number, None)

    def _drop_input(self) -> None:
        """Drop the input that is not processed yet."""
        if self._compilation is not None:
            self._compilation.cancel()
            self._compilation = None
        self._channel.release()
        self._interrupted = False

    def _stop(self) -> None:
        """Stop processing input and sending output, and release all resources."""
        self._channel.close()
        self._drop_input()
        self._timer.cancel()
        self._release_resources()

    def _close(self, reason: str) -> None:
        if not self._channel.closed:
            self._stop()
            self._channel.transport.close(reason)


def _size(packets: list[Packet]) -> int:
    """Return the size of packets, in bytes."""
    return sum(len(packet.head) + len(packet.body) for packet in packets)


def _ignore(packet: Packet) -> None:
    """Ignore the packet."""
