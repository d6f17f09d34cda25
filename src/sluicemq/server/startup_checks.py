"""Checks of a start of the broker, without serving and without changes.

`Config.problems` has checked the configuration and the data directory before, and has read
certificates with their keys and the user database. This module checks whether the addresses can be
listened on, and whether OpenTelemetry is installed if tracing is enabled.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sluicemq.journal.files import JOURNAL_NAME, lock_if_stopped
from sluicemq.model.errors import AddressUnavailable, ConfigurationError
from sluicemq.model.url import Url
from sluicemq.server.config import Config, data_dir_problem
from sluicemq.server.listener import bind, is_stale
from sluicemq.server.listener_settings import Listener, admin_listener
from sluicemq.server.tracing import installation_problem


class StartupCheck(NamedTuple):
    """Result of one check.

    subject      setting or URL
    description  the check, or the reason why it was left out
    problem      reason for which the broker would not start; empty if there is none
    """

    subject: str
    description: str
    problem: str = ""


def check_startup(config: Config) -> Iterator[StartupCheck]:
    """Yield the checks. TCP ports are bound for a moment, unless a broker runs with this data
    directory, which may use them."""
    directory = config.broker.data_dir
    yield StartupCheck("broker.data_dir", f"data directory {directory}: may be written to")
    yield StartupCheck("auth.users_file", f"user database {config.users_file}: read")
    for listener in config.listeners:
        if listener.url.tls:
            description = f"{listener.url}: certificate {listener.certificate} read, with its key"
            yield StartupCheck(str(listener.url), description)
    if config.tracing.endpoint:
        yield StartupCheck("tracing.endpoint", "OpenTelemetry: installed", installation_problem())
    holder = _holder(directory)
    if holder:
        yield StartupCheck("listeners", f"addresses: not tried, because {holder}")
        return
    listeners = list(config.listeners)
    if not data_dir_problem(directory):
        listeners.append(admin_listener(config.admin_socket))
    for listener in listeners:
        yield StartupCheck(
            str(listener.url),
            f"{listener.url}: may be listened on",
            address_problem(listener, directory),
        )


def address_problem(listener: Listener, directory: Path) -> str:
    """Return why an address cannot be listened on; "" if it can. The data `directory` need not
    exist yet."""
    url = listener.url
    try:
        if url.path:
            _try_socket(url, directory)
        else:
            for server_socket in asyncio.run(bind(listener)):
                server_socket.close()
    except (AddressUnavailable, ConfigurationError) as error:
        return str(error)
    except OSError as error:
        return f"cannot use {url}: {error.strerror or error}"
    return ""


def _try_socket(url: Url, directory: Path) -> None:
    """Raise ConfigurationError or AddressUnavailable if the path cannot be listened on. Does not
    change it."""
    is_stale(url)
    parent = Path(url.path).parent
    if not parent.is_dir():
        if parent != directory and parent not in directory.parents:
            raise ConfigurationError(f"cannot listen on {url}: there is no directory {parent}")
    elif not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"cannot listen on {url}: the user of this process may not write to {parent}"
        )


def _holder(directory: Path) -> str:
    """Return the statement that a broker uses the data directory; "" if none does."""
    with (
        suppress(OSError),  # reported as a problem of the directory
        lock_if_stopped(directory / JOURNAL_NAME) as is_stopped,
    ):
        if not is_stopped:
            return f"a broker runs with {directory}"
    return ""
