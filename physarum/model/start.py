"""The random start: agents anywhere, heading anywhere. Computed on the device, the same on every device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from physarum.errors import UsageError
from physarum.model import chance
from physarum.model.maps import stacked
from physarum.model.params import MOST_AGENTS, whole
from physarum.model.stages import at
from physarum.model.state import State, first_ids
from physarum.model.torus import cell_of, wrap
from physarum.model.world import World

REDRAWS = 64  # a place in a wall is drawn again so often at most


def random_start(
    worlds: Sequence[World], size: tuple[int, int], agents: int, count: Tensor | None = None, device: torch.device | str = "cpu"
) -> State:
    """Agents at random places with random headings, on the worlds' own trail.

    Args:
        worlds: The batch.
        size: (width, height) in cells.
        agents: Slots a population.
        count: int64 (worlds, populations), how many slots hold an agent; None for all. The others stand at 0 and never change.
        device: Where to compute.

    Returns:
        The state at step 0, on `device`.

    Raises:
        UsageError: There are too many agents, or walls leave too little room for them.
    """
    populations, (width, height) = len(worlds[0].populations), size
    whole("agents", agents, 1, MOST_AGENTS // populations)
    shape = (len(worlds), populations, agents)
    index = torch.arange(agents, device=device)
    ids = (first_ids(populations, agents).to(device) + index).to(torch.int32).expand(shape).contiguous()
    lives = index < (torch.full(shape[:2], agents) if count is None else count).to(device)[..., None]
    seeds, numbers = [w.seed for w in worlds], [w.number or 0 for w in worlds]

    def drawn(purpose: int, attempt: int) -> Tensor:
        return chance.draw(ids, chance.keys(seeds, numbers, range(attempt, attempt + 1), purpose)[0].to(device))

    def place(purpose: int, attempt: int, side: int) -> Tensor:
        return wrap(((drawn(purpose, attempt) >> 8) & 0xFFFFFF).to(torch.float32) * 2.0**-24 * float(side), side)

    x, y = place(chance.START_X, 0, width), place(chance.START_Y, 0, height)
    heading = (drawn(chance.START_HEADING, 0) >> 16).to(torch.int16)
    trail, walls = stacked("trail", worlds, size), stacked("walls", worlds, size)
    trail = (
        torch.zeros(*shape[:2], height, width, dtype=torch.float32, device=device)
        if trail is None
        else trail.to(device, copy=True).contiguous()
    )
    if walls is not None:
        walls = walls.to(device)
        trail = torch.where(walls, 0.0, trail)
        for attempt in range(REDRAWS + 1):
            blocked = at(walls, cell_of(x, y, width, height)) & lives
            if not bool(blocked.any()):
                break
            if attempt == REDRAWS:
                raise UsageError(f"walls leave so little room that agents found no free cell in {REDRAWS} draws")
            x = torch.where(blocked, place(chance.START_X, attempt + 1, width), x)
            y = torch.where(blocked, place(chance.START_Y, attempt + 1, height), y)
    x, y, heading = (torch.where(lives, t, 0) for t in (x, y, heading))
    return State(x, y, heading, ids, trail, lives.sum(-1), 0)
