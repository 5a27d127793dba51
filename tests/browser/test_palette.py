"""The palette under simulated colour-vision deficiency: every two colours stay apart, and off the ground.

Simulation matrices: Machado, Oliveira and Fernandes 2009, severity 1. Distances are Euclidean in Oklab
(Ottosson 2020), where 0.02 is about the least that side by side is seen.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlx_viz.static.joiner import STATIC

SIMULATIONS = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.793617785, -0.0040720468],
        [1.9779984951, -2.428592205, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.808675766],
    ]
)
APART = 0.08
OFF_GROUND = 0.12


def oklab(colour: str, simulation: str) -> NDArray[Any]:
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(SIMULATIONS[simulation]) @ linear, 0, 1)
    return np.asarray(TO_LAB @ np.cbrt(TO_CONES @ seen))


def theme(name: str) -> tuple[str, dict[str, str]]:
    text = (STATIC / "palette.js").read_text("utf-8")
    block = text[text.index(f"  {name}: {{") :]
    ground = re.search(r'ground: "(#\w{6})"', block)
    colours = re.search(r"colours: \{(.*?)\}", block, re.DOTALL)
    assert ground
    assert colours
    return ground[1], dict(re.findall(r'(\w+): "(#\w{6})"', colours[1]))


@pytest.mark.parametrize("simulation", SIMULATIONS)
@pytest.mark.parametrize("name", ["light", "dark"])
def test_colours_stay_apart(name: str, simulation: str) -> None:
    ground, colours = theme(name)
    assert len(colours) == 10
    seen = {colour: oklab(value, simulation) for colour, value in colours.items()}
    close = {
        (a, b): round(float(np.linalg.norm(seen[a] - seen[b])), 3)
        for a, b in itertools.combinations(colours, 2)
        if np.linalg.norm(seen[a] - seen[b]) < APART
    }
    assert close == {}
    under = oklab(ground, simulation)
    assert {colour for colour, value in seen.items() if np.linalg.norm(value - under) < OFF_GROUND} == set()
