"""TLS as a listener has it: what it shows its peers, what it asks of them, and how both are
replaced while it is in service.

A context is built completely before it takes the place of the one before; whatever is wrong with
new files leaves the old context where it is. Connections keep the context they began with.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from sluicemq.model.errors import ConfigurationError
from sluicemq.server.certificates import KeyedChain, now, read_authorities, read_chain
from sluicemq.server.handshake import HandshakeContext
from sluicemq.server.listener_settings import Listener

REMIND_SECONDS: Final = 86_400.0
"""Between two warnings about the same certificate."""

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_DEMANDS: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
log = structlog.get_logger("sluicemq.tls")


class LoadedTls(NamedTuple):
    """What has been read of a listener's files."""

    context: ssl.SSLContext
    chain: KeyedChain


class Tls:
    """The TLS of one listener. `context` is for the next connection."""

    def __init__(self, options: Listener) -> None:
        """Raises ConfigurationError if the files cannot be used."""
        self.options = options
        self._seen = self._files()
        self._reminded = time.monotonic()
        self.context, self._chain = load(options)
        self._tell("certificate in service")

    async def reload(self) -> None:
        """Read the files again. What is wrong with them is logged, and changes nothing."""
        url = str(self.options.url)
        self._seen = self._files()
        try:
            # off the loop: to decrypt a key takes time, on purpose
            loop = asyncio.get_running_loop()
            self.context, self._chain = await loop.run_in_executor(None, load, self.options)
        except ConfigurationError as error:
            log.error("certificate refused; the one before stays", url=url, error=str(error))
        else:
            self._tell("certificate replaced")

    async def look(self) -> None:
        """Reload if a file has changed since the last time; repeat warnings once a day."""
        if self._files() != self._seen:
            await self.reload()
        elif time.monotonic() - self._reminded >= REMIND_SECONDS:
            self._warn()

    def _tell(self, event: str) -> None:
        own = self._chain.own
        log.info(
            event,
            url=str(self.options.url),
            subject=own.subject.rfc4514_string(),
            serial=f"{own.serial_number:x}",
            expires=f"{own.not_valid_after_utc:%Y-%m-%d}",
        )
        self._warn()

    def _warn(self) -> None:
        self._reminded = time.monotonic()
        for warning in self._chain.warnings(now()):
            log.warning(warning, url=str(self.options.url))

    def _files(self) -> list[tuple[int, int, int] | None]:
        """What tells a file from the one it replaces, for each file."""
        return [_identity(path) for path in files(self.options).values()]


def files(options: Listener) -> dict[str, Path]:
    """The files that a listener's TLS is made of, by setting."""
    named = {
        "certificate": options.certificate,
        "key": options.key,
        "password_file": options.password_file,
        "client_ca": options.client_ca,
    }
    return {name: path for name, path in named.items() if path is not None}


def load(options: Listener) -> LoadedTls:
    """Read and try everything. Raises ConfigurationError, beginning with the listener's URL."""
    try:
        assert options.certificate is not None  # the configuration has been checked
        chain = read_chain(options.certificate, options.key, options.password_file)
        # Python's own choice of ciphers; no compression, no session survives its context
        context = HandshakeContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[options.tls_min]
        # a peer that renegotiates makes the broker work for nothing
        context.options |= ssl.OP_NO_RENEGOTIATION
        if options.ciphers is not None:
            _choose_ciphers(context, options.ciphers)
        chain.install(context)
        if options.client_ca is not None:
            context.load_verify_locations(cadata=read_authorities(options.client_ca))
        context.verify_mode = _DEMANDS[options.client_certificate]
    except ConfigurationError as error:
        raise ConfigurationError(f"{options.url}: {error}") from None
    return LoadedTls(context, chain)


def problems(options: Listener) -> Iterator[str]:
    """What would keep the listener from starting."""
    try:
        load(options)
    except ConfigurationError as error:
        yield str(error)


def warnings(options: Listener) -> Iterator[str]:
    """What its clients may not like about its certificate. Raises ConfigurationError."""
    for warning in load(options).chain.warnings(now()):
        yield f"{options.url}: {warning}"


def _choose_ciphers(context: ssl.SSLContext, ciphers: str) -> None:
    try:
        context.set_ciphers(ciphers)
    except ssl.SSLError:
        raise ConfigurationError(
            f"ciphers: OpenSSL knows none in {ciphers!r}; write a list as for `openssl ciphers`"
        ) from None


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
