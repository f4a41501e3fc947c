"""The model. A step is sense, motor, deposit, diffuse, decay; `step` at the end of this page puts them in order.

Every tensor has leading axes (worlds, populations); agents are (worlds, populations, slots), fields (worlds, populations, height, width).
All arithmetic is float32 `+ - *`, comparisons, floor and conversions, each rounded on its own, so that every backend and device
computes the same bits. The rules are those of Jones, "Characteristics of pattern formation and evolution in approximations of
Physarum transport networks", Artificial Life 16 (2010), with agents that may share a cell.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from physarum.model.angles import direction, wrap_heading
from physarum.model.chance import draw
from physarum.model.constants import Constants
from physarum.model.maps import Maps
from physarum.model.torus import cell_of, wrap

FAINTEST = 2.0**-40  # weaker trail is none, so that denormal numbers never arise
STRONGEST = 1.0000000150474662e30  # float32 of 1e30; stronger trail is cut to it, so that infinity never arises


class Agents(NamedTuple):
    """Agents while they are advanced; headings are int32 here, which processors compute faster than int16."""

    x: Tensor  # float32, cells, 0 <= x < width
    y: Tensor  # float32, cells, 0 <= y < height
    heading: Tensor  # int32 binary angle, -32,768 .. 32,767
    id: Tensor  # int32, population * slots + index at the start
    last_id: Tensor | None  # int32 (worlds, populations, 1): slots with a higher id hold no agent; None: all slots live


class Keys(NamedTuple):
    """What the draws of one step are keyed with: int32 (worlds, 1, 1) each."""

    coin: Tensor
    wall_heading: Tensor


class Senses(NamedTuple):
    """Scent at an agent's three sensors: float32 (worlds, populations, slots) each."""

    left: Tensor
    ahead: Tensor
    right: Tensor


def scent(trail: Tensor, attraction: Tensor | None, light: Tensor | None) -> Tensor:
    """What each population smells: the trails weighted by its attraction to them, plus light.

    Args:
        trail: (worlds, populations, height, width).
        attraction: (worlds, populations, populations, 1, 1), [.., p, q] that of p to the trail of q; None: its own trail alone.
        light: Like `trail`, or None.

    Returns:
        Like `trail`; the trail itself where nothing is to be computed.
    """
    smell = trail
    if attraction is not None:
        smell = attraction[:, :, 0] * trail[:, 0, None]
        for q in range(1, trail.shape[1]):
            smell = smell + attraction[:, :, q] * trail[:, q, None]
    return smell if light is None else smell + light


def sense(agents: Agents, trail: Tensor, constants: Constants, maps: Maps) -> Senses:
    """Read the scent at `sensor_distance`, `sensor_angle` to the left, straight ahead, and to the right."""
    height, width = trail.shape[-2:]
    field = scent(trail, constants.attraction, maps.light)

    def smell(heading: Tensor) -> Tensor:
        cos, sin = direction(heading)
        x, y = agents.x + constants.sensor_distance * cos, agents.y + constants.sensor_distance * sin
        return at(field, cell_of(x, y, width, height))

    left, right = agents.heading - constants.sensor_angle, agents.heading + constants.sensor_angle
    return Senses(smell(left), smell(agents.heading), smell(right))


def turn(senses: Senses, coin: Tensor) -> Tensor:
    """Which way to turn: -1 left, 0 straight, 1 right.

    Straight where ahead is strongest, by the coin (-1 or 1) where it is weakest, else towards the stronger side. Int32 like `coin`.
    """
    left, ahead, right = senses
    side = (left < right).to(torch.int32) - (right < left).to(torch.int32)
    side = torch.where((ahead < left) & (ahead < right), coin, side)
    return torch.where((ahead > left) & (ahead > right), 0, side)


