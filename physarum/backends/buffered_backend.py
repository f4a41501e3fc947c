"""What the fast backends share: two buffers of everything that a step changes, and agents kept beside those near them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.profiler import record_function

from physarum import labels
from physarum.backends.torch_backend import Moment, TorchBackend
from physarum.model.constants import Constants
from physarum.model.stages import Agents
from physarum.model.state import State
from physarum.model.world import World

TILE = 16  # cells; agents of a tile are kept beside each other in memory, so that what they sense is in the cache
SORT_EVERY = 64  # steps; agents drift apart slowly


class Motion(NamedTuple):
    """What a step changes of the agents: a buffer to write it to."""

    x: Tensor
    y: Tensor
    heading: Tensor


class BufferedBackend(TorchBackend):
    """A backend that writes each moment to the buffers that the last one does not use, so that the loop allocates nothing."""

    def load(self, worlds: Sequence[World], state: State) -> None:
        """Take over a batch of worlds; see TorchBackend."""
        super().load(worlds, state)
        trail = self._now.trail
        self._motions: tuple[Motion, ...] = ()
        self._trails = (trail, torch.empty_like(trail))
        self._sorted_at: int | None = None

    def close(self) -> None:
        """Give the memory back."""
        super().close()
        del self._motions, self._trails

    def _constants_of(self, worlds: Sequence[World]) -> Constants:
        return Constants.of(worlds, self.device)  # with attraction always a tensor, so that changing it does not compile again

    def _sort_when_due(self) -> None:
        """Sort the agents before the first step, and from then on every SORT_EVERY steps."""
        if self._sorted_at is None or self._now.step - self._sorted_at >= SORT_EVERY:
            self._sort()

    def _sort(self) -> None:
        """Bring agents that stand in the same tile together; `id` says who is who, so no bit depends on it."""
        with record_function(labels.SORT):
            agents, trail, step_number = self._now
            columns, rows = (-(-side // TILE) for side in reversed(trail.shape[-2:]))
            field = torch.arange(agents.x.shape[:2].numel(), dtype=torch.int32, device=self.device).view(*agents.x.shape[:2], 1)
            tile = (field * rows + agents.y.to(torch.int32) // TILE) * columns + agents.x.to(torch.int32) // TILE
            self._motions = ()  # the other buffer makes room for what sorting needs
            order = tile.flatten().argsort()
            del tile
            x, y, heading, ids = (t.flatten()[order].view_as(t) for t in agents[:4])
            self._now = Moment(Agents(x, y, heading, ids, agents.last_id), trail, step_number)
            self._sorted_at = step_number

    def _free_buffers(self) -> tuple[Motion, Tensor]:
        """A motion and a trail that do not hold those of now."""
        now = Motion(*self._now.agents[:3])
        motion = next((m for m in self._motions if m.x is not now.x), None)
        if motion is None:
            motion = Motion(*(torch.empty_like(t) for t in now))
            self._motions = (now, motion)
        return motion, next(t for t in self._trails if t is not self._now.trail)
