"""From trail to 256 levels of brightness, the same levels on every machine.

The curve is asinh(trail / mean) / asinh(white), cut at 1: linear where the trail is faint, logarithmic where it is strong, so that thin
strands show beside thick ones. It is inverted once, in float64, into the trail at which each level begins; frames then need comparisons
alone. The exposure is fixed beforehand from counts, so a video does not flicker.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from physarum.model.params import Params
from physarum.model.stages import FAINTEST

LEVELS = 256
WHITE = 8.0  # times the mean trail; Jones' networks keep their thin strands and do not burn out


def expected_mean(deposit_amount: float, agents_per_cell: float, decay_rate: float, step: int) -> float:
    """The mean trail after `step` steps on an empty world: a sum of deposits, each faded since by (1 - decay_rate) a step.

    In equilibrium it is deposit_amount * agents_per_cell * (1 - decay_rate) / decay_rate; diffusion does not change it.
    """
    remain = float(np.float32(1 - decay_rate))  # as the model computes: a decay rate of 1e-9 is none
    ages = step if remain == 1 else remain * (1 - remain**step) / (1 - remain)
    return deposit_amount * agents_per_cell * ages


def exposure(populations: Sequence[Params], agents_per_cell: Sequence[float], steps: int, picture_white: float = 0.0) -> float:
    """The mean trail to expose for: that at the end of a run; where agents leave none, a picture's white is shown white.

    Args:
        populations: Of a world.
        agents_per_cell: The density of each.
        steps: At the end.
        picture_white: Trail at the start where a picture is white, or 0.
    """
    means = (expected_mean(p.deposit_amount, n, p.decay_rate, steps) for p, n in zip(populations, agents_per_cell, strict=True))
    return sum(means) or picture_white / WHITE or 1.0


def thresholds(mean: float, white: float = WHITE) -> Tensor:
    """The trail at which each level above black begins.

    Args:
        mean: Trail that is shown in a middling tone.
        white: Shown white, as a multiple of `mean`.

    Returns:
        float32 (255,), rising.
    """
    top = math.asinh(white)
    begins = [mean * math.sinh((level - 0.5) / (LEVELS - 1) * top) for level in range(1, LEVELS)]
    return torch.tensor(begins, dtype=torch.float32).clamp(min=FAINTEST)  # no trail is black, however faint the mean


def levels(trail: Tensor, begins: Tensor) -> Tensor:
    """The level of each cell.

    Args:
        trail: float32, any shape.
        begins: From `thresholds`, on the same device.

    Returns:
        int32 of the same shape, 0 .. 255.
    """
    return torch.bucketize(trail, begins, out_int32=True, right=True)
