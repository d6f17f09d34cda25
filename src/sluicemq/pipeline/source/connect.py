"""The place that the options of a read name."""

from __future__ import annotations

from sluicemq.pipeline.remote import target
from sluicemq.pipeline.source.options import SourceOptions
from sluicemq.pipeline.source.places import Directory, Place, local_path
from sluicemq.pipeline.source.remote import Http


def connect(options: SourceOptions) -> Place:
    """Raises ConfigurationError. Nothing is asked over the network yet."""
    if options.url:
        given = {name: getattr(options, name) for name in ("url", "user", "password", "token")}
        return Http(target({name: text for name, text in given.items() if text}))
    return Directory(local_path(options.path))
