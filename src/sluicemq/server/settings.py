"""Settings of the configuration schema, and the conversion of raw values to them.

The configuration schema is made of msgspec structs, whose fields are annotated with
`model.setting.about(...)`.

Sizes and durations may have a unit: `64MiB`, `1.5s`. A number without one is in the unit of its
setting. Suffixes are case-sensitive: `kB` is 1000 bytes and `KiB` 1024 (IEC). `K`, `M` and `G` are
rejected, because they are used for both. A file mode is a text of octal digits: `0660`.
"""

from __future__ import annotations

import enum
import re
import types
from enum import StrEnum
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from sluicemq.model.errors import ConfigurationError
from sluicemq.model.message import Durability
from sluicemq.model.setting import suggestion


class Setting(NamedTuple):
    """Field of a configuration struct. `default` is msgspec.NODEFAULT if it has none; `only` as in
    `about`."""

    name: str
    annotation: Any
    kind: Any
    unit: Unit | None
    meaning: str
    only: frozenset[str]
    default: Any


@cache
def settings_of(struct: type[msgspec.Struct]) -> dict[str, Setting]:
    """Return the settings of a struct, in the order of its fields."""
    settings = {}
    for field in msgspec.structs.fields(struct):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        kind, notes = field.type, msgspec.Meta()
        if get_origin(kind) is Annotated:
            kind, notes = get_args(kind)
        if get_origin(kind) in (Union, types.UnionType):  # with None
            kind = next(member for member in get_args(kind) if member is not types.NoneType)
        extra = notes.extra or {"unit": "", "only": frozenset()}
        settings[field.name] = Setting(
            field.name,
            field.type,
            kind,
            Unit(extra["unit"]) if extra["unit"] else None,
            notes.description or "",
            extra["only"],
            default,
        )
    return settings


def choices(setting: Setting) -> dict[str, Any]:
    """Return the values that a setting accepts by their words; empty if it is not a choice."""
    if get_origin(setting.kind) is Literal:
        return {str(choice): choice for choice in get_args(setting.kind)}
    if isinstance(setting.kind, type) and issubclass(setting.kind, enum.Enum):
        return {
            str(plain(member)): member
            for member in setting.kind
            if member is not Durability.TRANSIENT
        }
    return {}


def plain(value: Any) -> Any:
    """Return a value as JSON and TOML represent it."""
    if isinstance(value, enum.IntEnum):
        return value.name.lower()
    if isinstance(value, enum.Enum):
        return value.value
    return value if isinstance(value, bool | int | float) or value is None else str(value)


def convert(value: object, setting: Setting, position: str, *, text: bool, base: Path) -> Any:
    """Convert a raw value to the type of the setting. Raises ConfigurationError with `position`.

    text: True for a source that has only text (environment, command line, URL)
    base: base directory of relative paths
    """
    accepted = choices(setting)
    if accepted:
        return _convert_choice(value, accepted, position)
    if setting.kind is Path:
        return _convert_path(value, position, base)
    if setting.unit is Unit.MODE and not isinstance(value, str):
        # in TOML, 440 is decimal, and 0o660 is the same number as 432
        raise ConfigurationError(
            f'{position}: {value!r} does not fit; write octal digits in quotes, as "0660"'
        )
    if setting.unit is not None and isinstance(value, str):
        try:
            value = parse_quantity(value, setting.unit)
        except ValueError as error:
            raise ConfigurationError(f"{position}: {error}") from None
    try:
        converted = msgspec.convert(value, setting.annotation, strict=not text)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{position}: {value!r} does not fit: {error}") from None
    if isinstance(converted, float | int) and not 0 <= converted < float("inf"):
        raise ConfigurationError(f"{position}: {value!r} does not fit: it must not be negative")
    return converted


def unknown(position: str, name: str, known: list[str]) -> ConfigurationError:
    """Return the error for an unknown setting; `known` are the settings of the same section."""
    return ConfigurationError(f"{position}: unknown setting {name}; {suggestion(name, known)}")


def _convert_path(value: object, name: str, base: Path) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigurationError(f"{name}: {value!r} is not a path")
    try:
        path = base / Path(value).expanduser()
        # settings are shown in JSON and in URLs
        str(path).encode()
    except RuntimeError:
        raise ConfigurationError(f"{name}: {value!r}: there is no such home directory") from None
    except UnicodeEncodeError:
        raise ConfigurationError(f"{name}: the path {str(path)!r} is not UTF-8 text") from None
    return path


def _convert_choice(value: object, accepted: dict[str, Any], name: str) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # in TOML a choice named by a number is a number
    choices_by_name = {word.lower(): choice for word, choice in accepted.items()}
    if not isinstance(value, str) or value.lower() not in choices_by_name:
        # a number is not a typing error for another number
        mistyped = isinstance(value, str) and not value[:1].isdigit()
        hint = suggestion(str(value).lower() if mistyped else "", accepted)
        raise ConfigurationError(f"{name}: {value!r} does not fit; {hint}")
    return choices_by_name[value.lower()]


_QUANTITY: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]{0,3})\Z")
_MODE: Final = re.compile(r"(?:0o)?([0-7]{3,4})\Z")


class Unit(StrEnum):
    """Unit of a number in the configuration."""

    BYTES = "bytes"
    MILLISECONDS = "ms"
    SECONDS = "s"
    MODE = "octal mode"


_SIZES: Final[dict[str, Fraction]] = {
    "B": Fraction(1),
    "kB": Fraction(1000),
    "MB": Fraction(1000**2),
    "GB": Fraction(1000**3),
    "KiB": Fraction(1024),
    "MiB": Fraction(1024**2),
    "GiB": Fraction(1024**3),
}
_SECONDS: Final[dict[str, Fraction]] = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_SUFFIXES: Final[dict[Unit, dict[str, Fraction]]] = {
    Unit.BYTES: _SIZES,
    Unit.MILLISECONDS: {name: factor * 1000 for name, factor in _SECONDS.items()},
    Unit.SECONDS: _SECONDS,
}


def parse_quantity(text: str, unit: Unit) -> int | float:
    """Parse a quantity and return it in `unit`. Raises ValueError with a text for the user.

    Whole results are ints, so that a setting that counts whole units refuses `1.5ms`.
    """
    if unit is Unit.MODE:
        match = _MODE.match(text)
        if not match:
            raise ValueError(f"{text!r} is not a file mode; write three octal digits, as 0660")
        return int(match.group(1), 8)
    suffixes = _SUFFIXES[unit]
    match = _QUANTITY.match(text)
    if not match or (match.group(2) and match.group(2) not in suffixes):
        raise ValueError(f"{text!r} is not a number of {unit}; it may end in {', '.join(suffixes)}")
    value = Fraction(match.group(1)) * suffixes.get(match.group(2), Fraction(1))
    return int(value) if value.denominator == 1 else float(value)


def format_quantity(value: int | float, unit: Unit | None) -> str:
    """Return the shortest text from which `parse_quantity` returns the same number."""
    if unit is Unit.MODE:
        return f"0{int(value):03o}"
    if unit is None or value == 0:
        return _plain(value)
    exact = Fraction(str(value))
    texts = [
        f"{exact // factor}{name}"
        for name, factor in _SUFFIXES[unit].items()
        if exact % factor == 0
    ]
    # of equally short texts that with the largest unit
    return min(reversed(texts), key=len, default=f"{_plain(value)}{unit}")


def _plain(value: int | float) -> str:
    return str(int(value)) if value == int(value) else str(value)
