"""Readers of text that people write: units, names, configuration files."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sluicemq.broker import compile_selector
from sluicemq.cli.configuration import render
from sluicemq.model.destination import Address, Kind, decode_name, encode_name
from sluicemq.model.errors import ConfigurationError, SelectorError
from sluicemq.model.message import Message
from sluicemq.server.config import Config
from sluicemq.server.loading import load
from sluicemq.server.settings import Unit, parse_quantity
from tests.fuzz.mutations import mutate

SELECTOR = """a = 'x''y' AND (b > -3.5e1 OR NOT c) AND d BETWEEN 0x1F AND 2 * (017 - a) / b
or e NOT IN ('', 'z') and f LIKE '%_!%' ESCAPE '!' AND g IS NOT NULL OR JMSPriority <> 4L"""
"""Every word and sign of the language."""


@given(
    st.text(max_size=40) | st.from_regex(r"[0-9]{0,30}\.?[0-9]{0,12} ?[a-zA-Z]{0,4}"),
    st.sampled_from(Unit),
)
@example("9" * 5000, Unit.BYTES)
@example("٣", Unit.SECONDS)
def test_any_text_is_a_quantity_or_refused(text: str, unit: Unit) -> None:
    error_text = ""
    try:
        value = parse_quantity(text, unit)
    except ValueError as error:
        error_text = str(error)
    if error_text:
        assert "is not a file mode" in error_text or "is not a number of" in error_text
        return
    assert value >= 0
    assert math.isfinite(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_name_that_comes_back(raw: bytes) -> None:
    assert encode_name(decode_name(raw)) == raw


def select(text: str) -> None:
    """Compile, and ask about messages with values of all types, whatever comes of it."""
    selector_error = None
    try:
        selector = compile_selector(text)
    except SelectorError as error:
        selector_error = error
    if selector_error:
        assert 0 <= selector_error.position <= len(text)
        assert str(selector_error)
        return
    for value in (None, True, -(2**63), 0.0, float("nan"), 10**400, "x'y", b"x"):
        message = Message(Address(Kind.QUEUE, "q"), b"", properties=dict.fromkeys("abcdefg", value))
        assert type(selector(message)) is bool


@given(st.randoms(use_true_random=False))
def test_a_damaged_selector_is_one_or_a_selector_error(chance: Random) -> None:
    words = [word.encode() + b" " for word in SELECTOR.split(" ")]
    select(b"".join(mutate(chance, words)).decode("utf-8", "surrogateescape"))


@given(
    st.text(max_size=60)
    | st.text("aé0189.xeELf'%_()<>=+-*/, \n$", max_size=40)
    | st.lists(st.sampled_from(SELECTOR.split()), max_size=30).map(" ".join)
)
@example("'" * 60_001)
@example("9" * 60_000)
@example("(" * 60_000)
@example("NOT " * 15_000 + "a")
@example("a LIKE '" + "%" * 1_000 + "'")
@example("a\udc80 = 1")
def test_any_text_is_a_selector_or_a_selector_error(text: str) -> None:
    select(text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False))
def test_a_damaged_configuration_is_one_or_a_configuration_error(
    tmp_path: Path, chance: Random
) -> None:
    lines = render(Config()).encode().splitlines(keepends=True)
    lines += [b"[[listeners]]\n", b'url = "phpmq://:1?socket_mode=0660&durability=lazy"\n']
    lines += [b"[destinations.q]\n", b'max_bytes = "1GiB"\n', b'overflow = "drop-oldest"\n']
    file = tmp_path / "sluicemq.toml"
    file.write_bytes(b"".join(mutate(chance, lines)))
    with suppress(ConfigurationError):
        load(file).check()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=80))
@example(b"a = " + b"[" * 5000)
@example(b"a = 1" + b"0" * 5000)
def test_noise_is_a_configuration_error(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "sluicemq.toml"
    file.write_bytes(data)
    with suppress(ConfigurationError):
        load(file).check()
