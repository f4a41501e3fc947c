"""The loop of a real run: steps, frames, checkpoints, progress, and a stop flag that ends it between two steps."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from torch.profiler import record_function

from physarum import checkpoint, labels
from physarum.backends import BACKENDS
from physarum.errors import UsageError
from physarum.files import next_free, shown
from physarum.model.params import MOST_STEPS, real, whole
from physarum.model.stages import STRONGEST
from physarum.output.arrays import write_npz
from physarum.output.frame import Renderer
from physarum.output.manifest import versions, write_manifest
from physarum.output.names import check_outputs
from physarum.output.still import write_png
from physarum.output.tone import exposure
from physarum.output.video import VideoWriter, exact_rate
from physarum.profiling.session import Recording, recording
from physarum.simulation import Simulation

log = logging.getLogger("physarum")

RESPONSE = 0.2  # seconds between two looks at the stop flag, as far as whole steps allow


@dataclass(frozen=True)
class Plan:
    """What a run is to do.

    Attributes:
        steps: Completed steps at its end, counted from the start of the world.
        outputs: Files to write; the suffix picks what: .png and .npz the end, .mp4 a frame at steps 0, every, 2 * every and so on.
        every: Steps from frame to frame.
        start_shown: Another video shows the state that a run from step 0 begins with, so this one begins after it.
        fps: Frames a second of the video.
        mean: Trail shown in a middling tone; None for what `tone.exposure` expects of the agents.
        colormap: One of matplotlib's colour maps.
        checkpoint: Where to write the state at the end, when stopped, and every `checkpoint_every` steps; None for a file beside the
            first output, when stopped only.
        checkpoint_every: 0 for the end alone.
        settings: What was asked for, of JSON's types; goes into manifests and checkpoints.
    """

    steps: int
    outputs: Sequence[str | Path] = ()
    every: int = 4
    start_shown: bool = False
    fps: Fraction = Fraction(30)
    mean: float | None = None
    colormap: str = "magma"
    checkpoint: str | Path | None = None
    checkpoint_every: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        outputs = [self.outputs] if isinstance(self.outputs, (str, Path)) else self.outputs
        changes = {
            "steps": whole("steps", self.steps, 0, MOST_STEPS),
            "outputs": tuple(Path(name) for name in outputs),
            "every": whole("every", self.every, 1, MOST_STEPS),
            "fps": exact_rate(self.fps),
            "mean": None if self.mean is None else real("mean", self.mean, 0, STRONGEST),
            "checkpoint": None if self.checkpoint is None else Path(self.checkpoint),
            "checkpoint_every": whole("checkpoint_every", self.checkpoint_every, 0, MOST_STEPS),
        }
        for name, value in changes.items():
            object.__setattr__(self, name, value)

    @property
    def files(self) -> tuple[Path, ...]:
        """The outputs as paths."""
        return tuple(Path(name) for name in self.outputs)

    @property
    def checkpoint_file(self) -> Path | None:
        """The checkpoint as a path."""
        return None if self.checkpoint is None else Path(self.checkpoint)


@dataclass(frozen=True)
class Outcome:
    """What a run did.

    Attributes:
        step: Completed steps.
        interrupted: The stop flag ended it.
        written: What was written, a sentence each.
        checkpoint: Where the state was saved, or None.
    """

    step: int
    interrupted: bool
    written: tuple[str, ...]
    checkpoint: Path | None


def run(
    simulation: Simulation,
    plan: Plan,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _: None,
    note: Callable[[str], None] = log.warning,
) -> Outcome:
    """Run a simulation to its planned end and write what is planned; files that exist are replaced.

    Args:
        simulation: The first of its worlds is drawn.
        plan: What to do.
        stopped: Looked at between steps; when true the run ends there: videos are closed so that they play, and the state is saved.
        progress: Told the completed steps now and then.
        note: Told a sentence that the user should see; on stderr unless told otherwise.

    Returns:
        What was done.

    Raises:
        UsageError: The plan cannot be met: an output that cannot be, fewer steps than have been completed.
        RunError: A file could not be written; what could be kept is named.
    """
    if plan.steps < simulation.step:
        raise UsageError(f"steps is {plan.steps}: the world has already completed {simulation.step}")
    check_outputs(plan.files, plan.checkpoint_file, overwrite=True)
    simulation.expect(plan.steps - simulation.step)
    if plan.steps > simulation.step:
        simulation.warm_up()  # what cannot be compiled is said before anything is written
    if len(simulation.worlds) > 1 and any(path.suffix.lower() != ".npz" for path in plan.files):
        note(f"pictures and videos show the first of the {len(simulation.worlds)} worlds")
    mean = _mean(simulation, plan)
    renderer = Renderer(mean, plan.colormap)
    began, first_step = time.perf_counter(), simulation.step
    videos: dict[Path, VideoWriter] = {}
    try:
        for path in plan.files:
            if path.suffix.lower() == ".mp4":
                videos[path] = VideoWriter(path, simulation.size, plan.fps)
                if videos[path].note:
                    note(f"{videos[path].note}")
        interrupted = _advance(simulation, plan, renderer, tuple(videos.values()), stopped, progress)
        seconds = time.perf_counter() - began
        return _finish(simulation, plan, renderer, videos, Span(first_step, interrupted, seconds, mean))
    except BaseException as error:
        for video in videos.values():
            kept = video.keep()
            if kept:
                note(kept)
        if isinstance(error, Exception) and simulation.step > first_step:
            _save_what_is_left(simulation, plan, note)
        raise


def _mean(simulation: Simulation, plan: Plan) -> float:
    """The trail that the plan shows in a middling tone."""
    if plan.mean is not None:
        return plan.mean
    brightest = float(simulation.trail[0].max())
    return exposure(simulation.worlds[0].populations, simulation.agents_per_cell, plan.steps, brightest)


def _save_what_is_left(simulation: Simulation, plan: Plan, note: Callable[[str], None]) -> None:
    """After a failure, save the state if that still works, so that the steps so far are not lost."""
    path = _stopped_checkpoint(plan)
    if path is None:
        return
    try:
        checkpoint.save(path, simulation.worlds, simulation.state(), plan.settings)
    except RuntimeError:  # RunError, or a device that has failed
        return
    note(f"the state at step {simulation.step} is kept in {shown(path)}")


def _stopped_checkpoint(plan: Plan) -> Path | None:
    """Where the state goes when a run ends before its time."""
    if plan.checkpoint or not plan.outputs:
        return plan.checkpoint_file
    return next_free(plan.files[0].with_name(f"{plan.files[0].name}.checkpoint.safetensors"))


class Span(NamedTuple):
    """The part of a world's life that a run covered."""

    first_step: int
    interrupted: bool
    seconds: float  # simulating, drawing and encoding
    mean: float  # trail shown in a middling tone


