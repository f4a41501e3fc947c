"""A world: its populations, its maps and its chance."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from physarum.errors import UsageError
from physarum.model.params import LARGEST_SEED, Params, real, whole

# The range of each map's values; walls are true or false.
MAP_RANGES = {"trail": (0.0, 1e9), "food": (0.0, 1e9), "light": (-1e9, 1e9)}


@dataclass(frozen=True, eq=False)
class World:
    """What is run: one world.

    Attributes:
        populations: A `Params` a population; a bare `Params` means one population.
        attraction: populations x populations numbers, -1000 to 1000, [p][q] how much p is drawn to the trail of q (negative: repelled);
            None for the identity.
        trail: The trail at the start, 0 to 1e9; any map is (height, width), or (populations, height, width) to differ by population.
            Arrays are copied, tensors are not.
        food: Trail added to each cell in each step, 0 to 1e9.
        walls: True where no agent may enter and no trail stays.
        light: Added to what agents smell, -1e9 to 1e9; negative repels.
        seed: 0 to 2**32 - 1. Two seeds never give the same world.
        number: Worlds with the same seed and number share their chance; None for the world's place in its batch.

    Raises:
        UsageError: A value breaks these rules.
    """

    populations: tuple[Params, ...] = (Params(),)
    attraction: Any = None
    trail: Any = None
    food: Any = None
    walls: Any = None
    light: Any = None
    seed: int = 0
    number: int | None = None

    def __post_init__(self) -> None:
        given: Any = self.populations
        populations = (given,) if isinstance(given, Params) else tuple(given)
        if not populations or not all(isinstance(p, Params) for p in populations):
            raise UsageError("populations must be one Params, or several in a sequence")
        changes: dict[str, Any] = {"populations": populations, "attraction": _attraction(self.attraction, len(populations))}
        for name, (low, high) in MAP_RANGES.items():
            changes[name] = as_map(name, getattr(self, name), low, high)
        changes["walls"] = as_map("walls", self.walls)
        changes["seed"] = whole("seed", self.seed, 0, LARGEST_SEED)
        if self.number is not None:
            changes["number"] = whole("number", self.number, 0, LARGEST_SEED)
        for name, value in changes.items():
            object.__setattr__(self, name, value)


def as_worlds(worlds: World | Params | Sequence[World | Params], seed: int | None = None) -> tuple[World, ...]:
    """A batch of worlds, each with its number.

    Args:
        worlds: One world or several; a bare `Params` is a world of one population.
        seed: Replaces the seed of every world, unless None.

    Raises:
        UsageError: There is none, or they differ in their number of populations.
    """
    given = [worlds] if isinstance(worlds, (World, Params)) else list(worlds)
    if not given or not all(isinstance(w, (World, Params)) for w in given):
        raise UsageError("worlds must be a World or a Params, or several in a sequence")
    batch = [World((w,)) if isinstance(w, Params) else w for w in given]
    if seed is not None:
        batch = [replace(w, seed=seed) for w in batch]
    batch = [w if w.number is not None else replace(w, number=i) for i, w in enumerate(batch)]
    if len({len(w.populations) for w in batch}) > 1:
        raise UsageError("the worlds of a batch must have the same number of populations")
    return tuple(batch)


def check_reach(worlds: Sequence[World], size: tuple[int, int]) -> None:
    """See that no sensor and no step reaches so far that it would have to wrap twice.

    Raises:
        UsageError: One does.
    """
    reach = min(size) - 1
    for params in (p for w in worlds for p in w.populations):
        for name in ("sensor_distance", "step_size"):
            if np.float32(getattr(params, name)) >= reach:
                raise UsageError(
                    f"{name} is {getattr(params, name):g}: in a world of {size[0]} x {size[1]} cells it must be shorter than {reach} cells"
                )


def as_map(name: str, value: ArrayLike | Tensor | None, low: float | None = None, high: float | None = None) -> Tensor | None:
    """A map as a tensor on the CPU: float32 within `low` and `high`, or bool where no range is given.

    Raises:
        UsageError: It is no array of numbers of two or three axes, or a value is not finite or out of range.
    """
    if value is None:
        return None
    ours = isinstance(value, Tensor)  # a tensor is taken as it is, so that worlds derived from one another share their maps
    try:
        array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
        converted: NDArray[Any] = np.array(array, dtype=np.float32 if low is not None else np.bool_, order="C", copy=None if ours else True)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} is no array of numbers: {error}") from error
    if array.ndim not in (2, 3):
        raise UsageError(f"{name} has the shape {array.shape}: a map is (height, width) or (populations, height, width)")
    if low is not None and high is not None and not (np.isfinite(converted) & (converted >= low) & (converted <= high)).all():
        raise UsageError(f"{name} holds values that are not numbers from {low:g} to {high:g}")
    return torch.from_numpy(converted)


def _attraction(value: Any, populations: int) -> tuple[tuple[float, ...], ...]:
    if value is None:
        return tuple(tuple(float(p == q) for q in range(populations)) for p in range(populations))
    rows = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(rows, (int, float)) and populations == 1:
        rows = [[rows]]
    if not isinstance(rows, (list, tuple)) or [len(r) if isinstance(r, (list, tuple)) else 0 for r in rows] != [populations] * populations:
        raise UsageError(f"attraction must be {populations} rows of {populations} numbers, a row a population")
    return tuple(tuple(real("attraction", v, -1000, 1000) for v in row) for row in rows)
