"""The broker as a process: start, serve, stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
import uvloop

from sluicemq import __version__
from sluicemq.admin.context import Context
from sluicemq.admin.history import History
from sluicemq.admin.metrics.figures import Figures
from sluicemq.admin.ports import State
from sluicemq.admin.sessions import Sessions
from sluicemq.broker import Broker
from sluicemq.broker import BrokerSettings as EngineSettings
from sluicemq.broker.build import COMPILED
from sluicemq.broker.restore import restore, snapshot
from sluicemq.broker.traced import TracedBroker
from sluicemq.journal import FileJournal, MemoryJournal
from sluicemq.journal.port import Journal
from sluicemq.model.errors import JournalError, SluiceError
from sluicemq.model.histogram import Histogram
from sluicemq.protocols.jmq.metrics import Metrics
from sluicemq.server.backups import Backups
from sluicemq.server.census import Census
from sluicemq.server.clock import SystemClock
from sluicemq.server.config import Config
from sluicemq.server.identity.book import Book
from sluicemq.server.identity.gate import Gate
from sluicemq.server.inforce import InForce
from sluicemq.server.lag import LoopLag
from sluicemq.server.listener import OpenListener
from sluicemq.server.listening import WITH_LOGINS, admin_listener
from sluicemq.server.logs import configure
from sluicemq.server.notify import Notifier
from sluicemq.server.rooms import Rooms
from sluicemq.server.services import jms_address
from sluicemq.server.tracing import setup as tracing
from sluicemq.server.turns import Turns

EXIT_FAILED: Final = 1
EXIT_JOURNAL: Final = 74
"""EX_IOERR: the journal can no longer be trusted with messages."""

HOUSEKEEPING_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 30.0
"""Between two looks at whether a certificate's files have changed."""

log = structlog.get_logger("sluicemq")


