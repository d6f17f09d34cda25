"""TLS of a listener: its certificate, the requirements for client certificates, and the reload of
both while the listener is open.

A reload builds the new context completely before it replaces the old one. If the new files are
invalid, the old context stays in use. Connections keep the context they started with.
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
"""Interval between two warnings about the same certificate."""

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_DEMANDS: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
log = structlog.get_logger("sluicemq.tls")


class LoadedTls(NamedTuple):
    """TLS context and certificate chain, loaded from a listener's files."""

    context: ssl.SSLContext
    chain: KeyedChain


class Tls:
    """TLS of one listener. New connections use `context`."""

    def __init__(self, options: Listener) -> None:
        """Load the files. Raises ConfigurationError if they are invalid or cannot be read."""
        self.options = options
        self._seen = self._files()
        self._reminded = time.monotonic()
        self.context, self._chain = load(options)
        self._log("certificate in service")

    async def reload(self) -> None:
        """Reload the files. If they are invalid, log the error and keep the old context."""
        url = str(self.options.url)
        self._seen = self._files()
        try:
            # in a thread: the decryption of a key is slow by design
            loop = asyncio.get_running_loop()
            self.context, self._chain = await loop.run_in_executor(None, load, self.options)
        except ConfigurationError as error:
            log.error("certificate refused; the one before stays", url=url, error=str(error))
        else:
            self._log("certificate replaced")

    async def look(self) -> None:
        """Reload if a file has changed since the last check; repeat warnings once a day."""
        if self._files() != self._seen:
            await self.reload()
        elif time.monotonic() - self._reminded >= REMIND_SECONDS:
            self._warn()

    def _log(self, event: str) -> None:
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
        """Return inode, modification time (ns) and size of each file; None if it is missing."""
        return [_identity(path) for path in files(self.options).values()]


def files(options: Listener) -> dict[str, Path]:
    """Return the TLS files of a listener by the name of their setting."""
    named = {
        "certificate": options.certificate,
        "key": options.key,
        "password_file": options.password_file,
        "client_ca": options.client_ca,
    }
    return {name: path for name, path in named.items() if path is not None}


def load(options: Listener) -> LoadedTls:
    """Load the files and build a context.

    Raises ConfigurationError, with the listener's URL first, if a file or setting is invalid.
    """
    try:
        assert options.certificate is not None  # the configuration has been checked
        chain = read_chain(options.certificate, options.key, options.password_file)
        # Python's default ciphers; no compression; sessions end with their context
        context = HandshakeContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[options.tls_min_version]
        # renegotiation would let a peer cause CPU load
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
    """Yield the TLS errors that prevent the listener from starting."""
    try:
        load(options)
    except ConfigurationError as error:
        yield str(error)


def warnings(options: Listener) -> Iterator[str]:
    """Yield warnings about the listener's certificate.

    Raises ConfigurationError if the files are invalid or cannot be read.
    """
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
