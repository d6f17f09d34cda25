"""Settings of VibeMQ's server from all of its sources; later ones override earlier ones:

    appsettings.{DOTNET_ENVIRONMENT}.json    Production, unless the environment says otherwise
    environment                              VibeMQ__Tls__Enabled=true stands for VibeMQ:Tls:Enabled
    the file that VIBEMQ_CONFIG_PATH names
    appsettings.json

So the settings file overrides the environment, contrary to most .NET programs, because VibeMQ's
server does so. Names are case-insensitive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from sluicemq.migrate.plan import Plan
from sluicemq.migrate.source_files import Damage, SourceError, read_settings

SETTINGS: Final = "appsettings.json"
_CONFIG_PATH: Final = "vibemq_config_path"
_ENVIRONMENT: Final = "dotnet_environment"
_SECTIONS: Final = ("vibemq", "logging")
"""Sections of the settings that are read."""

_STRING_OR_COMMENT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_COMMA: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
_NOT_A_LINE_END: Final = re.compile(rb"[^\n]")
_OFFSET: Final = re.compile(r"\(byte (\d+)\)")
_BOM: Final = b"\xef\xbb\xbf"


class LayeredValue(NamedTuple):
    """A setting: its dotted name as written, and the file that contains it."""

    name: str
    value: Any
    origin: Path


Values = dict[str, LayeredValue]
"""Settings by their dotted name in lower case."""


def read_layers(
    plan: Plan,
    directory: Path,
    settings: Path | None,
    environment: Path | None,
    *,
    alone: bool,
) -> Values | None:
    """Read the settings of a server that was started in `directory`. None = there are none.

    `settings` is its settings file and `environment` a file with the variables it was started with,
    if there are such files. `alone`: VIBEMQ_CONFIG_PATH does not count. Adds a note on variables
    that did not count. Raises SourceError.
    """
    variables = _read_variables(plan, environment) if environment is not None else {}
    name = variables.pop(_ENVIRONMENT, None)
    staged = directory / f"appsettings.{name.value if name else 'Production'}.json"
    lowest = [_read_file(plan, staged)] if staged.exists() else []
    path = variables.pop(_CONFIG_PATH, None)
    by_environment = _sections(variables)
    files: list[Values] = []
    if path is not None and not alone:
        named = beside(directory, path.value)
        if not named.exists():
            raise SourceError(
                f"{path.origin}: VIBEMQ_CONFIG_PATH names {path.value} as the settings, and there "
                "is no such file here; copy it, and name it with --settings FILE"
            )
        files.append(_read_file(plan, named))
    if settings is not None:
        files.append(_read_file(plan, settings))
    if environment is None and not lowest and not files:
        return None
    overruled = sorted(
        value.name
        for key, value in _expanded(by_environment)
        if any(_differs(value, dict(_expanded(file)).get(key)) for file in files)
    )
    if overruled:
        plan.notes.append(
            f"the settings file has other values than the environment for {', '.join(overruled)}; "
            "its own are taken, as by VibeMQ's server"
        )
    return _merged([*lowest, by_environment, *files])


def beside(directory: Path, path: str) -> Path:
    """Return the file that a server started in `directory` calls `path`. If it does not exist, the
    function searches for its name alone, because paths within a container are invalid outside."""
    place = directory / path
    by_name = directory / place.name
    return by_name if not place.exists() and by_name.exists() else place


def _read_file(plan: Plan, file: Path) -> Values:
    plan.change_detector.look(file)
    tree = decode(read_settings(file), str(file))
    if not isinstance(tree, dict):
        raise Damage(f"{file}, line 1: this is no JSON object")
    return dict(_flat(tree, "", file))


def _flat(tree: dict[str, Any], before: str, file: Path) -> Iterator[tuple[str, LayeredValue]]:
    for key, value in tree.items():
        name = f"{before}{key}"
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{name}.", file)
        else:
            yield name.lower(), LayeredValue(name, value, file)


def _read_variables(plan: Plan, file: Path) -> Values:
    """Read the variables of a file in the format of `docker run --env-file`, or of `env`: a line is
    NAME=VALUE, blank, or begins with #. Quotes around a value are removed, as Compose does."""
    plan.change_detector.look(file)
    try:
        lines = read_settings(file).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as fault:
        raise Damage(f"{file}, byte {fault.start}: this is not UTF-8") from None
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        name = name.strip().replace("__", ".").replace(":", ".")
        if not equals:
            if _is_setting(name.lower()):
                raise Damage(f"{file}, line {number}: {text} has no value; write NAME=VALUE")
            continue  # line of another variable's multi-line value
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found[name.lower()] = LayeredValue(name, value, file)
    return found


def _is_setting(name: str) -> bool:
    return name.partition(".")[0] in _SECTIONS or name in (_CONFIG_PATH, _ENVIRONMENT)


def _sections(variables: Values) -> Values:
    return {key: value for key, value in variables.items() if key.partition(".")[0] in _SECTIONS}


def _merged(layers: Iterable[Values]) -> Values:
    """Merge to one value for each name. Lists are merged by index, as .NET does."""
    single: Values = {}
    for layer in layers:
        single.update(_expanded(layer))
    merged: Values = {}
    lists: dict[str, dict[int, LayeredValue]] = {}
    for key, value in single.items():
        stem, _, index = key.rpartition(".")
        if stem and index.isdecimal():
            lists.setdefault(stem, {})[int(index)] = value
        else:
            merged[key] = value
    for stem, items in lists.items():
        first = next(iter(items.values()))
        ordered = [items[index].value for index in sorted(items)]
        merged[stem] = LayeredValue(first.name.rpartition(".")[0], ordered, first.origin)
    return merged


def _expanded(layer: Values) -> Iterator[tuple[str, LayeredValue]]:
    """Return each item of a list as a value of its own."""
    for key, value in layer.items():
        if isinstance(value.value, list) and value.value:
            for index, item in enumerate(value.value):
                yield f"{key}.{index}", LayeredValue(f"{value.name}.{index}", item, value.origin)
        else:
            yield key, value


def _differs(value: LayeredValue, other: LayeredValue | None) -> bool:
    return other is not None and str(value.value).lower() != str(other.value).lower()


def decode(content: bytes, where: str) -> Any:
    """Return the value of JSON in the dialect of .NET's configuration: with comments, and commas
    before a closing bracket. Raises Damage with the line."""
    content = content.removeprefix(_BOM)
    # comments are replaced by blanks so that errors keep their position
    plain = _STRING_OR_COMMENT.sub(_without_comment, content)
    plain = _STRING_OR_COMMA.sub(lambda match: b" " if match[0] == b"," else match[0], plain)
    try:
        return msgspec.json.decode(plain)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        found = _OFFSET.search(str(fault))
        line = content.count(b"\n", 0, int(found[1])) + 1 if found else 1
        raise Damage(f"{where}, line {line}: not JSON: {fault}") from None


def _without_comment(match: re.Match[bytes]) -> bytes:
    text: bytes = match[0]
    return text if text.startswith(b'"') else _NOT_A_LINE_END.sub(b" ", text)
