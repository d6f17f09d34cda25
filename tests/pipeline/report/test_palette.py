"""Colours are distinguishable with every kind of colour vision, and text is readable."""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

from sluicemq.pipeline.report import build, render
from sluicemq.pipeline.report.charts import COLOURS, HEAT
from sluicemq.pipeline.report.figures import PROTOCOLS
from tests.pipeline.report.sample import gold

Rgb = NDArray[np.float64]

SEEN_BY: Final = {
    "everybody": np.eye(3),
    "no red": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.01182, 0.04294, 0.968881],
        ]
    ),
    "no blue": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.3039],
        ]
    ),
}
"""Machado, Oliveira, Fernandes 2009: what linear RGB looks like to them."""
DISTANCE: Final = 12.0
"""In OKLab, times 100: about six times what can just be told apart."""


def linear(colour: str) -> Rgb:
    parts = np.array([int(colour[index : index + 2], 16) for index in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def oklab(rgb: Rgb) -> Rgb:
    """Björn Ottosson's colour space, in which equal distances look equal."""
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    ) @ np.clip(rgb, 0, 1)
    mixed = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return mixed @ np.cbrt(cones)


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, as WCAG 2 defines it."""
    dark, light = sorted(
        float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other)
    )
    return (light + 0.05) / (dark + 0.05)


def shade(name: str, theme: str) -> str:
    return COLOURS[name][theme == "dark"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eyes", SEEN_BY)
def test_protocols_differ(theme: str, eyes: str) -> None:
    for protocol, other in itertools.combinations(PROTOCOLS, 2):
        colours = [oklab(SEEN_BY[eyes] @ linear(shade(name, theme))) for name in (protocol, other)]
        assert 100 * np.linalg.norm(colours[0] - colours[1]) >= DISTANCE, (protocol, other)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("front", "ground", "least"),
    [
        *((name, "card", 3.0) for name in PROTOCOLS),
        ("ink", "card", 7.0),
        ("ink", "page", 7.0),
        ("ink", "sunk", 7.0),
        ("muted", "card", 4.5),
        ("muted", "page", 4.5),
        ("accent", "card", 4.5),
        ("bad", "card", 4.5),
        ("bad", "bad-ground", 4.5),
        ("ink", "bad-ground", 7.0),
        ("warning", "warning-ground", 4.5),
        ("ink", "warning-ground", 7.0),
        ("accent", "bad-ground", 4.5),
        ("accent", "warning-ground", 4.5),
        (HEAT[-1], "card", 7.0),
    ],
)
def test_text_has_sufficient_contrast(theme: str, front: str, ground: str, least: float) -> None:
    assert contrast(shade(front, theme), shade(ground, theme)) >= least


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_increases_with_number_of_messages(theme: str) -> None:
    card = shade("card", theme)
    steps = [contrast(shade(step, theme), card) for step in HEAT]
    assert all(after > before * 1.15 for before, after in itertools.pairwise(steps))


def test_print_theme_is_light() -> None:
    parts = render(build(gold())).split("@media screen and (prefers-color-scheme:dark)")
    assert len(parts) == 2
    assert COLOURS["card"][0] in parts[0]
    assert COLOURS["card"][1] in parts[1]
