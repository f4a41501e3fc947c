"""The parameters of a population: names, units, ranges and defaults, the same everywhere. No PyTorch here, so that `--help` is quick."""

import dataclasses
import numbers
from dataclasses import dataclass
from typing import Any

from physarum.errors import UsageError

SMALLEST_SIDE, LARGEST_SIDE = 8, 65_536  # cells
MOST_AGENTS = 2**31  # slots a world
MOST_STEPS = 2**62
LARGEST_SEED = 2**32 - 1


def _parameter(default: float, low: float, high: float, meaning: str) -> Any:
    return dataclasses.field(default=default, metadata={"low": low, "high": high, "meaning": meaning})


@dataclass(frozen=True)
class Params:
    """How the agents of one population behave. The defaults are those of Jones (Artificial Life 16, 2010).

    Attributes:
        sensor_angle: Between the sensor ahead and each side sensor; degrees, -360 to 360, rounded to 1/65,536 of a turn.
        rotation_angle: How far an agent turns at once; degrees, likewise.
        sensor_distance: From the agent to its sensors; cells, 0 or more, shorter than the world's shorter side less one.
        step_size: How far an agent moves in a step; cells, likewise.
        deposit_amount: Trail that an agent adds in a step; 0 to 1e6.
        diffusion: Share of a cell's trail that comes from the mean of the 3 x 3 cells around it; 0 to 1.
        decay_rate: Share of the trail lost in a step; 0 to 1.

    Raises:
        UsageError: A value is no number or outside its range; a ValueError.
    """

    sensor_angle: float = _parameter(22.5, -360, 360, "degrees between the sensor ahead and each side sensor")
    rotation_angle: float = _parameter(45.0, -360, 360, "degrees that an agent turns at once")
    sensor_distance: float = _parameter(9.0, 0, LARGEST_SIDE, "cells from an agent to its sensors")
    step_size: float = _parameter(1.0, 0, LARGEST_SIDE, "cells that an agent moves in a step")
    deposit_amount: float = _parameter(5.0, 0, 1e6, "trail that an agent adds to its cell in a step")
    diffusion: float = _parameter(1.0, 0, 1, "share of a cell that comes from the mean of 3 x 3 cells")
    decay_rate: float = _parameter(0.1, 0, 1, "share of the trail lost in a step")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = real(field.name, getattr(self, field.name), field.metadata["low"], field.metadata["high"])
            object.__setattr__(self, field.name, value)


def real(name: str, value: Any, low: float, high: float) -> float:
    """A number from `low` to `high`, as float64.

    Raises:
        UsageError: It is no number, NaN, or outside.
    """
    return float(_within(name, value, low, high, numbers.Real, f"a number from {low:g} to {high:g}"))


def whole(name: str, value: Any, low: int, high: int) -> int:
    """A whole number from `low` to `high`.

    Raises:
        UsageError: It is none, or outside.
    """
    return int(_within(name, value, low, high, numbers.Integral, f"a whole number from {low} to {high}"))


def _within(name: str, value: Any, low: float, high: float, kind: Any, rule: str) -> Any:
    """`value` itself, or what a NumPy or PyTorch scalar holds."""
    if not isinstance(value, bool) and isinstance(value, kind):
        if low <= value <= high:
            return value
    elif hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return _within(name, value.item(), low, high, kind, rule)
    raise UsageError(f"{name} is {_described(value)}: it must be {rule}")


def check_size(size: Any) -> tuple[int, int]:
    """A world's (width, height) in cells.

    Raises:
        UsageError: It is no pair of whole numbers from 8 to 65,536.
    """
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        raise UsageError(f"size is {_described(size)}: it must be a pair, width and height in cells")
    width, height = (whole(name, side, SMALLEST_SIDE, LARGEST_SIDE) for name, side in zip(("width", "height"), size, strict=True))
    return width, height


def default_agents(size: tuple[int, int]) -> int:
    """Agents a population where none are asked for: 15 in 100 cells, as Jones had."""
    width, height = size
    return 15 * width * height // 100


def _described(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**60:
        return "a number of more than 60 digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
