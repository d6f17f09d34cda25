"""Declaration of settings: one annotation per field, from which the configuration is parsed,
checked and documented."""

from __future__ import annotations

from collections.abc import Collection

import msgspec


def about(
    meaning: str,
    unit: str = "",
    *,
    ge: float | None = None,
    le: float | None = None,
    only: Collection[str] = (),
) -> msgspec.Meta:
    """Return the annotation of a field of a settings struct.

    meaning  one or two sentences, for the reference of the configuration
    unit     of a number: ms, s, bytes or octal mode
    ge, le   bounds
    only     protocols of the listeners for which the setting has a meaning, or `tls`, or `unix`;
             empty = all
    """
    extra = {"unit": unit, "only": frozenset(only)}
    return msgspec.Meta(description=meaning, extra=extra, ge=ge, le=le)
