"""Files that an operator names: settings, certificates and secrets, of limited size.

All errors state the file and the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sluicemq.model.errors import ConfigurationError

MAX_FILE: Final = 1024**2
"""Maximum size of a configuration or certificate file in bytes."""


def read_bounded(file: Path, limit: int = MAX_FILE) -> bytes:
    """Return the content of a file. Raises ConfigurationError if it cannot be read or has more than
    `limit` bytes."""
    try:
        with file.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"{file}: the file cannot be read: {reason}") from None
    if len(content) > limit:
        raise ConfigurationError(f"{file}: the file is larger than {limit} bytes")
    return content


def read_secret_file(path: Path) -> str:
    """Return the first line of a file. Raises ConfigurationError if it is empty or unreadable."""
    line, _, _ = read_bounded(path).partition(b"\n")
    try:
        secret = line.decode().rstrip("\r")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: the file is not UTF-8 text") from None
    if not secret:
        raise ConfigurationError(f"{path}: the first line is empty")
    return secret