def _advance(
    simulation: Simulation,
    plan: Plan,
    renderer: Renderer,
    videos: tuple[VideoWriter, ...],
    stopped: Callable[[], bool],
    progress: Callable[[int], None],
) -> bool:
    """Run to the planned end, or until stopped, which is the return value."""

    def draw() -> None:
        if videos and simulation.step % plan.every == 0:
            frame = renderer.frame(simulation.trail[0])
            for video in videos:
                video.write(frame)

    if simulation.step == 0 and not plan.start_shown:
        draw()
    pace = 1  # steps that take about RESPONSE seconds
    while simulation.step < plan.steps:
        if stopped():
            return True
        steps = min(pace, _next_stop(simulation.step, plan, bool(videos)) - simulation.step)
        started = time.perf_counter()
        simulation.run(steps)
        simulation.synchronize()
        taken = max(time.perf_counter() - started, 1e-6)
        pace = max(1, min(2 * pace, int(steps * RESPONSE / taken)))
        draw()
        if plan.checkpoint and plan.checkpoint_every and simulation.step % plan.checkpoint_every == 0:
            checkpoint.save(plan.checkpoint, simulation.worlds, simulation.state(), plan.settings)
        progress(simulation.step)
    return False


def _next_stop(step: int, plan: Plan, frames: bool) -> int:
    """The next step after `step` at which there is a frame to draw, a checkpoint to write, or the end."""
    periods = [plan.every] * frames + [plan.checkpoint_every] * bool(plan.checkpoint and plan.checkpoint_every)
    return min([plan.steps, *(step - step % period + period for period in periods)])


