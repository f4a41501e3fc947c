"""Counter-based chance: every draw is a hash of who draws, when, and for what. There is no generator state, so neither the order of
agents, nor the backend, nor a resumed run can change a draw.

The mixing function is the 32-bit "lowbias32" hash found by Chris Wellons' search (public domain).
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# What a draw is for. 18 to 20 are reserved: occupancy, random turn, respawn.
START_X, START_Y, START_HEADING = 1, 2, 3
COIN = 16
WALL_HEADING = 17

MULTIPLIERS = (0x7FEB352D, 0x846CA68B)


def hash32(v: Tensor) -> Tensor:
    """Mix 32 bits; a bijection.

    Args:
        v: int32 tensor that holds uint32 bits (PyTorch has no arithmetic on uint32). Masks make its shifts logical.

    Returns:
        int32 tensor of the same shape, again uint32 bits.
    """
    v = v ^ ((v >> 16) & 0xFFFF)
    v = v * MULTIPLIERS[0]
    v = v ^ ((v >> 15) & 0x1FFFF)
    v = v * (MULTIPLIERS[1] - 2**32)
    return v ^ ((v >> 16) & 0xFFFF)


def draw(identity: Tensor, key: Tensor) -> Tensor:
    """An agent's draw: uint32 bits in int32, of the shape of `identity` (worlds, populations, slots); `key` broadcasts to it."""
    return hash32(identity ^ key)


def keys(seeds: Sequence[int], numbers: Sequence[int], steps: range, purpose: int) -> Tensor:
    """The keys that worlds draw with: hash32(hash32(hash32(hash32(seed) + number) + step) + purpose), computed on the host.

    Args:
        seeds: A seed a world.
        numbers: A world's number; worlds with the same seed and number share their chance.
        steps: Step numbers.
        purpose: One of the purposes above.

    Returns:
        int32 tensor (steps, worlds, 1, 1) on the CPU, uint32 bits.
    """
    world = _world_keys(seeds, numbers)
    step = np.arange(steps.start, steps.stop, dtype=np.int64).astype(np.uint32)
    mixed = _hash32(_hash32(world[None, :] + step[:, None]) + np.uint32(purpose))
    return torch.from_numpy(mixed.view(np.int32))[:, :, None, None]


def world_keys(seeds: Sequence[int], numbers: Sequence[int]) -> Tensor:
    """The part of the keys that stays: hash32(hash32(seed) + number), int32 (worlds,) on the CPU, uint32 bits."""
    return torch.from_numpy(_world_keys(seeds, numbers).view(np.int32))


def _world_keys(seeds: Sequence[int], numbers: Sequence[int]) -> NDArray[np.uint32]:
    return _hash32(_hash32(np.array(seeds, np.uint32)) + np.array(numbers, np.uint32))


def _hash32(v: NDArray[np.uint32]) -> NDArray[np.uint32]:
    v = v ^ (v >> np.uint32(16))
    v = v * np.uint32(MULTIPLIERS[0])
    v = v ^ (v >> np.uint32(15))
    v = v * np.uint32(MULTIPLIERS[1])
    return v ^ (v >> np.uint32(16))
