"""Journal storage for the options of a read."""

from __future__ import annotations

from sluicemq.clients.http import target
from sluicemq.pipeline.source.http_storage import HttpStorage
from sluicemq.pipeline.source.journal_storage import DirectoryStorage, JournalStorage, local_path
from sluicemq.pipeline.source.options import SourceOptions


def connect(options: SourceOptions) -> JournalStorage:
    """Return the storage without connecting to it. Raises ConfigurationError."""
    if options.url:
        given = {name: getattr(options, name) for name in ("url", "user", "password", "token")}
        return HttpStorage(target({name: text for name, text in given.items() if text}))
    return DirectoryStorage(local_path(options.path))