def motor(agents: Agents, senses: Senses, trail: Tensor, constants: Constants, maps: Maps, keys: Keys) -> tuple[Agents, Tensor | None]:
    """Turn and move. An agent whose move would end in a wall stays where it is, without deposit, and takes a random heading.

    Returns:
        The agents, and which of them deposit: bool (worlds, populations, slots), or None where all do.
    """
    height, width = trail.shape[-2:]
    coin = ((draw(agents.id, keys.coin) & 1) << 1) - 1
    heading = wrap_heading(agents.heading + turn(senses, coin) * constants.rotation_angle)
    cos, sin = direction(heading)
    x = wrap(agents.x + constants.step_size * cos, width)
    y = wrap(agents.y + constants.step_size * sin, height)
    deposits = None
    if maps.walls is not None:
        blocked = at(maps.walls, cell_of(x, y, width, height))
        x, y = torch.where(blocked, agents.x, x), torch.where(blocked, agents.y, y)
        heading = torch.where(blocked, wrap_heading(draw(agents.id, keys.wall_heading)), heading)
        deposits = ~blocked
    if agents.last_id is not None:
        lives = agents.id <= agents.last_id
        x, y = torch.where(lives, x, agents.x), torch.where(lives, y, agents.y)
        heading = torch.where(lives, heading, agents.heading)
        deposits = lives if deposits is None else deposits & lives
    return Agents(x, y, heading, agents.id, agents.last_id), deposits


def count_in_cells(agents: Agents, deposits: Tensor | None, trail: Tensor) -> Tensor:
    """How many agents deposit in each cell: int32, of the shape of `trail`. Integers, so that the order of adding cannot matter."""
    height, width = trail.shape[-2:]
    cell = cell_of(agents.x, agents.y, width, height)
    one = torch.ones_like(cell, dtype=torch.int32) if deposits is None else deposits.to(torch.int32)
    return torch.zeros_like(trail, dtype=torch.int32).flatten(2).scatter_add(2, cell, one).view_as(trail)


def deposit(agents: Agents, deposits: Tensor | None, trail: Tensor, constants: Constants, maps: Maps) -> Tensor:
    """Each agent adds `deposit_amount` to the cell where it now stands; food adds its own."""
    count = count_in_cells(agents, deposits, trail)
    trail = trail + constants.deposit_amount * count.to(torch.float32)
    return trail if maps.food is None else trail + maps.food


def diffuse(trail: Tensor, constants: Constants) -> Tensor:
    """Mix each cell with the mean of the 3 x 3 cells around it: the share `diffusion` comes from the mean."""
    wide = torch.cat([trail[..., -1:], trail, trail[..., :1]], -1)
    row = (wide[..., :-2] + trail) + wide[..., 2:]
    nine = (row.roll(1, -2) + row) + row.roll(-1, -2)
    return trail * constants.keep + nine * constants.share


def decay(trail: Tensor, constants: Constants, maps: Maps) -> Tensor:
    """Lose the share `decay_rate`; walls hold no trail."""
    trail = trail * constants.remain
    trail = torch.where(trail < FAINTEST, 0.0, trail)
    trail = torch.where(trail > STRONGEST, STRONGEST, trail)
    return trail if maps.walls is None else torch.where(maps.walls, 0.0, trail)


def at(field: Tensor, cell: Tensor) -> Tensor:
    """The values of a field (worlds, populations, height, width) in flat cells (worlds, populations, slots)."""
    return field.flatten(2).gather(2, cell)


def plain(stage: Callable[..., Any], *args: Any) -> Any:
    """Run a stage as it is."""
    return stage(*args)


def step(
    agents: Agents, trail: Tensor, constants: Constants, maps: Maps, keys: Keys, run: Callable[..., Any] = plain
) -> tuple[Agents, Tensor]:
    """One step of the model.

    Args:
        agents: Where the agents are.
        trail: float32 (worlds, populations, height, width).
        constants: The parameters as the arithmetic uses them.
        maps: Food, walls and light.
        keys: The chance of this step.
        run: How a stage is run: plainly, under its label, or compiled.

    Returns:
        The agents and the trail one step later; the arguments are not changed.
    """
    senses = run(sense, agents, trail, constants, maps)
    agents, deposits = run(motor, agents, senses, trail, constants, maps, keys)
    trail = run(deposit, agents, deposits, trail, constants, maps)
    trail = run(diffuse, trail, constants)
    trail = run(decay, trail, constants, maps)
    return agents, trail
