"""A simulation: worlds, their state, and the backend that advances them."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from physarum import checkpoint
from physarum.backends import BACKENDS, Choice, choose
from physarum.backends.memory import check_memory
from physarum.backends.torch_backend import TorchBackend
from physarum.errors import UsageError
from physarum.model.params import MOST_AGENTS, MOST_STEPS, Params, check_size, default_agents, whole
from physarum.model.start import random_start
from physarum.model.state import State, check_state
from physarum.model.world import World, as_worlds, check_reach

log = logging.getLogger("physarum")

Worlds = World | Params | Sequence[World | Params]


class Simulation:
    """Worlds that can be run.

    Args:
        worlds: A world, or a batch of worlds that are advanced together; a bare `Params` is a world of one population.
        size: (width, height) in cells, 8 to 65,536 each; None for the size of the first world's trail, else 512 x 512.
        agents: Slots a population; None for 15 in 100 cells.
        seed: Replaces the seed of every world; None leaves them.
        backend: "torch", "compile", "triton" or "auto", which takes the faster one for the number of steps.
        device: "cpu", "cuda", "cuda:1" and so on, or "auto".
        count: How many slots hold an agent, (worlds, populations) or what broadcasts to it; None for all.
        planned_steps: How many steps will be run, as far as known; see `expect`.

    Raises:
        UsageError: An argument breaks these rules, the backend or device is not there, or the run does not fit the memory; a ValueError.
    """

    _backend: TorchBackend
    _steps_asked: int
    _steps_expected: int

    def __init__(
        self,
        worlds: Worlds = Params(),  # noqa: B008 (immutable)
        size: tuple[int, int] | None = None,
        agents: int | None = None,
        seed: int | None = None,
        backend: str = "auto",
        device: str = "auto",
        count: Any = None,
        planned_steps: int = 0,
    ) -> None:
        batch = as_worlds(worlds, seed)
        if size is None:
            size = (512, 512) if batch[0].trail is None else (batch[0].trail.shape[-1], batch[0].trail.shape[-2])
        size = check_size(size)
        check_reach(batch, size)
        slots = default_agents(size) if agents is None else whole("agents", agents, 1, MOST_AGENTS)
        populations = len(batch[0].populations)
        choice = self._chosen(backend, device, len(batch) * populations, size, slots, planned_steps)
        check_memory(BACKENDS[choice.backend], choice.device, batch, size, slots)
        living = None if count is None else _count(count, (len(batch), populations), slots)
        started = tuple(replace(w, trail=None) for w in batch)  # from now on the state holds the trail
        self._load(started, random_start(batch, size, slots, living, choice.device), choice)
        self.expect(planned_steps)

    @classmethod
    def from_state(cls, worlds: Worlds, state: State, backend: str = "auto", device: str = "auto", planned_steps: int = 0) -> "Simulation":
        """Go on from a state; agents may stand in any order.

        Args:
            worlds: As for a new simulation.
            state: Where they stand; copied.
            backend: As for a new simulation.
            device: As for a new simulation.
            planned_steps: How many steps will be run from here.

        Raises:
            UsageError: The state cannot be one of these worlds.
        """
        batch = as_worlds(worlds)
        populations = len(batch[0].populations)
        state = check_state(state, len(batch), populations)
        check_reach(batch, state.size)
        simulation = cls.__new__(cls)
        slots = state.x.shape[-1]
        choice = simulation._chosen(backend, device, len(batch) * populations, state.size, slots, planned_steps)
        check_memory(BACKENDS[choice.backend], choice.device, batch, state.size, slots)
        simulation._load(batch, state, choice)
        simulation.expect(planned_steps)
        return simulation

    @classmethod
    def load(cls, path: str | PathLike[str], backend: str = "auto", device: str = "auto", planned_steps: int = 0) -> "Simulation":
        """Go on from a checkpoint, on any backend and device.

        Raises:
            UsageError: The file is missing, damaged or no checkpoint; nothing is loaded in part.
        """
        worlds, state, _ = checkpoint.load(path)
        return cls.from_state(worlds, state, backend, device, planned_steps)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a checkpoint, whole or not at all.

        Raises:
            RunError: The file cannot be written.
        """
        checkpoint.save(path, self.worlds, self.state())

    def run(self, steps: int, labelled: bool | None = None, by_stage: bool = True) -> None:
        """Advance all worlds.

        Args:
            steps: How many steps, 0 or more.
            labelled: Put steps and stages under their `record_function` labels; None does so while a profiler records.
            by_stage: Where labelled, the stages too; without, a backend takes its fastest way, which may fuse what labels keep apart.

        Raises:
            UsageError: `steps` is no whole number, or the backend that was asked for fails on this machine.
        """
        steps = whole("steps", steps, 0, MOST_STEPS)
        self._steps_asked += steps
        if self._auto and self._steps_asked > self._steps_expected:
            self.expect(0)
        self._backend.advance(steps, torch._C._autograd._profiler_enabled() if labelled is None else labelled, by_stage)

    def expect(self, steps: int) -> None:
        """Tell `auto` how many steps are to come, so that it takes the backend that will be done first, and says so.

        Without it, `auto` goes by the steps that have been asked for so far. An explicit choice of a backend stays.

        Args:
            steps: As far as known.
        """
        expected = max(self._steps_expected, self._steps_asked + steps)
        if not self._auto or expected == self._steps_expected:
            return
        self._steps_expected = expected
        choice = choose("auto", str(self.device), *self._work, self._steps_expected)
        if choice.backend != self.backend or steps:
            log.warning("%s", choice.why)
        changes = choice.backend != self.backend
        if changes:
            self._hand_over(choice)
        if changes or steps:
            self.warm_up()

    def use(self, backend: str) -> None:
        """Hand the worlds to another backend on the same device; the bits go on as they would have.

        Raises:
            UsageError: There is no such backend here, or the memory does not hold both while one takes over from the other.
        """
        if backend == "auto":
            raise UsageError(f"the backend to use must be one of {', '.join(BACKENDS)}")
        choice = choose(backend, str(self.device), 0, 0, 0)
        if choice.backend != self.backend:
            self._hand_over(choice)
        self._auto = False

    def synchronize(self) -> None:
        """Wait until the device has done all that it was told to do; a clock that is read before says nothing."""
        self._backend.synchronize()

    def warm_up(self) -> None:
        """Do now what the first step would do once, such as compiling; the worlds stay where they are.

        Raises:
            UsageError: The backend that was asked for fails on this machine.
        """
        try:
            self._backend.warm_up()
        except UsageError as error:
            if not self._auto:
                raise
            log.warning("%s", error)
            self.use("torch")

    def set_params(self, worlds: Worlds) -> None:
        """Go on with other parameters, attraction, seeds or numbers; the maps stay as they are.

        Args:
            worlds: As many as there are. A bare `Params` changes the parameters alone; a `World` brings its seed and number too.

        Raises:
            UsageError: They are not as many worlds and populations as before, or reach too far for the world's size.
        """
        given = [worlds] if isinstance(worlds, (World, Params)) else list(worlds)
        if len(given) != len(self.worlds):
            raise UsageError("set_params needs as many worlds and populations as the simulation has")
        batch = as_worlds([replace(w, populations=(g,)) if isinstance(g, Params) else g for g, w in zip(given, self.worlds, strict=True)])
        if len(batch[0].populations) != len(self.worlds[0].populations):
            raise UsageError("set_params needs as many worlds and populations as the simulation has")
        check_reach(batch, self.size)
        self._backend.set_params(batch)

    def edit(self, name: str, region: tuple[slice, slice], values: Any) -> None:
        """Change a part of the trail or of a map.

        Args:
            name: "trail", "food", "walls" or "light".
            region: Rows and columns.
            values: Broadcasts to (worlds, populations, rows, columns); in the range of that map.

        Raises:
            UsageError: There is no such map, the region lies outside the world, or a value is out of its range.
        """
        self._backend.edit(name, region, values)

    def state(self) -> State:
        """A copy of where everything stands, agents in order of id, on the device."""
        return self._backend.state()

    @property
    def trail(self) -> Tensor:
        """The trail on the device, float32 (worlds, populations, height, width); a view, to be read anew after each run."""
        return self._backend.trail()

    @property
    def worlds(self) -> tuple[World, ...]:
        """The batch, each world with its number; the trail that it started from is not kept."""
        return self._backend.worlds

    @property
    def step(self) -> int:
        """Completed steps."""
        return self._backend.step

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in cells."""
        height, width = self.trail.shape[-2:]
        return width, height

    @property
    def slots(self) -> int:
        """Places for agents a population; not all need hold one."""
        return self._work[0] // self._backend.count.numel()

    @property
    def agents(self) -> int:
        """Agents in all worlds and populations."""
        return int(self._backend.count.sum())

    @property
    def agents_per_cell(self) -> tuple[float, ...]:
        """How many agents of each population of the first world there are on a cell, on the average."""
        width, height = self.size
        return tuple(count / (width * height) for count in self._backend.count[0].tolist())

    @property
    def backend(self) -> str:
        """The name of the backend that advances the worlds now."""
        return self._backend.name

    @property
    def device(self) -> torch.device:
        """Where the worlds are."""
        return self._backend.device

    def _chosen(self, backend: str, device: str, fields: int, size: tuple[int, int], slots: int, steps: int) -> Choice:
        """Choose for `fields` populations in all worlds together."""
        self._auto = backend == "auto"
        self._work = (fields * slots, fields * size[0] * size[1])
        return choose(backend, device, *self._work, steps)

    def _load(self, worlds: tuple[World, ...], state: State, choice: Choice) -> None:
        self._backend = BACKENDS[choice.backend](choice.device)
        self._backend.load(worlds, state)
        self._steps_asked = self._steps_expected = 0

    def _hand_over(self, choice: Choice) -> None:
        """Let another backend go on; the old one keeps the worlds until the new one has them."""
        check_memory(BACKENDS[choice.backend], choice.device, self.worlds, self.size, self.slots)
        backend = BACKENDS[choice.backend](choice.device)
        backend.load(self.worlds, self.state())
        old, self._backend = self._backend, backend
        old.close()


def _count(count: Any, shape: tuple[int, int], slots: int) -> Tensor:
    try:
        living = torch.as_tensor(count).broadcast_to(shape)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"count must be a number, or {shape[0]} x {shape[1]} numbers, one a world and population") from error
    if living.is_floating_point() or living.dtype == torch.bool or not bool(((living >= 0) & (living <= slots)).all()):
        raise UsageError(f"count must be whole numbers from 0 to {slots}, the slots of a population")
    return living.to(torch.int64).contiguous()
