"""The model as it is read, run eagerly by PyTorch on any device."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.profiler import record_function

from physarum.errors import UsageError
from physarum.model import chance
from physarum.model.constants import Constants
from physarum.model.maps import Maps, stacked
from physarum.model.stages import Agents, Keys, plain, step
from physarum.model.state import State, agents_of, by_id
from physarum.model.world import MAP_RANGES, World, as_map

KEYS_AT_ONCE = 1024  # steps whose keys are computed on the host and sent to the device together


class Moment(NamedTuple):
    """Everything that a step changes. It is replaced as one, so that an interrupt leaves the world before or after a step."""

    agents: Agents
    trail: Tensor  # float32 (worlds, populations, height, width)
    step: int  # completed steps


def labelled_stage(stage: Callable[..., Any], *args: Any) -> Any:
    """Run a stage under its name, for traces."""
    with record_function(stage.__name__):
        return stage(*args)


class TorchBackend:
    """Advances a batch of worlds, one operator after the other.

    Args:
        device: A PyTorch device.
    """

    name = "torch"
    # At the peak of a step, temporary arrays included; measured with torch.profiler (torch 2.13, CPU).
    bytes_per_agent = 90
    bytes_per_cell = 36
    kernels_a_step: int | None = None  # that a labelled step launches on a GPU, where that is known beforehand

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    @classmethod
    def missing(cls, device: torch.device) -> str | None:  # noqa: ARG003
        """What this machine lacks to run this backend on `device`, and how to get it; None where nothing."""
        return None

    def load(self, worlds: Sequence[World], state: State) -> None:
        """Take over a batch of worlds; the state is copied.

        Args:
            worlds: The batch.
            state: Where it stands.

        Raises:
            UsageError: A map does not have the state's size.
        """
        self.worlds = tuple(worlds)
        self._maps = Maps.of(worlds, state.size, self.device)
        self._constants = self._constants_of(worlds)
        self.count = state.count.to(self.device)
        trail = state.trail.to(self.device, copy=True, memory_format=torch.contiguous_format)
        self._now = Moment(agents_of(state, self.device), trail, state.step)

    def advance(self, steps: int, labelled: bool = False, by_stage: bool = True) -> None:
        """Run `steps` steps.

        Args:
            steps: 0 or more.
            labelled: Put each step under its `record_function` label,
            by_stage: and each stage too. Without, a backend takes its fastest way, which may fuse what labels keep apart.
        """
        with torch.no_grad():
            end = self._now.step + steps
            while self._now.step < end:
                for keys in self._keys(range(self._now.step, min(self._now.step + KEYS_AT_ONCE, end))):
                    label: AbstractContextManager[Any] = record_function(f"step {self._now.step}") if labelled else nullcontext()
                    with label:
                        self._advance_once(keys, labelled and by_stage)

    def set_params(self, worlds: Sequence[World]) -> None:
        """Go on with the parameters, attraction, seeds and numbers of `worlds`; their maps are not looked at."""
        kept = ("trail", *Maps._fields)
        self.worlds = tuple(replace(w, **{name: getattr(old, name) for name in kept}) for w, old in zip(worlds, self.worlds, strict=True))
        self._constants = self._constants_of(worlds)

    def edit(self, name: str, region: tuple[slice, slice], values: Any) -> None:
        """Change a part of the trail or of a map; see `Simulation.edit`."""
        if name not in ("trail", *Maps._fields):
            raise UsageError(f"there is no map {name!r}: it must be trail, {', '.join(Maps._fields)}")
        window = (..., *region)
        trail = self._now.trail
        current = trail if name == "trail" else stacked(name, self.worlds, self._size())
        edited = torch.zeros_like(trail) if current is None else current.clone(memory_format=torch.contiguous_format)
        if edited[window].numel() == 0:
            raise UsageError(f"the region {region} lies outside the world of {trail.shape[-2]} rows and {trail.shape[-1]} columns")
        try:
            edited[window] = torch.as_tensor(values).to(edited)
        except (RuntimeError, TypeError, ValueError) as error:
            raise UsageError(f"the values do not fill that part of {name}: {str(error).splitlines()[0]}") from error
        if name == "trail":
            as_map(name, edited[window].flatten(0, 1), *MAP_RANGES[name])
            self._now = self._now._replace(trail=edited)
        else:
            self.worlds = tuple(replace(w, **{name: field}) for w, field in zip(self.worlds, edited, strict=True))
            self._maps = Maps.of(self.worlds, self._size(), self.device)
        if self._maps.walls is not None:
            self._now = self._now._replace(trail=torch.where(self._maps.walls, 0.0, self._now.trail))

    def state(self) -> State:
        """A copy of where everything stands, agents in order of id."""
        return by_id(self._now.agents, self._now.trail, self.count, self._now.step)

    def trail(self) -> Tensor:
        """The trail on the device, float32 (worlds, populations, height, width); a view, to be read anew after each run."""
        return self._now.trail

    def synchronize(self) -> None:
        """Wait until the device has done all that it was told to do; a clock that is read before says nothing."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @property
    def step(self) -> int:
        """Completed steps."""
        return self._now.step

    @classmethod
    def bytes_needed(cls, worlds: int, populations: int, size: tuple[int, int], agents: int) -> int:
        """Device memory at the peak of a step, in bytes, for `agents` slots a population."""
        width, height = size
        return worlds * populations * (cls.bytes_per_agent * agents + cls.bytes_per_cell * width * height)

    def warm_up(self) -> None:
        """Do what the first step would do once: nothing here."""

    def close(self) -> None:
        """Give the memory back."""
        del self._now, self._maps, self._constants

    def _constants_of(self, worlds: Sequence[World]) -> Constants:
        constants = Constants.of(worlds, self.device)
        alone = all(w.attraction == ((1.0,),) for w in worlds)
        return constants._replace(attraction=None) if alone else constants

    def _size(self) -> tuple[int, int]:
        height, width = self._now.trail.shape[-2:]
        return width, height

    def _keys(self, numbers: range) -> list[Keys]:
        """The keys of some steps, as views of two tables on the device.

        Each view begins at a multiple of 16 bytes: on a GPU compiled code copies what does not, in every step.
        """
        seeds, worlds = [w.seed for w in self.worlds], [w.number or 0 for w in self.worlds]
        spare = -len(worlds) % 4
        tables = [chance.keys(seeds, worlds, numbers, use) for use in (chance.COIN, chance.WALL_HEADING)]
        coin, wall = (pad(table, (0, 0, 0, 0, 0, spare)).to(self.device)[:, : len(worlds)] for table in tables)
        return [Keys(c, w) for c, w in zip(coin, wall, strict=True)]

    def _advance_once(self, keys: Keys, labelled: bool) -> None:
        now = self._now
        agents, trail = step(now.agents, now.trail, self._constants, self._maps, keys, labelled_stage if labelled else plain)
        self._now = Moment(agents, trail, now.step + 1)