def _finish(simulation: Simulation, plan: Plan, renderer: Renderer, videos: Mapping[Path, VideoWriter], span: Span) -> Outcome:
    """Save the state if that is planned or the run was interrupted, then write the outputs and their manifests."""
    state = simulation.state()
    kept = _stopped_checkpoint(plan) if span.interrupted else plan.checkpoint_file
    if kept:
        checkpoint.save(kept, simulation.worlds, state, plan.settings)
    content = {
        "settings": dict(plan.settings),
        "worlds": checkpoint.described(simulation.worlds),
        "maps_sha256": checkpoint.map_hashes(simulation.worlds),
        "first_step": span.first_step,
        "step": state.step,
        "interrupted": span.interrupted,
        "size": list(simulation.size),
        "agents": state.count.tolist(),
        "seed": simulation.worlds[0].seed,
        "backend": simulation.backend,
        "device": str(simulation.device),
        "mean_trail": span.mean,
        "state_sha256": checkpoint.sha256(state.tensors()),
        "versions": versions(simulation.device),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(span.seconds, 3),
    }
    written = []
    for path in plan.files:
        about: dict[str, Any] = {"output": path.name}
        if path in videos:
            video = videos[path]
            video.close()
            if video.frames == 0:
                continue
            about |= {"frames": video.frames, "every": plan.every, "fps": str(video.rate)}
            written.append(f"{shown(path)} ({video.frames} frames, {float(video.frames / video.rate):.1f} s)")
        elif span.interrupted:
            continue
        else:
            if path.suffix.lower() == ".png":
                write_png(path, renderer.frame(simulation.trail[0]))
            else:
                write_npz(path, state)
            written.append(shown(path))
        write_manifest(path, about | content)
    return Outcome(state.step, span.interrupted, tuple(written), kept)


class Runner:
    """Hands one simulation from backend to backend, and records what each does with it.

    Args:
        simulation: Which is run on; its bits do not depend on who advances it.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def switch(self, backend: str) -> "Runner":
        """Let another backend go on from here.

        Raises:
            UsageError: There is no such backend, or this machine lacks what it needs.
        """
        with record_function(f"switch to {backend}"):
            self.simulation.use(backend)
        return self

    def run(self, steps: int, by_stage: bool = True) -> None:
        """Run some steps, labelled, and wait until the device has done them.

        Args:
            steps: How many.
            by_stage: Label each stage of each step. Without, the backend takes its fastest way, which may fuse what labels keep apart;
                the implementation's label is then "compile, whole step" and the like.
        """
        steps = whole("steps", steps, 0, MOST_STEPS)
        self.simulation.use(self.simulation.backend)  # "auto" changes no more, or the label would name another one
        name = self.simulation.backend + ("" if by_stage else labels.WHOLE_STEP)
        with record_function(name):
            self.simulation.run(steps, labelled=True, by_stage=by_stage)
            self.simulation.synchronize()

    @contextmanager
    def trace(
        self,
        path: str | PathLike[str],
        shapes: bool = False,
        memory: bool = False,
        stack: bool = False,
        alike: bool = False,
    ) -> Iterator[Recording]:
        """Record what is done in the block: labels, operators, launches, and what the GPU did.

        Args:
            path: Where to write a file for Perfetto, .json or .json.gz.
            shapes: Record the shapes of operators' arguments.
            memory: Record allocations.
            stack: Record Python stacks: tens of times as many bytes.
            alike: Nothing is changed between steps, so on a GPU the later ones of a backend must launch the same, or records were lost.

        Yields:
            A recording, which has its `trace`, with all counts, once the block has ended.

        Raises:
            UsageError: The path has another suffix, or this process has already recorded on a GPU.
            RunError: The profiler lost records, or the file is too large or cannot be written.
        """
        with self._recording(path, shapes, memory, stack, alike) as made:
            yield made

    @contextmanager
    def launches(self) -> Iterator[Recording]:
        """Count what is launched in the block; as `trace`, without a file."""
        with self._recording(None) as made:
            yield made

    def _recording(
        self, path: str | PathLike[str] | None, shapes: bool = False, memory: bool = False, stack: bool = False, alike: bool = False
    ) -> AbstractContextManager[Recording]:
        simulation = self.simulation
        about = {
            "versions": versions(simulation.device),
            "device": str(simulation.device),
            "size": list(simulation.size),
            "agents": simulation.agents,
            "seeds": [world.seed for world in simulation.worlds],
        }
        known = {name: backend.kernels_a_step for name, backend in BACKENDS.items() if backend.kernels_a_step}
        return recording(path, shapes, memory, stack, alike, about, known, simulation.device)
