"""The same model through torch.compile: the whole step is one graph, or each stage one under its label."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from physarum.backends.buffered_backend import BufferedBackend, Motion
from physarum.backends.needs import lacking_build_tools, lacking_cache, lacking_compiler, lacking_headers, lacking_triton
from physarum.backends.torch_backend import Moment
from physarum.errors import UsageError
from physarum.model.constants import Constants
from physarum.model.maps import Maps
from physarum.model.stages import Agents, Keys, step
from physarum.model.state import State
from physarum.model.world import World

# Inductor's options for our graphs alone. CPU: no bounds checks on indices that the model keeps inside, and loops kept in their order
# (both together, or vectorisation is lost); every product and sum rounds on its own, whatever flags the environment sets.
# CUDA: the same rounding, where Inductor would contract products and sums to FMA.
OPTIONS: dict[str, dict[str, str | int | bool | Callable[..., Any]]] = {
    "cpu": {
        "assert_indirect_indexing": False,
        "cpp.enable_tiling_heuristics": False,
        "cpp.enable_floating_point_contract_flag": "off",
        "cpp.enable_unsafe_math_opt_flag": False,
    },
    "cuda": {"emulate_precision_casts": True},
}
SWITCHES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")  # of the environment, with which torch.compile silently does nothing
GRAPHS = 4096  # a world's size is part of its graph: so many sizes and kinds of map may be compiled in a process


def step_into(motion: Motion, new_trail: Tensor, agents: Agents, trail: Tensor, constants: Constants, maps: Maps, keys: Keys) -> None:
    """One step of the model, written to buffers that exist and are not read."""
    agents, trail = step(agents, trail, constants, maps, keys)
    motion.x.copy_(agents.x)
    motion.y.copy_(agents.y)
    motion.heading.copy_(agents.heading)
    new_trail.copy_(trail)


@functools.cache
def compiled(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """A function through torch.compile, once a process; sizes are constants of its graphs, numbers of the model are not."""
    return torch.compile(function, dynamic=False, fullgraph=True, options=OPTIONS.get(device, {}))


class CompileBackend(BufferedBackend):
    """Advances a batch of worlds with compiled kernels; the first step of a size compiles (about 25 s, later processes 4 s)."""

    name = "compile"
    # Agents 14 and trail 4 bytes themselves: two buffers, and what lies between the two kernels of a step; measured likewise.
    bytes_per_agent = 52
    bytes_per_cell = 16

    @classmethod
    def missing(cls, device: torch.device) -> str | None:
        """What this machine lacks to compile for `device`, and how to get it; None where nothing."""
        switched = next((name for name in SWITCHES if os.environ.get(name) == "1"), None)
        if switched:
            return f"torch.compile, which the environment variable {switched} switches off"
        return (
            (lacking_triton(device) or lacking_build_tools() if device.type == "cuda" else None)
            or lacking_compiler("C++", ("g++",), "CXX")
            or lacking_headers()
            or lacking_cache("TORCHINDUCTOR_CACHE_DIR")
        )

    def load(self, worlds: Sequence[World], state: State) -> None:
        """Take over a batch of worlds; see TorchBackend."""
        super().load(worlds, state)
        self._compiled = False  # for these worlds

    def advance(self, steps: int, labelled: bool = False, by_stage: bool = True) -> None:
        """Run `steps` steps; see TorchBackend.

        Raises:
            UsageError: torch.compile fails on this machine; the world stands where it stood.
        """
        with _compiling():
            super().advance(steps, labelled, by_stage)

    def warm_up(self) -> None:
        """Compile for the loaded worlds, unless that has been done, without advancing them.

        Raises:
            UsageError: torch.compile fails on this machine.
        """
        if not self._compiled:
            with torch.no_grad(), _compiling():
                self._compute(self._keys(range(1))[0])
            self._compiled = True

    def _advance_once(self, keys: Keys, labelled: bool) -> None:
        self._sort_when_due()
        if labelled:
            now = self._now
            agents, trail = step(now.agents, now.trail, self._constants, self._maps, keys, self._run_compiled)
            self._now = Moment(agents, trail, now.step + 1)
        else:
            self._now = self._compute(keys)
            self._compiled = True

    def _compute(self, keys: Keys) -> Moment:
        """The moment after this one, in the buffers that this one does not use."""
        now, (motion, trail) = self._now, self._free_buffers()
        compiled(step_into, self.device.type)(motion, trail, now.agents, now.trail, self._constants, self._maps, keys)
        return Moment(now.agents._replace(**motion._asdict()), trail, now.step + 1)

    def _run_compiled(self, stage: Callable[..., Any], *args: Any) -> Any:
        with record_function(stage.__name__):
            return compiled(stage, self.device.type)(*args)


@contextmanager
def _compiling() -> Iterator[None]:
    """Let so many graphs be compiled that dynamo never goes back to running eagerly, and say in a sentence where compiling fails."""
    try:
        with torch._dynamo.config.patch(recompile_limit=GRAPHS, accumulated_recompile_limit=GRAPHS):
            yield
    except torch._dynamo.exc.BackendCompilerFailed as error:
        cause = " ".join(f"{type(error.inner_exception).__name__} {error.inner_exception}".split())
        raise UsageError(f"torch.compile fails on this machine ({cause[:200]}): use the torch backend") from error
