"""Settings of the configuration schema, and the conversion of raw values to them.

The configuration schema is made of msgspec structs, whose fields are annotated with
`model.setting.about(...)`.
"""

from __future__ import annotations

import enum
import types
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from sluicemq.model.errors import ConfigurationError
from sluicemq.model.message import Durability
from sluicemq.server.address import nearest
from sluicemq.server.units import Unit, parse_quantity


class Setting(NamedTuple):
    """Field of a configuration struct. `default` is msgspec.NODEFAULT if it has none; `only` as in
    `about`."""

    name: str
    annotation: Any
    kind: Any
    optional: bool
    unit: Unit | None
    meaning: str
    only: frozenset[str]
    default: Any


@cache
def settings_of(struct: type[msgspec.Struct]) -> dict[str, Setting]:
    """Return the settings of a struct, in the order of its fields."""
    found = {}
    for field in msgspec.structs.fields(struct):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        kind, notes = field.type, msgspec.Meta()
        if get_origin(kind) is Annotated:
            kind, notes = get_args(kind)
        optional = get_origin(kind) in (Union, types.UnionType)
        if optional:
            kind = next(member for member in get_args(kind) if member is not types.NoneType)
        extra = notes.extra or {"unit": "", "only": frozenset()}
        found[field.name] = Setting(
            field.name,
            field.type,
            kind,
            optional,
            Unit(extra["unit"]) if extra["unit"] else None,
            notes.description or "",
            extra["only"],
            default,
        )
    return found


def choices(setting: Setting) -> list[str]:
    """Return the words that a setting accepts; empty if it is not a choice."""
    if get_origin(setting.kind) is Literal:
        return [str(choice) for choice in get_args(setting.kind)]
    if isinstance(setting.kind, type) and issubclass(setting.kind, enum.IntEnum):
        return [m.name.lower() for m in setting.kind if m is not Durability.TRANSIENT]
    if isinstance(setting.kind, type) and issubclass(setting.kind, enum.Enum):
        return [str(member.value) for member in setting.kind]
    return []


def convert(value: object, setting: Setting, where: str, *, text: bool, base: Path) -> Any:
    """Convert a raw value to the type of the setting. Raises ConfigurationError with `where`.

    text: True for a source that has only text (environment, command line, URL)
    base: base directory of relative paths
    """
    words = choices(setting)
    if words:
        return _convert_choice(value, setting, words, where)
    if setting.kind is Path:
        return _convert_path(value, where, base)
    if setting.unit is not None and isinstance(value, str):
        try:
            value = parse_quantity(value, setting.unit)
        except ValueError as error:
            raise ConfigurationError(f"{where}: {error}") from None
    try:
        converted = msgspec.convert(value, setting.annotation, strict=not text)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {value!r} does not fit: {error}") from None
    if isinstance(converted, float | int) and not 0 <= converted < float("inf"):
        raise ConfigurationError(f"{where}: {value!r} does not fit: it must not be negative")
    return converted


def unknown(where: str, name: str, known: list[str]) -> ConfigurationError:
    """Return the error for an unknown setting; `known` are the settings of the same section."""
    guess = nearest(name, known)
    hint = f"did you mean {guess}?" if guess else f"there are {', '.join(known)}"
    return ConfigurationError(f"{where}: there is no setting {name}; {hint}")


def _convert_path(value: object, where: str, base: Path) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigurationError(f"{where}: {value!r} is not a path")
    try:
        return base / Path(value).expanduser()
    except RuntimeError:
        raise ConfigurationError(f"{where}: {value!r}: there is no such home directory") from None


def _convert_choice(value: object, setting: Setting, words: list[str], where: str) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # in TOML a choice named by a number is a number
    named = {word.lower(): word for word in words}
    if not isinstance(value, str) or value.lower() not in named:
        # a number is not a typing error for another number
        mistyped = isinstance(value, str) and not value[:1].isdigit()
        guess = nearest(str(value).lower(), words) if mistyped else ""
        hint = f"did you mean {guess}?" if guess else f"write one of {', '.join(words)}"
        raise ConfigurationError(f"{where}: {value!r} does not fit; {hint}")
    word = named[value.lower()]
    if get_origin(setting.kind) is Literal:
        return next(choice for choice in get_args(setting.kind) if str(choice) == word)
    if issubclass(setting.kind, enum.IntEnum):
        return setting.kind[word.upper()]
    return setting.kind(word)
