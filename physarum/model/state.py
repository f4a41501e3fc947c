"""A batch of worlds at one moment."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from physarum.errors import UsageError
from physarum.model.params import MOST_AGENTS, MOST_STEPS, check_size, whole
from physarum.model.stages import STRONGEST, Agents


@dataclass(frozen=True, eq=False)
class State:
    """Where everything stands. Agents are (worlds, populations, slots).

    Attributes:
        x: float32, cells, 0 <= x < width.
        y: float32, cells, 0 <= y < height.
        heading: int16 binary angle, 65,536 to the turn, 0 along +x, growing towards +y.
        id: int32, population * slots + index at the start; agents may stand in any order.
        trail: float32 (worlds, populations, height, width).
        count: int64 (worlds, populations), how many slots hold an agent: those with the lowest ids. The others never change.
        step: Completed steps.
    """

    x: Tensor
    y: Tensor
    heading: Tensor
    id: Tensor
    trail: Tensor
    count: Tensor
    step: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in cells."""
        height, width = self.trail.shape[-2:]
        return width, height

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "step"}


def first_ids(populations: int, slots: int) -> Tensor:
    """The lowest id of each population: int64 (populations, 1)."""
    return torch.arange(populations, dtype=torch.int64)[:, None] * slots


def agents_of(state: State, device: torch.device | str) -> Agents:
    """The agents of a state as the stages use them, copied to a device."""
    populations, slots = state.x.shape[1:]
    full = bool((state.count == slots).all())
    last_id = None if full else (first_ids(populations, slots) + state.count.cpu()[..., None] - 1).to(torch.int32).to(device)
    heading = state.heading.to(device=device, dtype=torch.int32)
    x, y = (t.to(device).contiguous() + 0.0 for t in (state.x, state.y))  # a copy, in which -0 is 0
    ids = state.id.to(device, copy=True, memory_format=torch.contiguous_format)
    return Agents(x, y, heading, ids, last_id)


def by_id(agents: Agents, trail: Tensor, count: Tensor, step: int) -> State:
    """A copy of what the stages use, agents in order of id."""
    order = agents.id.argsort(-1)
    x, y, heading, ids = (t.gather(-1, order) for t in (agents.x, agents.y, agents.heading, agents.id))
    return State(x, y, heading.to(torch.int16), ids, trail.clone(memory_format=torch.contiguous_format), count.clone(), step)


def check_state(state: State, worlds: int, populations: int) -> State:
    """See that a state that comes from outside can be advanced.

    Args:
        state: Of any origin.
        worlds: How many worlds it must have.
        populations: How many populations a world.

    Returns:
        The state, its step an int.

    Raises:
        UsageError: A tensor has a wrong type or shape, an agent stands outside or twice, or a value is not finite.
    """
    kinds = {"heading": torch.int16, "id": torch.int32, "count": torch.int64}
    for name, tensor in state.tensors().items():
        kind = kinds.get(name, torch.float32)
        if not isinstance(tensor, Tensor) or tensor.dtype != kind:
            raise UsageError(f"{name} in the state must be a tensor of {str(kind).removeprefix('torch.')}")
    if state.x.ndim != 3 or state.trail.ndim != 4 or not 1 <= state.x.shape[1:].numel() <= MOST_AGENTS:
        raise UsageError("agents in a state are (worlds, populations, slots), the trail is (worlds, populations, height, width)")
    width, height = check_size(state.size)
    shape, slots = state.x.shape, state.x.shape[-1]
    same = all(t.shape == shape for t in (state.x, state.y, state.heading, state.id))
    if not same or shape[:2] != (worlds, populations) or state.trail.shape[:2] != shape[:2] or state.count.shape != shape[:2]:
        raise UsageError(f"the state does not have the axes of {worlds} worlds with {populations} populations each")
    step = whole("step", state.step, 0, MOST_STEPS)
    if not bool(((state.count >= 0) & (state.count <= slots)).all()):
        raise UsageError(f"count in the state must be from 0 to {slots}")
    for name, side in (("x", width), ("y", height)):
        place = getattr(state, name)
        if not bool(((place >= 0) & (place < side)).all()):
            raise UsageError(f"{name} in the state must be from 0 to less than {side}")
    expected = first_ids(populations, slots) + torch.arange(slots)
    if not bool((state.id.cpu().to(torch.int64).sort(-1)[0] == expected).all()):
        raise UsageError("id in the state must hold each agent's number once")
    if not bool(((state.trail >= 0) & (state.trail <= STRONGEST)).all()):
        raise UsageError(f"trail in the state must be from 0 to {STRONGEST:g}")
    return replace(state, step=step)
