"""The maps of a batch of worlds, as the stages use them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from physarum.errors import UsageError
from physarum.model.world import World

BYTES = {"food": 4, "walls": 1, "light": 4}


class Maps(NamedTuple):
    """Fields (worlds, populations, height, width), or None where no world has one."""

    food: Tensor | None = None  # float32, added to the trail in each step; 0 in walls
    walls: Tensor | None = None  # bool
    light: Tensor | None = None  # float32, added to scent

    @classmethod
    def of(cls, worlds: Sequence[World], size: tuple[int, int], device: torch.device | str = "cpu") -> "Maps":
        """The maps of a batch of worlds.

        Raises:
            UsageError: A map has another size than the world, or another number of populations.
        """
        food, walls, light = (stacked(name, worlds, size) for name in ("food", "walls", "light"))
        if food is not None and walls is not None:
            food = torch.where(walls, 0.0, food)
        return cls(*(None if field is None else field.to(device).contiguous() for field in (food, walls, light)))


def map_bytes(worlds: Sequence[World], size: tuple[int, int]) -> int:
    """What the maps of a batch take at most, as the stages use them: 4 bytes a cell for food and light, 1 for walls."""
    cells = len(worlds) * len(worlds[0].populations) * size[0] * size[1]
    return sum(cells * bytes_a_cell for name, bytes_a_cell in BYTES.items() if any(getattr(w, name) is not None for w in worlds))


def stacked(name: str, worlds: Sequence[World], size: tuple[int, int]) -> Tensor | None:
    """One map of all worlds: (worlds, populations, height, width) on the CPU, 0 where a world has none; None where no world has one.

    Args:
        name: "trail", "food", "walls" or "light".
        worlds: The batch.
        size: (width, height) in cells.

    Raises:
        UsageError: A map has another size than the world, or another number of populations.
    """
    fields = [getattr(w, name) for w in worlds]
    if all(field is None for field in fields):
        return None
    populations, (width, height) = len(worlds[0].populations), size
    for field in fields:
        if field is not None and (field.shape[-2:] != (height, width) or (field.ndim == 3 and field.shape[0] not in (1, populations))):
            raise UsageError(
                f"{name} has the shape {tuple(field.shape)}: the world has {height} rows, {width} columns and {populations} populations"
            )
    empty = torch.zeros(1, 1, dtype=torch.bool if name == "walls" else torch.float32)
    whole = [(empty if field is None else field).expand(populations, height, width) for field in fields]
    return whole[0][None] if len(whole) == 1 else torch.stack(whole)
