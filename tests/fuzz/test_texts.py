"""Readers of text that people write: units, names, configuration files."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sluicemq.cli.configuration import render
from sluicemq.model.destination import decode_name, encode_name
from sluicemq.model.errors import ConfigurationError
from sluicemq.server.config import Config
from sluicemq.server.loading import load
from sluicemq.server.units import Unit, parse_quantity
from tests.fuzz.mutations import mutate


@given(
    st.text(max_size=40) | st.from_regex(r"[0-9]{0,30}\.?[0-9]{0,12} ?[a-zA-Z]{0,4}"),
    st.sampled_from(Unit),
)
@example("9" * 5000, Unit.BYTES)
@example("٣", Unit.SECONDS)
def test_any_text_is_a_quantity_or_refused(text: str, unit: Unit) -> None:
    said = ""
    try:
        value = parse_quantity(text, unit)
    except ValueError as error:
        said = str(error)
    if said:
        assert "is not a file mode" in said or "is not a number of" in said
        return
    assert value >= 0
    assert math.isfinite(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_name_that_comes_back(raw: bytes) -> None:
    assert encode_name(decode_name(raw)) == raw


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False))
def test_a_damaged_configuration_is_one_or_a_configuration_error(
    tmp_path: Path, chance: Random
) -> None:
    lines = render(Config()).encode().splitlines(keepends=True)
    lines += [b"[[listeners]]\n", b'url = "phpmq://:1?mode=0660&durability=lazy"\n']
    lines += [b"[destinations.q]\n", b'max_bytes = "1GiB"\n', b'overflow = "drop-oldest"\n']
    file = tmp_path / "sluicemq.toml"
    file.write_bytes(b"".join(mutate(chance, lines)))
    with suppress(ConfigurationError):
        load(file).config.check()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=80))
@example(b"a = " + b"[" * 5000)
@example(b"a = 1" + b"0" * 5000)
def test_noise_is_a_configuration_error(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "sluicemq.toml"
    file.write_bytes(data)
    with suppress(ConfigurationError):
        load(file).config.check()