def serve(config: Config, origins: Mapping[str, str] | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT. Returns the exit code. `origins` says where the
    settings stand, see `loading.Loaded`.

    Raises ConfigurationError if the configuration cannot work, JournalError if the journal
    cannot be opened.
    """
    config.check()
    configure(config.logging)
    return uvloop.run(Server(config, origins or {}).run())


class Server:
    """One broker with its journal and listeners. Also what it can tell of itself (Vitals)."""

    version = __version__
    compiled = COMPILED

    def __init__(self, config: Config, origins: Mapping[str, str]) -> None:
        self.config = config
        self._origins = origins
        self.listeners: list[OpenListener] = []
        self.admin: OpenListener | None = None
        """The admin socket, which is asked to the end, and is in no list of listeners."""
        self.exit_code = 0
        self._turns: Turns | None = None
        self._stop = asyncio.Event()
        self._reload = asyncio.Event()
        self._started = time.monotonic()
        self._state: State = "starting"
        self._tracing: tracing.Tracing | None = None
        self._notifier = Notifier.from_environment()
        self.lag = Histogram()

    async def run(self) -> int:
        """Start, serve until told to stop, stop. Returns the exit code."""
        config = self.config
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        config.broker.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        journal = self._open_journal(loop)
        try:
            await self._serve(loop, journal)
        finally:
            with contextlib.suppress(JournalError):
                journal.close()
            if self._tracing is not None:
                self._tracing.close()
        log.info("stopped", exit_code=self.exit_code)
        return self.exit_code

    def _open_journal(self, loop: asyncio.AbstractEventLoop) -> Journal:
        config = self.config
        if config.broker.ephemeral:
            return MemoryJournal()

        def failed(error: JournalError) -> None:
            loop.call_soon_threadsafe(self._fail, error)

        return FileJournal.open(
            config.broker.data_dir / "journal",
            config.journal,
            notify=loop.call_soon_threadsafe,
            on_failure=failed,
        )

    def _build(self, journal: Journal) -> Broker:
        settings = self.config.broker
        engine_settings = EngineSettings(
            auto_create_queues=settings.auto_create_queues,
            auto_create_topics=settings.auto_create_topics,
            max_destinations=settings.max_destinations,
            idle_timeout=settings.idle_timeout,
            memory_budget=settings.memory_budget,
            memory_limit=settings.memory_limit,
            batch_writers=settings.batch_writers,
            defaults=settings.default_destination,
        )
        clock = SystemClock()
        self._tracing = tracing.begin(self.config.tracing, journal.identity)
        if self._tracing is None:
            broker = Broker(journal, clock, engine_settings)
        else:
            broker = TracedBroker(journal, clock, self._tracing.ways, engine_settings)
        journal.snapshot_source = lambda: snapshot(broker)
        if isinstance(journal, FileJournal):
            waiting = restore(broker, journal.recovery)
            report = journal.recovery.report
            log.info("recovered", waiting=waiting, **report)
            if report["lost_bytes"]:
                log.error(
                    "the journal ends before the place up to which it was confirmed: the disk has "
                    "lost what it said it had stored, or the file has been cut",
                    lost_bytes=report["lost_bytes"],
                )
            elif report["torn_bytes"]:
                log.warning(
                    "cut off the incomplete end that a crash has left; nothing of it had been "
                    "confirmed",
                    torn_bytes=report["torn_bytes"],
                )
        for address, destination_settings in self.config.destinations.items():
            broker.declare(address, destination_settings)
        return broker

    async def _serve(self, loop: asyncio.AbstractEventLoop, journal: Journal) -> None:
        config = self.config
        broker = self._build(journal)
        self._turns = turns = Turns(loop, broker, self._fail)
        turns.begin()
        gate = Gate(config, loop.call_soon_threadsafe)
        lateness = LoopLag(loop)
        self.lag = lateness.histogram
        context = Context(
            broker=broker,
            connections=Census(self.listeners),
            configuration=InForce(config, self._origins),
            vitals=self,
            users=Book(gate),
            sessions=Sessions(
                broker.clock,
                idle=config.http.session_idle,
                life=config.http.session_life,
                most=config.http.max_sessions,
                secure=config.http.secure_cookies,
            ),
            audit=gate.audit,
            history=History(broker, self.lag),
            figures=Figures(
                broker,
                config.metrics.max_destinations,
                open=config.http.open_metrics,
                spans=None if self._tracing is None else self._tracing.export.counts,
            ),
            backups=Backups(config),
        )
        rooms = Rooms(broker, self, gate, self.listeners, config.jmq, context, config.http)
        metrics = Metrics(
            broker,
            self,
            lambda: jms_address(self.listeners),
            round(config.jmq.metrics_interval * 1000),
        )
        # What exists now lives long: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 1000)
        chores: list[asyncio.Task[None]] = []
        try:
            for options in config.listeners:
                listener = OpenListener(options, rooms.of(options), turns)
                await listener.open()
                self.listeners.append(listener)
            admin = admin_listener(config.admin_socket)
            self.admin = OpenListener(admin, rooms.http(admin, local=True), turns)
            await self.admin.open()
            self._warn_open(gate)
            self._state = "serving"
            lateness.start()
            log.info("serving", data_dir=str(config.broker.data_dir), version=__version__)
            self._notifier.ready(f"serving, {len(self.listeners)} listeners")
            chores.append(loop.create_task(self._keep_house(context, turns, gate, metrics)))
            chores.append(loop.create_task(self._keep_certificates()))
            await self._stop.wait()
            await self._drain(broker, turns)
        finally:
            for chore in chores:
                chore.cancel()
            lateness.stop()
            for listener in self.listeners:
                await listener.stop_accepting()
            if self.admin is not None:
                await self.admin.stop_accepting()
            gate.close()

    def _all_listeners(self) -> list[OpenListener]:
        return [*self.listeners, *([self.admin] if self.admin is not None else [])]

    def _warn_open(self, gate: Gate) -> None:
        """Public listeners that ask nobody who they are: say how they might."""
        config = self.config
        for listener in self.listeners:
            asks = gate.required and listener.url.protocol in WITH_LOGINS
            if (
                config.insecure_public
                and listener.url.public
                and not (asks or listener.options.user)
            ):
                log.warning(
                    "whoever reaches this address may do everything; users are added with "
                    f"`sluicemq users add NAME --data-dir {config.broker.data_dir}`",
                    url=str(listener.url),
                )

    def uptime(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def memory(self) -> int:
        """Bytes of the process that are in RAM."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            return pages * resource.getpagesize()
        return 0

    def state(self) -> State:
        """See Vitals."""
        return self._state

    def clients(self) -> int:
        """Connections of all listeners."""
        return sum(len(listener.connections) for listener in self.listeners)

    async def _keep_house(
        self, context: Context, turns: Turns, gate: Gate, metrics: Metrics
    ) -> None:
        broker = context.broker
        before = time.monotonic()
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            turns.begin()
            now = time.monotonic()
            for _ in context.history.round(now - before):
                await asyncio.sleep(0)
                turns.begin()
            before = now
            metrics.publish()
            gate.refresh()
            self._notifier.alive()
            for listener in self._all_listeners():
                listener.sweep(broker.clock.steady)

    async def _keep_certificates(self) -> None:
        """Read them again on SIGHUP, and when their files have changed."""
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._reload.wait()
            except TimeoutError:
                pass
            told = self._reload.is_set()
            self._reload.clear()
            for listener in self.listeners:
                if listener.tls is not None:
                    await (listener.tls.reload() if told else listener.tls.look())

    def _fail(self, error: Exception) -> None:
        """What cannot be survived: say so and go, without another word to any client."""
        if self._turns is None:
            return  # the journal could not even be opened, and that is what ends the start
        self._state = "failed"
        if self.exit_code == 0:
            self.exit_code = EXIT_JOURNAL if isinstance(error, JournalError) else EXIT_FAILED
            if isinstance(error, SluiceError):
                log.error("the broker stops", error=str(error))
            else:
                log.error("the broker stops: internal error", exc_info=error)
            self._turns.halt()
            for listener in self._all_listeners():
                for connection in list(listener.connections):
                    connection.abort("the broker has failed")
            self._stop.set()

    async def _drain(self, broker: Broker, turns: Turns) -> None:
        """Stop accepting, let everyone finish within the deadline, write everything down."""
        if self.exit_code:
            return
        self._state = "stopping"
        log.info("stopping", connections=self.clients())
        self._notifier.stopping("letting clients finish")
        for listener in self.listeners:
            await listener.stop_accepting()
        broker.stopping = True
        turns.begin()
        for listener in self.listeners:
            for connection in list(listener.connections):
                connection.shutdown()
        deadline = time.monotonic() + self.config.broker.stop_deadline
        while self.clients() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for listener in self._all_listeners():
            for connection in list(listener.connections):
                connection.abort("the broker has stopped")
        await asyncio.sleep(0)
        if not self.exit_code:
            broker.gauges.finish()
            broker.flush()
