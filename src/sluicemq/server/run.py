"""Broker process: start, serve, stop, and the notifications of its state for systemd."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Final

import structlog
import uvloop

from sluicemq import __version__
from sluicemq.admin.caller import BrowserSessions
from sluicemq.admin.collectors import ScrapeState, resident_memory
from sluicemq.admin.endpoints import ApiContext
from sluicemq.admin.history import History
from sluicemq.broker import Broker, EngineSettings, recover, snapshot
from sluicemq.journal import FileJournal, MemoryJournal
from sluicemq.journal.files import JOURNAL_NAME
from sluicemq.journal.interface import Journal
from sluicemq.journal.space import SpaceLevel
from sluicemq.management.broker import BrokerState
from sluicemq.model.destination import CreatedBy, Provenance, differing
from sluicemq.model.engine_options import EngineOptions
from sluicemq.model.errors import ConfigurationError, JournalError, SluiceError
from sluicemq.model.histogram import Histogram
from sluicemq.protocols.jmq.destinations import Metrics
from sluicemq.protocols.offload import MAX_RUNNING_JOBS, Offload
from sluicemq.security.authenticator import Authenticator
from sluicemq.security.user_service import UserService
from sluicemq.server import tracing
from sluicemq.server.admission import Admission
from sluicemq.server.clock import SystemClock, time_budget
from sluicemq.server.configuration_reference import EffectiveConfiguration
from sluicemq.server.event_loop import BackgroundThread, EventLoopBatch, record_lag
from sluicemq.server.input_budget import InputBudget
from sluicemq.server.listener import ConnectionRegistry, OpenListener
from sluicemq.server.listener_settings import WITH_LOGINS, admin_listener
from sluicemq.server.loading import LoadedConfig
from sluicemq.server.logs import Notices, configure
from sluicemq.server.session_factories import SessionFactories, console_addresses, jms_address

EXIT_FAILED: Final = 1
EXIT_JOURNAL: Final = 74
"""Exit code after a journal error (EX_IOERR)."""

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

HOUSEKEEPING_SECONDS: Final = 1.0
RESERVED_DESCRIPTORS: Final = 512
"""File descriptors that no connection may have: without any, the journal would fail."""
RESERVED_SHARE: Final = 4
"""Divisor: at most a quarter of the descriptors is reserved."""
CERTIFICATE_CHECK_SECONDS: Final = 30.0
"""Interval between two checks for changed certificate files."""

_SPACE_TEXTS: Final = {
    SpaceLevel.ENOUGH: "disk space has returned: persistent messages are accepted again",
    SpaceLevel.LOW: "disk space is low: persistent messages are refused, consumers and "
    "administration continue",
    SpaceLevel.EXHAUSTED: "the disk is full and the reserve is used up: nothing is delivered until "
    "there is space on it",
}
"""Log entries for a new level of free space."""

log = structlog.get_logger("sluicemq")


def serve(loaded: LoadedConfig) -> int:
    """Run a broker until SIGTERM or SIGINT and return the exit code.

    Raises ConfigurationError if the configuration is invalid, JournalError if the journal
    cannot be opened, AddressUnavailable if an address cannot be listened on.
    """
    loaded.check()
    configure(loaded.config.logging)
    server = Server(loaded)
    stop = partial(server.set_from_signal, server.stop_requested)
    reload = partial(server.set_from_signal, server.reload_requested)
    handlers = {**dict.fromkeys(STOP_SIGNALS, stop), signal.SIGHUP: reload}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = uvloop.run(server.run())
    except BaseException:
        for number, handler in previous.items():
            signal.signal(number, handler)
        raise
    # The broker has stopped. Ignore further signals until the process exits: the interpreter
    # resets handlers during finalization, but not SIG_IGN.
    for number in handlers:
        signal.signal(number, signal.SIG_IGN)
    return code


class Server:
    """Broker with its journal and listeners. Implements `ServerProcess` for the management API."""

    version = __version__

    def __init__(self, loaded: LoadedConfig) -> None:
        self.config = loaded.config
        self._origins = loaded.origins
        self.listeners: list[OpenListener] = []
        self.admin: OpenListener | None = None
        """Admin socket. It is not in `listeners` and stays open until the end of the shutdown."""
        self.exit_code = 0
        self._batch: EventLoopBatch | None = None
        self.stop_requested = asyncio.Event()
        """Set by a signal to shut down; further signals have no effect."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.reload_requested = asyncio.Event()
        """Set by a signal to reload the certificates."""
        self._started = self._maintained = time.monotonic()
        self._state: BrokerState = "starting"
        self._tracing: tracing.Tracing | None = None
        self._notifier = Notifier()
        self._space_level = SpaceLevel.ENOUGH
        self.lag = Histogram()

    def set_from_signal(self, event: asyncio.Event, number: int, frame: FrameType | None) -> None:
        """Set an event in the next iteration of the event loop, or now if it does not run yet.

        For signal handlers: a handler of the event loop is not sufficient, because it ends with the
        loop, before the process.
        """
        if self._loop is None:
            event.set()
        else:
            with suppress(RuntimeError):  # the loop has been closed: the broker has stopped
                self._loop.call_soon_threadsafe(event.set)

    async def run(self) -> int:
        """Start, serve until `stop_requested` is set, shut down, and return the exit code."""
        self._loop = loop = asyncio.get_running_loop()
        data_dir = self.config.broker.data_dir
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"broker.data_dir: {data_dir} cannot be created: {error.strerror}; choose another "
                "data directory (--data-dir)"
            ) from None
        journal = self._open_journal(loop)
        try:
            await self._serve(loop, journal)
        finally:
            if self._batch is not None:
                self._batch.halt()
            with suppress(JournalError):
                journal.close()
            if self._tracing is not None:
                self._tracing.export.close()
        await asyncio.sleep(0)  # if the last write has failed, `_fail` is due
        log.info("stopped", exit_code=self.exit_code)
        return self.exit_code

    def _open_journal(self, loop: asyncio.AbstractEventLoop) -> Journal:
        config = self.config
        if config.broker.ephemeral:
            return MemoryJournal()

        return FileJournal.open(
            config.broker.data_dir / JOURNAL_NAME,
            config.journal,
            notify=lambda complete: loop.call_soon_threadsafe(self.complete_writes, complete),
            on_failure=lambda error: loop.call_soon_threadsafe(self._fail, error),
            on_warning=log.warning,
            wait_for_space=True,
        )

    def _build(self, journal: Journal) -> Broker:
        settings = self.config.broker
        engine_settings = EngineSettings(
            **{name: getattr(settings, name) for name in EngineOptions.__struct_fields__},
            default_fields=self.config.default_fields,
        )
        self._tracing = tracing.start_tracing(self.config.tracing, journal.identity)
        broker = Broker(
            journal,
            SystemClock(),
            engine_settings,
            start_deadline=time_budget(settings.scan_budget / 1000),
            observer=None if self._tracing is None else self._tracing.span_recorder,
        )
        if isinstance(journal, FileJournal):
            journal.set_snapshot_source(lambda: snapshot(broker))
            ready = recover(broker, journal.recovery)
            log.info("recovered", waiting=ready, **journal.recovery.report)
            warn_of_loss(journal.recovery.report)
            self._check_space(journal)
        for address, destination_settings in self.config.destinations.items():
            explicit = self.config.explicit.get(address, differing(destination_settings))
            broker.destinations.declare(
                address,
                destination_settings,
                provenance=Provenance(CreatedBy.CONFIGURATION, explicit),
            )
        return broker

    def _check_space(self, journal: FileJournal) -> None:
        """Check the free space of the journal's disk and log a change of its level."""
        journal.check_space()
        state = journal.space_state()
        if state.level == self._space_level:
            return
        self._space_level = state.level
        write = log.info if state.level == SpaceLevel.ENOUGH else log.error
        write(
            _SPACE_TEXTS[state.level],
            free_bytes=state.free,
            threshold_bytes=state.threshold,
            reserve_bytes=state.reserve,
            held_by_slots=journal.bytes_held_by_slots(),
        )

    async def _serve(self, loop: asyncio.AbstractEventLoop, journal: Journal) -> None:
        config = self.config
        broker = self._build(journal)
        self._batch = batch = EventLoopBatch(loop, broker, self._fail)
        batch.begin()
        budget = InputBudget(config.broker.input_memory_limit, config.broker.input_stall_timeout)
        connections = ConnectionRegistry(self.listeners, budget)
        broker.on_fault(connections.end_faulty)
        authenticator = Authenticator(
            config.auth,
            config.users_file,
            loop.call_soon_threadsafe,
            insecure_public=config.insecure_public,
        )
        context = ApiContext(
            broker=broker,
            connections=connections,
            configuration=EffectiveConfiguration(config, self._origins),
            process=self,
            users=UserService(authenticator),
            sessions=BrowserSessions(broker.clock, config.http),
            audit=authenticator.audit,
            history=History(broker, self.lag),
            scrape_state=ScrapeState(
                broker,
                config.metrics.max_destinations,
                spans=None if self._tracing is None else self._tracing.export.counts,
            ),
            http=config.http,
        )
        background_thread = BackgroundThread(loop)
        unpack_thread = BackgroundThread(loop, MAX_RUNNING_JOBS)
        session_factories = SessionFactories(
            broker,
            self,
            authenticator,
            Offload(unpack_thread, budget),
            self.listeners,
            config.jmq,
            context,
            background_thread,
            Notices(log.info, config.logging.notices_per_minute, time.monotonic).write,
        )
        metrics = Metrics(
            broker,
            self,
            lambda: jms_address(self.listeners),
            round(config.jmq.metrics_interval * 1000),
        )
        # Existing objects are long-lived: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 1000)
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._open_listeners(session_factories, batch, budget)
            self._warn_of_open_listeners(authenticator)
            self._state = "serving"
            record_lag(loop, self.lag)
            log.info("serving", data_dir=str(config.broker.data_dir), version=__version__)
            for address in console_addresses(self.listeners):
                log.info("open the console in a browser", url=address)
            self._notifier.ready(f"serving, {len(self.listeners)} listeners")
            self._maintained = time.monotonic()
            steps: list[Callable[[], Awaitable[None]]] = [
                partial(self._maintain, context, batch, authenticator, metrics, budget),
                self._reload_certificates,
            ]
            if isinstance(journal, FileJournal):
                steps.append(partial(self._measure_space, journal, batch))
            tasks = [loop.create_task(run_repeatedly(step)) for step in steps]
            await self.stop_requested.wait()
            await self._drain(broker, batch)
        finally:
            for task in tasks:
                task.cancel()
            for listener in self._all_listeners():
                await listener.stop_accepting()
            authenticator.close()
            background_thread.close()
            unpack_thread.close()

    async def _open_listeners(
        self, session_factories: SessionFactories, batch: EventLoopBatch, budget: InputBudget
    ) -> None:
        """Open the listeners of the configuration, then the admin socket. Raises as
        `OpenListener.open`; those that are open stay so."""
        max_descriptors = connection_descriptors()
        for options in self.config.listeners:
            session_factory = session_factories.of(options)
            listener = OpenListener(
                Admission(options, session_factory, batch, budget, max_descriptors)
            )
            await listener.open()
            self.listeners.append(listener)
        admin = admin_listener(self.config.admin_socket)
        session_factory = session_factories.http(admin, local=True)
        self.admin = OpenListener(Admission(admin, session_factory, batch, budget))
        await self.admin.open()

    def _all_listeners(self) -> list[OpenListener]:
        return [*self.listeners, *([self.admin] if self.admin is not None else [])]

    def _warn_of_open_listeners(self, authenticator: Authenticator) -> None:
        """Log a warning for each public listener that requires no login."""
        config = self.config
        for listener in self.listeners:
            login_required = authenticator.required and listener.url.protocol in WITH_LOGINS
            if (
                config.insecure_public
                and listener.url.public
                and not (login_required or listener.options.user)
            ):
                log.warning(
                    "any client that reaches this address may do everything; add users with "
                    f"`sluicemq users add NAME --data-dir {config.broker.data_dir}`",
                    url=str(listener.url),
                )

    def uptime(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._started

    def memory(self) -> int:
        """Return the resident memory of the process in bytes; 0 if it is unknown."""
        with suppress(OSError):
            return resident_memory()
        return 0

    def state(self) -> BrokerState:
        """Return the state of the broker process."""
        return self._state

    def clients(self) -> int:
        """Return the number of connections of all listeners."""
        return sum(len(listener.admission.connections) for listener in self.listeners)

    async def _maintain(
        self,
        context: ApiContext,
        batch: EventLoopBatch,
        authenticator: Authenticator,
        metrics: Metrics,
        budget: InputBudget,
    ) -> None:
        await asyncio.sleep(HOUSEKEEPING_SECONDS)
        batch.begin()
        elapsed = time.monotonic() - self._maintained
        self._maintained += elapsed
        for _ in context.history.round(elapsed):
            await asyncio.sleep(0)
            batch.begin()
        metrics.publish()
        authenticator.refresh()
        self._notifier.alive()
        now = context.broker.clock.steady
        for listener in self._all_listeners():
            listener.sweep(now)
        budget.review(now)

    async def _measure_space(self, journal: FileJournal, batch: EventLoopBatch) -> None:
        await asyncio.sleep(HOUSEKEEPING_SECONDS)
        # in a thread: a hanging file system must not block the event loop
        await asyncio.to_thread(journal.measure_space)
        batch.begin()
        self._check_space(journal)

    async def _reload_certificates(self) -> None:
        """Reload the certificates after a SIGHUP or if their files have changed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CERTIFICATE_CHECK_SECONDS):
                await self.reload_requested.wait()
        reload_requested = self.reload_requested.is_set()
        self.reload_requested.clear()
        for listener in self.listeners:
            if listener.tls is not None:
                await (
                    listener.tls.reload() if reload_requested else listener.tls.reload_if_changed()
                )

    def complete_writes(self, complete: Callable[[], None]) -> None:
        """Let the journal complete its writes, which makes messages visible. As in an iteration of
        the broker, an error of the engine is fatal."""
        try:
            complete()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Log a fatal error and stop without notifying the clients."""
        if self._batch is None:
            return  # the journal is not open: its error ends the start
        self._state = "failed"
        if self.exit_code == 0:
            self.exit_code = EXIT_JOURNAL if isinstance(error, JournalError) else EXIT_FAILED
            if isinstance(error, SluiceError):
                log.error("the broker stops", error=str(error))
            else:
                log.error("the broker stops: internal error", exc_info=error)
            self._batch.halt()
            for listener in self._all_listeners():
                for connection in list(listener.admission.connections):
                    connection.abort("the broker has failed")
            self.stop_requested.set()

    async def _drain(self, broker: Broker, batch: EventLoopBatch) -> None:
        """Stop accepting, let clients finish within the deadline, and flush the journal."""
        if self.exit_code:
            return
        self._state = "stopping"
        log.info("stopping", connections=self.clients())
        self._notifier.stopping("letting clients finish")
        for listener in self.listeners:
            await listener.stop_accepting()
        await asyncio.sleep(0)  # connections accepted in this iteration begin
        broker.stop()
        batch.begin()
        for listener in self.listeners:
            for connection in list(listener.admission.connections):
                connection.shutdown()
        deadline = time.monotonic() + self.config.broker.shutdown_timeout
        while self.clients() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for listener in self._all_listeners():
            for connection in list(listener.admission.connections):
                connection.abort("the broker has stopped")
        await asyncio.sleep(0)
        if not self.exit_code:
            broker.depth_sampler.finish()
            broker.note_time()
            broker.flush()


async def run_repeatedly(step: Callable[[], Awaitable[None]]) -> None:
    """Repeat `step`, which begins with a wait. An internal error is logged, and does not end it."""
    while True:
        try:
            await step()
        except Exception:
            log.exception("internal error; the broker continues")


def connection_descriptors() -> int:
    """Raise the limit of file descriptors as far as permitted, and return how many connections may
    have; the others remain for the journal, other files and the admin socket."""
    limit, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
        limit = maximum
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return limit - min(RESERVED_DESCRIPTORS, limit // RESERVED_SHARE)


def warn_of_loss(report: Mapping[str, Any]) -> None:
    """Log which data is missing at the end of the journal, according to the recovery report."""
    details = {name: report[name] for name in ("torn_bytes", "lost_bytes", "emptied")}
    if report["confirmed"] == "lost":
        log.error(
            "confirmed data is lost: the journal ends before its durable end. The disk lost data "
            "that it had reported as stored, or the file was truncated. Check the disk; the newest "
            "backup may still have the messages",
            **details,
        )
    elif report["emptied"]:
        log.error(
            "the newest segment held no record and was removed. No crash of the broker empties "
            "a segment; how much of it had been confirmed is not known. Check the disk",
            **details,
        )
    elif report["torn_bytes"] and report["confirmed"] == "complete":
        log.warning(
            "truncated the incomplete end that a crash has left, behind the durable end. Messages "
            "confirmed as durable are complete; lazily journaled messages and acknowledgements "
            "of the last moments before the crash may be missing",
            **details,
        )
    elif report["torn_bytes"]:
        log.warning(
            "truncated the incomplete end that a crash has left. Whether any of it had been "
            "confirmed is not known: no durable end is published for this segment",
            **details,
        )


class Notifier:
    """Sender of notifications to the service manager. Errors of the socket are ignored."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Use the variables that systemd has set; without them nothing is sent.

        Removes the variables, because child processes must not use them.
        """
        address = environment.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        """Path of a socket, or NUL and an abstract name; "" if there is no service manager."""
        usec = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", "")
        is_addressee = not pid or pid == str(os.getpid())
        self._watchdog = is_addressee and usec.isdecimal() and int(usec) > 0

    def ready(self, status: str) -> None:
        """Report that the broker has started. `status` is a sentence for the administrator."""
        self._send("READY=1", f"STATUS={status}")

    def stopping(self, status: str) -> None:
        """Report that the broker is shutting down."""
        self._send("STOPPING=1", f"STATUS={status}")

    def alive(self) -> None:
        """Notify the watchdog, if there is one. Call this about every second."""
        if self._watchdog:
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify_socket,
        ):
            notify_socket.setblocking(False)
            notify_socket.sendto("\n".join(lines).encode(), self._address)
