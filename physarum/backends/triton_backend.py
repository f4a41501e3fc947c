"""The same model as Triton kernels on an NVIDIA GPU: three launches a step, named after the stages they fuse."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from physarum import labels
from physarum.backends.buffered_backend import BufferedBackend, Motion
from physarum.backends.needs import lacking_build_tools, lacking_cache, lacking_triton
from physarum.backends.torch_backend import Moment
from physarum.errors import UsageError
from physarum.model import chance
from physarum.model.constants import Constants
from physarum.model.state import State
from physarum.model.world import World

AGENTS_A_PROGRAM = 256  # of sense + motor and of deposit; a power of two
WIDEST_STRIP = 512  # columns that a program of diffuse + decay walks down; a power of two
BAND = 4  # rows that it walks down
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}  # how each kernel is compiled; without FMA, or every bit differs


class TritonBackend(BufferedBackend):
    """Advances a batch of worlds with the kernels in `kernels/`; the first step of a process compiles them (about 3 s, later less).

    Headings are int16 here. Parameters and the number of the step are in device memory, so nothing compiles again when they change.
    """

    name = "triton"
    kernels_a_step = 3
    # At the peak, which is sorting; agents 14 and trail 4 bytes themselves.
    bytes_per_agent = 52
    bytes_per_cell = 16

    @classmethod
    def missing(cls, device: torch.device) -> str | None:
        """What this machine lacks to run Triton kernels on `device`, and how to get it; None where nothing."""
        if device.type != "cuda":
            return "an NVIDIA GPU: " + ("none is visible here" if not torch.cuda.is_available() else f"the device asked for is {device}")
        home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
        return lacking_triton(device) or lacking_build_tools() or lacking_cache("TRITON_CACHE_DIR", os.path.join(home, ".triton", "cache"))

    def load(self, worlds: Sequence[World], state: State) -> None:
        """Take over a batch of worlds; see TorchBackend."""
        super().load(worlds, state)
        agents, trail, step = self._now
        self._now = Moment(agents._replace(heading=agents.heading.to(torch.int16)), trail, step)
        self._counts = (torch.zeros_like(trail, dtype=torch.int32), torch.zeros_like(trail, dtype=torch.int32))
        self._deposits: Tensor | None = None
        self._clock = torch.zeros(1, dtype=torch.int32, device=self.device)
        self._clock_shows: int | None = None
        self._started = False
        self._table, self._world_keys = self._tables_of(worlds)

    def advance(self, steps: int, labelled: bool = False, by_stage: bool = True) -> None:
        """Run `steps` steps; see TorchBackend.

        Raises:
            UsageError: Triton fails on this machine; the world stands where it stood.
        """
        with torch.no_grad(), self._on_device():
            for _ in range(steps):
                with _label(f"step {self._now.step}", labelled):
                    self._sort_when_due()
                    self._now = self._compute(labelled and by_stage)

    def set_params(self, worlds: Sequence[World]) -> None:
        """Go on with other parameters; see TorchBackend."""
        tables = self._tables_of(worlds)
        super().set_params(worlds)
        self._table, self._world_keys = tables

    def warm_up(self) -> None:
        """Compile and load the kernels, unless that has been done, without advancing the worlds.

        Raises:
            UsageError: Triton fails on this machine.
        """
        if not self._started:
            with torch.no_grad(), self._on_device():
                self._compute()

    def close(self) -> None:
        """Give the memory back."""
        super().close()
        del self._counts, self._deposits, self._clock, self._table, self._world_keys

    def _tables_of(self, worlds: Sequence[World]) -> tuple[Tensor, Tensor]:
        """The parameters and the keys of worlds as the kernels read them; see `kernels.launched`."""
        columns = [column.flatten().to(torch.float32) for name, column in Constants.of(worlds)._asdict().items() if name != "attraction"]
        keys = chance.world_keys([w.seed for w in worlds], [w.number or 0 for w in worlds])
        return torch.stack(columns, dim=1).to(self.device), keys.to(self.device)

    def _compute(self, labelled: bool = False) -> Moment:
        """The moment after this one, in the buffers that this one does not use."""
        now, (motion, trail) = self._now, self._free_buffers()
        if self._clock_shows != now.step:
            self._reset(now.step)
        self._clock_shows = None
        with nullcontext() if self._started else _starting():
            self._launch_all(now, motion, trail, labelled)
        self._started = True
        self._counts = (self._counts[1], self._counts[0])
        self._clock_shows = now.step + 1
        return Moment(now.agents._replace(**motion._asdict()), trail, now.step + 1)

    def _launch_all(self, now: Moment, motion: Motion, trail: Tensor, labelled: bool) -> None:
        """The three kernels of a step, from `now` to `motion` and `trail`."""
        from physarum.backends.kernels import launched  # noqa: PLC0415 (it imports Triton)

        agents, maps, (count, next_count) = now.agents, self._maps, self._counts
        (worlds, populations, slots), (height, width) = agents.x.shape, trail.shape[-2:]
        fields, index = worlds * populations, launched.index_type(width * height)
        programs = -(-slots // AGENTS_A_PROGRAM)  # a field
        strip = min(WIDEST_STRIP, 1 << (width - 1).bit_length())
        strips, bands = -(-width // strip), -(-height // BAND)
        deposits = self._who_deposits()
        self._launch(
            "sense+motor", labelled, launched.sense_motor_kernel, fields * programs,
            self._table, self._constants.attraction, maps.light, maps.walls, self._world_keys, self._clock,
            agents.x, agents.y, agents.heading, agents.id, agents.last_id, now.trail,
            motion.x, motion.y, motion.heading, deposits,
            slots, width, height, programs,
            POPULATIONS=populations, BLOCK=AGENTS_A_PROGRAM, INDEX=index,
        )  # fmt: skip
        self._launch(
            "deposit", labelled, launched.deposit_kernel, fields * programs,
            motion.x, motion.y, deposits,
            count,
            slots, width, height, programs,
            BLOCK=AGENTS_A_PROGRAM, INDEX=index,
        )  # fmt: skip
        self._launch(
            "diffuse+decay", labelled, launched.diffuse_decay_kernel, fields * strips * bands,
            self._table, maps.food, maps.walls, self._clock,
            now.trail, count,
            trail, next_count,
            width, height, strips, bands,
            STRIP=strip, BAND=BAND, INDEX=index,
        )  # fmt: skip

    def _launch(self, label: str, labelled: bool, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        """Launch a kernel. What measures the kernels without a GPU compiles here instead; see `profiling.resources`."""
        with _label(label, labelled):
            kernel[(programs,)](*arguments, **constants, **OPTIONS)

    def _who_deposits(self) -> Tensor | None:
        """A buffer for which agents deposit, where walls or empty slots keep some from it."""
        if self._maps.walls is None and self._now.agents.last_id is None:
            return None
        if self._deposits is None:
            self._deposits = torch.empty_like(self._now.agents.x, dtype=torch.int8)
        return self._deposits

    def _reset(self, step: int) -> None:
        """Set the clock and clear the counts: at the start, and after a step that was cut short or not kept."""
        with record_function(labels.RESET):
            self._clock.fill_((step + 2**31) % 2**32 - 2**31)
            for count in self._counts:
                count.zero_()

    def _on_device(self) -> AbstractContextManager[Any]:
        """Triton launches on the current device."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()


def _label(name: str, labelled: bool) -> AbstractContextManager[Any]:
    return record_function(name) if labelled else nullcontext()


@contextmanager
def _starting() -> Iterator[None]:
    """Say in a sentence where Triton cannot be imported, or cannot compile, load or launch a kernel for the first time."""
    try:
        with record_function(labels.COMPILE):
            yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler raises
        cause = " ".join(f"{type(error).__name__} {error}".split())
        raise UsageError(f"Triton fails on this machine ({cause[:200]}): use the compile or torch backend") from error
