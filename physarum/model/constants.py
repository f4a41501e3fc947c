"""The parameters as the arithmetic of a step uses them: computed in float64 on the host, rounded once to float32."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from physarum.model.angles import binary_angle
from physarum.model.params import Params
from physarum.model.world import World

SHORTEST = 2.0**-64  # cells; a shorter distance is none, so that no sum of it is a denormal number, which floor on GPUs takes for 0


def distance(cells: float) -> float:
    """A distance as it is computed with."""
    return cells if cells >= SHORTEST else 0.0


class Constants(NamedTuple):
    """A number a world and population: (worlds, populations, 1) where agents use it, (worlds, populations, 1, 1) where fields do."""

    sensor_angle: Tensor  # int32 binary angle
    rotation_angle: Tensor  # int32 binary angle
    sensor_distance: Tensor  # float32, cells
    step_size: Tensor  # float32, cells
    deposit_amount: Tensor  # float32
    keep: Tensor  # float32, 1 - diffusion
    share: Tensor  # float32, diffusion / 9
    remain: Tensor  # float32, 1 - decay_rate
    attraction: Tensor | None  # float32 (worlds, populations, populations, 1, 1); None: each population smells its own trail

    @classmethod
    def of(cls, worlds: Sequence[World], device: torch.device | str = "cpu") -> "Constants":
        """The constants of a batch of worlds."""

        def table(dtype: type[np.generic], axes: int, value: Callable[[Params], float]) -> Tensor:
            rows = np.array([[value(p) for p in w.populations] for w in worlds], np.float64).astype(dtype)
            return torch.from_numpy(rows.reshape(*rows.shape, *[1] * axes)).to(device)

        attraction = np.array([w.attraction for w in worlds], np.float64).astype(np.float32)
        return cls(
            sensor_angle=table(np.int32, 1, lambda p: binary_angle(p.sensor_angle)),
            rotation_angle=table(np.int32, 1, lambda p: binary_angle(p.rotation_angle)),
            sensor_distance=table(np.float32, 1, lambda p: distance(p.sensor_distance)),
            step_size=table(np.float32, 1, lambda p: distance(p.step_size)),
            deposit_amount=table(np.float32, 2, lambda p: p.deposit_amount),
            keep=table(np.float32, 2, lambda p: 1 - p.diffusion),
            share=table(np.float32, 2, lambda p: p.diffusion / 9),
            remain=table(np.float32, 2, lambda p: 1 - p.decay_rate),
            attraction=torch.from_numpy(attraction)[..., None, None].to(device),
        )
