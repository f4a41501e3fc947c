"""What benchmarks of the simulator share: which backends can run, the gate that they pass, the pattern that timings start from."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from harness import choice, listed, positive, size, tell

from physarum.backends import BACKENDS
from physarum.backends.memory import check_memory
from physarum.backends.torch_backend import TorchBackend
from physarum.errors import RunError, UsageError
from physarum.model.params import Params
from physarum.model.start import random_start
from physarum.model.state import State
from physarum.model.world import World, as_worlds

GATE_STEPS = 64  # they hold one sort of the agents
# No product with these is exact; timings do not depend on them, bits do.
GATE_PARAMS = Params(
    sensor_angle=33, rotation_angle=51, sensor_distance=9.3, step_size=0.83, deposit_amount=3.3, diffusion=0.37, decay_rate=0.07
)
PATTERN = as_worlds(World(seed=1))  # that timings start from, with default parameters
DEVELOPING_STEPS = 300
# What a step must move at least: position and heading (4 + 4 + 2 bytes) read and written and the id read; trail and counts read and
# written, and the trail read once more by the sensors.
BYTES_AN_AGENT = 2 * (4 + 4 + 2) + 4
BYTES_A_CELL = 2 * 4 + 2 * 4 + 4


backend = choice("backend", BACKENDS)  # for argparse


def add_world_options(made: argparse.ArgumentParser, sizes: str, agents: str) -> None:
    """Let a command line say which worlds to measure.

    Args:
        made: The command line.
        sizes: The default, as a user would write it.
        agents: The default likewise.
    """
    made.add_argument("--size", type=listed(size), default=sizes, help=f"WIDTHxHEIGHT in cells; several with commas [{sizes}]")
    made.add_argument("--agents", type=listed(positive), default=agents, help=f"one number, or one a size [{agents}]")


def chosen_worlds(arguments: argparse.Namespace) -> list[tuple[tuple[int, int], int]]:
    """The worlds asked for, as (width, height) and agents.

    Raises:
        UsageError: There is neither one number of agents nor one a size.
    """
    sizes, agents = arguments.size, arguments.agents
    if len(agents) not in (1, len(sizes)):
        raise UsageError(f"--agents has {len(agents)} numbers for {len(sizes)} sizes: give one, or one a size")
    return list(zip(sizes, agents * (len(sizes) if len(agents) == 1 else 1), strict=True))


def case_of(world_size: tuple[int, int], agents: int, **more: Any) -> dict[str, Any]:
    """What tells a row of a world from others."""
    return {"size": f"{world_size[0]}x{world_size[1]}", "agents": agents, **more}


def bytes_a_step(agents: int, cells: int) -> int:
    """The least that a step moves to and from memory."""
    return BYTES_AN_AGENT * agents + BYTES_A_CELL * cells


def runnable(asked: Sequence[str] | None, device: torch.device) -> list[str]:
    """The backends asked for, or all that this machine can run, and what the others lack on stderr.

    Raises:
        UsageError: One that was asked for cannot run here.
    """
    lacking = {name: BACKENDS[name].missing(device) for name in asked or BACKENDS}
    for name, lacks in lacking.items():
        if lacks and asked:
            raise UsageError(f"the backend {name} needs {lacks}")
        if lacks:
            tell(f"without {name}, which needs {lacks}")
    return [name for name, lacks in lacking.items() if not lacks]


def refusals(asked: Sequence[str] | None, device: torch.device, size: tuple[int, int], agents: int) -> dict[str, str | None]:
    """Of the backends asked for, or of all, why each cannot be measured in a world; None where it can."""
    lacking = {name: BACKENDS[name].missing(device) for name in asked or BACKENDS}
    return {name: f"it needs {lacks}" if lacks else too_large(name, device, size, agents) for name, lacks in lacking.items()}


def too_large(name: str, device: torch.device, size: tuple[int, int], agents: int) -> str | None:
    """Why a world does not fit a backend's memory there, or None where it does."""
    try:
        check_memory(BACKENDS[name], device, as_worlds(World()), size, agents)
    except UsageError as error:
        return str(error)
    return None


def loaded(name: str, device: torch.device, worlds: tuple[World, ...], state: State) -> TorchBackend:
    """A backend that holds a copy of a state."""
    made = BACKENDS[name](device)
    made.load(worlds, state)
    return made


def gate(backends: Sequence[str], device: torch.device, size: tuple[int, int], agents: int) -> State:
    """See that all backends reach the same bits from one start: those of the eager model with its agents in the reverse order.

    Where the eager model does not fit, the first of the backends takes its place; so even a backend alone has something to agree with.

    Returns:
        The state that they agree on.

    Raises:
        RunError: They do not: no figures.
    """
    fitting = [name for name in ("torch", *backends) if not too_large(name, device, size, agents)]
    worlds, start = gate_start(size, agents, device)
    backwards = replace(start, **{name: getattr(start, name).flip(-1) for name in ("x", "y", "heading", "id")})
    reference = after_gate_steps(fitting[0], device, worlds, backwards)
    for name in backends:
        differing = values_differing(after_gate_steps(name, device, worlds, start), reference)
        tell(f"gate: {name} differs from {fitting[0]}, agents in reverse order, in {differing} values after {GATE_STEPS} steps")
        if differing:
            raise RunError(f"no figures: {name} differs from {fitting[0]} in {differing} values after {GATE_STEPS} steps")
    return reference


def gate_start(size: tuple[int, int], agents: int, device: torch.device) -> tuple[tuple[World, ...], State]:
    """The world of the gate, and where it starts."""
    params = replace(GATE_PARAMS, sensor_distance=min(GATE_PARAMS.sensor_distance, min(size) - 2))
    worlds = as_worlds(World((params,), seed=3))
    return worlds, random_start(worlds, size, agents, device=device)


def after_gate_steps(name: str, device: torch.device, worlds: tuple[World, ...], start: State) -> State:
    """Where a backend stands at the end of the gate."""
    made = loaded(name, device, worlds, start)
    made.advance(GATE_STEPS)
    state = made.state()
    made.close()
    return state


def values_differing(a: State, b: State) -> int:
    """In how many values two states differ."""
    return sum(int((one != other).sum()) for one, other in zip(a.tensors().values(), b.tensors().values(), strict=True))


def developed(name: str, device: torch.device, size: tuple[int, int], agents: int, steps: int = DEVELOPING_STEPS) -> State:
    """PATTERN after some steps: agents on strands, not spread evenly."""
    made = loaded(name, device, PATTERN, random_start(PATTERN, size, agents, device=device))
    made.advance(steps)
    state = made.state()
    made.close()
    return state
