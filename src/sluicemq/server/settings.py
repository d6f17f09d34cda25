"""Settings of the configuration schema, and the conversion of raw values to them.

The configuration schema is made of msgspec structs. Those of the server annotate each field with
`about(...)`; structs of other layers, which know nothing of configuration files, document their
fields in their docstring instead, one `name  meaning` per line, and their units are given here.
"""

from __future__ import annotations

import enum
import inspect
import re
import types
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from sluicemq.model.errors import ConfigurationError
from sluicemq.model.message import Durability
from sluicemq.server.address import nearest
from sluicemq.server.units import Unit, parse_quantity

UNITS: Final[dict[str, dict[str, Unit]]] = {
    "DestinationSettings": {
        "max_bytes": Unit.BYTES,
        "max_message_bytes": Unit.BYTES,
        "message_ttl": Unit.MILLISECONDS,
        "ack_timeout": Unit.MILLISECONDS,
        "retry_delay": Unit.MILLISECONDS,
        "retry_delay_max": Unit.MILLISECONDS,
        "idle_timeout": Unit.MILLISECONDS,
    },
    "JournalOptions": {
        "segment_bytes": Unit.BYTES,
        "preallocate_bytes": Unit.BYTES,
        "flush_interval": Unit.MILLISECONDS,
        "slot_limit_bytes": Unit.BYTES,
        "slot_idle_timeout": Unit.MILLISECONDS,
        "disk_free_limit_bytes": Unit.BYTES,
        "reserve_bytes": Unit.BYTES,
        "depth_interval": Unit.MILLISECONDS,
    },
}
"""Units of the fields of structs of other layers, by struct and field."""

_DOCUMENTED: Final = re.compile(r"^([a-z_]+) {2,}(\S.*)$")
_UNIT_WORD: Final = re.compile(r"^(?:ms|bytes|s)(?:;|,| (?=until|before|without))\s*")
_CONTINUED: Final = re.compile(r"^ +(\S.*)$")


class Setting(NamedTuple):
    """Field of a configuration struct. `default` is msgspec.NODEFAULT if it has none."""

    name: str
    annotation: Any
    kind: Any
    optional: bool
    unit: Unit | None
    meaning: str
    default: Any


def about(
    meaning: str, unit: Unit | None = None, *, ge: float | None = None, le: float | None = None
) -> msgspec.Meta:
    """Annotation of a field: its meaning in a sentence or two, its unit, and its bounds."""
    return msgspec.Meta(description=meaning, extra={"unit": unit}, ge=ge, le=le)


@cache
def settings_of(struct: type[msgspec.Struct]) -> dict[str, Setting]:
    """Return the settings of a struct, in the order of its fields."""
    documented = _meanings(struct.__doc__ or "")
    units = UNITS.get(struct.__name__, {})
    found = {}
    for field in msgspec.structs.fields(struct):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        meaning, unit = documented.get(field.name, ""), units.get(field.name)
        kind = field.type
        if get_origin(kind) is Annotated:
            kind, *notes = get_args(kind)
            for note in notes:
                if isinstance(note, msgspec.Meta):
                    meaning, unit = note.description or "", (note.extra or {}).get("unit")
        optional = False
        if get_origin(kind) in (Union, types.UnionType):
            members = [member for member in get_args(kind) if member is not types.NoneType]
            optional, kind = True, members[0]
        found[field.name] = Setting(field.name, field.type, kind, optional, unit, meaning, default)
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


def _meanings(docstring: str) -> dict[str, str]:
    meanings: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(docstring).splitlines():
        if found := _DOCUMENTED.match(line):
            name = found.group(1)
            meanings[name] = _UNIT_WORD.sub("", found.group(2))
        elif name and (found := _CONTINUED.match(line)):
            meanings[name] += f" {found.group(1)}"
        else:
            name = ""
    return meanings
