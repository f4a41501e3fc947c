"""Worlds that the exactness tests run, and how they are given to the oracle."""

import dataclasses
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import oracle
import torch

from physarum import Params, State, World

# No product with these is exact, and no rounding is hidden: a step of 1 or a diffusion of 1 would prove little.
AWKWARD = Params(
    sensor_angle=33, rotation_angle=51, sensor_distance=9.3, step_size=0.83, deposit_amount=3.3, diffusion=0.37, decay_rate=0.07
)
NARROW = dataclasses.replace(AWKWARD, sensor_distance=5.3)  # fits a world of 8 cells
SIZE = (61, 83)
AGENTS = 700


def noise(seed: int, *shape: int, high: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).random(shape) * high).astype(np.float32)


def blobs(seed: int, height: int, width: int) -> np.ndarray:
    """Walls: a frame on two sides and scattered blocks."""
    walls = np.random.default_rng(seed).random((height, width)) < 0.06
    walls[:2], walls[:, -1] = True, True
    return walls


def mapped_world(seed: int = 5, size: tuple[int, int] = SIZE) -> World:
    """Two populations that repel each other, with every map."""
    width, height = size
    return World(
        (AWKWARD, Params()),
        attraction=[[1.0, -0.7], [-1.3, 0.9]],
        trail=noise(1, height, width, high=40.0),
        food=noise(2, height, width, high=0.3),
        walls=blobs(3, height, width),
        light=noise(4, 2, height, width, high=2.0) - np.float32(1.0),
        seed=seed,
    )


def as_oracle(world: World, size: tuple[int, int]) -> oracle.World:
    """The same world for the oracle."""
    populations, (width, height) = len(world.populations), size

    def field(name: str) -> np.ndarray | None:
        value = getattr(world, name)
        return None if value is None else np.broadcast_to(value.numpy(), (populations, height, width)).copy()

    return oracle.World(
        width,
        height,
        [dataclasses.asdict(p) for p in world.populations],
        attraction=np.array(world.attraction),
        food=field("food"),
        walls=field("walls"),
        light=field("light"),
        seed=world.seed,
        number=world.number or 0,
    )


def oracle_start(world: World, size: tuple[int, int], agents: int, count: list[int] | None = None) -> oracle.State:
    trail = world.trail
    if trail is not None:
        trail = np.broadcast_to(trail.numpy(), (len(world.populations), size[1], size[0])).copy()
    return oracle.random_start(as_oracle(world, size), agents, None if count is None else np.array(count), trail=trail)


def differing(a: State, b: State) -> dict[str, int]:
    """How many values differ in each tensor; the bits are compared, so that -0 is not 0. Empty where none does."""
    bits = {torch.float32: torch.int32}
    pairs = {name: (tensor.cpu(), b.tensors()[name].cpu()) for name, tensor in a.tensors().items()}
    counts = {name: int((p.view(bits.get(p.dtype, p.dtype)) != q.view(bits.get(q.dtype, q.dtype))).sum()) for name, (p, q) in pairs.items()}
    assert a.step == b.step
    return {name: n for name, n in counts.items() if n}


def differing_from_oracle(state: State, expected: list[oracle.State]) -> dict[str, int]:
    """The same against the oracle's worlds."""

    def stack(name: str) -> torch.Tensor:
        return torch.from_numpy(np.stack([getattr(e, name) for e in expected]))

    order = stack("id").argsort(-1)
    agents = {name: stack(name).gather(-1, order) for name in ("x", "y", "heading", "id")}
    count = torch.from_numpy(np.stack([np.asarray(e.count, np.int64) for e in expected]))
    return differing(state, State(**agents, trail=stack("trail"), count=count, step=expected[0].step))


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Writes beyond so many bytes of a file fail in the block, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:  # before pytest goes on writing to a file of its own
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
