"""`physarum run` and `physarum resume`. PyTorch is imported when a run begins, so that `--help` does not wait for it."""

import dataclasses
import hashlib
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from physarum.cli.config import read_config
from physarum.cli.options import KEYS, RUN, ModelOptions, OutputOptions, RunOptions, Settings, WorldOptions, given_options, typed_count
from physarum.cli.progress import progress_bar
from physarum.cli.signals import StopFlag, stop_flag
from physarum.errors import UsageError
from physarum.files import next_free, shown
from physarum.model.params import MOST_STEPS, whole

if TYPE_CHECKING:
    from physarum.model.world import World
    from physarum.simulation import Simulation


def run(
    *,
    model: Annotated[ModelOptions, Parameter(name="*")] = ModelOptions(),  # type: ignore[valid-type] # noqa: B008
    place: WorldOptions = WorldOptions(),  # noqa: B008
    run: RunOptions = RunOptions(),  # noqa: B008
    output: OutputOptions = OutputOptions(),  # noqa: B008
    config: Annotated[str | None, Parameter(help="TOML file of these options; the command line goes over it", group=RUN)] = None,
) -> int:
    """Run a world and write pictures, videos or arrays, each with a manifest beside it.

    The world is a torus: what leaves at one side comes in at the other.
    """
    settings = Settings().changed(read_config(config) if config else {}).changed(given_options(model, place, run, output))
    from physarum.output.colour import colour_table  # noqa: PLC0415
    from physarum.output.names import check_outputs  # noqa: PLC0415
    from physarum.simulation import Simulation  # noqa: PLC0415

    outputs = tuple(Path(name) for name in output.output or ()) or _default_outputs()
    inputs = [Path(name) for name in (settings.image, config) if name]
    check_outputs(outputs, _checkpoint(run)[0], inputs, overwrite=output.overwrite)
    colour_table(settings.colormap)
    world = world_of(settings)
    facts = {"image_sha256": hashlib.sha256(Path(settings.image).read_bytes()).hexdigest()} if settings.image else {}

    def begin(flag: StopFlag) -> int:
        simulation = Simulation(
            world,
            size=settings.size,
            agents=settings.agents,
            backend=settings.backend,
            device=settings.device,
            planned_steps=settings.steps,
        )
        return _execute(simulation, settings, outputs, run, flag, facts)

    return _stoppable(begin)


def resume(
    file: Annotated[str, Parameter(help="checkpoint of a run")],
    *,
    run: RunOptions = RunOptions(),  # noqa: B008
    output: OutputOptions = OutputOptions(),  # noqa: B008
) -> int:
    """Go on from a checkpoint to the bits that the run would have reached without a stop.

    Options that are not given are those of the run; a video that exists already gets a successor with the remaining frames.
    """
    from physarum import checkpoint  # noqa: PLC0415
    from physarum.output.colour import colour_table  # noqa: PLC0415
    from physarum.output.names import check_outputs, lasting_files  # noqa: PLC0415
    from physarum.simulation import Simulation  # noqa: PLC0415

    worlds, state, recorded = checkpoint.load(file)
    earlier = tuple(Path(name) for name in recorded.pop("outputs", ()))
    succeeds = any(path.suffix.lower() == ".mp4" and path.exists() for path in earlier)
    earlier = tuple(next_free(path, lasting_files) if path.suffix.lower() == ".mp4" else path for path in earlier)
    outputs = tuple(Path(name) for name in output.output or ()) or earlier or _default_outputs()
    check_outputs(outputs, _checkpoint(run)[0], resumed=Path(file), overwrite=output.overwrite)
    asked = {name: value for name, value in recorded.items() if value is not None and name in KEYS}
    world = {"attraction": worlds[0].attraction[0][0], "seed": worlds[0].seed, **dataclasses.asdict(worlds[0].populations[0])}
    settings = Settings().changed(asked | world).changed(given_options(run, output))
    if settings.steps == state.step and not output.output:
        raise UsageError(f"the run is complete with {state.step} steps: give --steps to go on, or -o for another output")
    colour_table(settings.colormap)
    facts: dict[str, Any] = {name: recorded[name] for name in ("image_sha256", "mean_trail") if name in recorded}

    def begin(flag: StopFlag) -> int:
        simulation = Simulation.from_state(worlds, state, settings.backend, settings.device, settings.steps - state.step)
        return _execute(simulation, settings, outputs, run, flag, facts, succeeds and not output.output)

    return _stoppable(begin)


def _stoppable(begin: Callable[[StopFlag], int]) -> int:
    """Call what runs a simulation, with a flag that signals set; the exit code."""
    with stop_flag() as flag:
        try:
            return begin(flag)
        except UsageError:
            if flag.signal is None:
                raise
            say("stopped before the first step")  # Ctrl-C reaches the compiler too, and what it leaves is no fault of the machine
            return 128 + flag.signal


def say(sentence: str) -> None:
    """Tell the user something that is not a result; a stderr that takes nothing changes nothing."""
    if sys.stderr is None:
        return
    try:
        print(f"physarum: {sentence}", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # for what is still to come


def world_of(settings: Settings) -> "World":
    """The world that was asked for, with the picture as its trail."""
    from physarum.model.world import World  # noqa: PLC0415
    from physarum.output.picture import read_picture  # noqa: PLC0415
    from physarum.output.still import fit_picture  # noqa: PLC0415

    trail = None
    if settings.image:
        picture, read = read_picture(settings.image)
        fitted, scaled = fit_picture(picture, settings.size)
        trail = fitted * settings.white
        for sentence in (read, scaled):
            if sentence:
                say(f"{shown(settings.image)}: {sentence}")
    return World((settings.params,), attraction=settings.attraction, trail=trail, seed=settings.seed)


def _execute(
    simulation: "Simulation",
    settings: Settings,
    outputs: tuple[Path, ...],
    options: RunOptions,
    flag: StopFlag,
    facts: Mapping[str, Any],
    start_shown: bool = False,
) -> int:
    """Run to the end or to a signal, tell what was written, and return the exit code.

    Args:
        simulation: To run.
        settings: As they were asked for.
        outputs: To write.
        options: Of the run, for its checkpoint.
        flag: Set by signals.
        facts: The hash of the picture at the start, and the exposure of an earlier part of the run, where there are such.
        start_shown: An earlier video shows the state at step 0.
    """
    from fractions import Fraction  # noqa: PLC0415

    from physarum.output.tone import exposure  # noqa: PLC0415
    from physarum.runner import Plan, run  # noqa: PLC0415

    mean = facts.get("mean_trail")
    if mean is None:
        white = settings.white if settings.image else 0.0
        mean = exposure(simulation.worlds[0].populations, simulation.agents_per_cell, settings.steps, white)
    asked = {**settings.as_json(), "outputs": [str(path) for path in outputs], **facts, "mean_trail": mean}
    checkpoint, checkpoint_every = _checkpoint(options)
    plan = Plan(
        steps=settings.steps,
        outputs=outputs,
        every=settings.every,
        start_shown=start_shown,
        fps=Fraction(settings.fps),
        mean=mean,
        colormap=settings.colormap,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        settings=asked,
    )
    say(f"seed {simulation.worlds[0].seed}{f', from step {simulation.step}' if simulation.step else ''}")
    with progress_bar(simulation.step, plan.steps) as progress:
        outcome = run(simulation, plan, flag.is_set, progress, say)
    for sentence in outcome.written:
        print(f"wrote {sentence}")
    if flag.signal is None or not outcome.interrupted or outcome.checkpoint is None:
        return 0
    say(f"stopped after {outcome.step} of {plan.steps} steps; to go on: physarum resume {_typed(outcome.checkpoint)}")
    return 128 + flag.signal


def _checkpoint(options: RunOptions) -> tuple[Path | None, int]:
    """Where to save the state, and how often besides the end (0 for not)."""
    if options.checkpoint_every is not None and options.checkpoint is None:
        raise UsageError("checkpoint_every needs --checkpoint to name the file")
    every = 0
    if options.checkpoint_every is not None:
        every = whole("checkpoint_every", typed_count("checkpoint_every", options.checkpoint_every), 1, MOST_STEPS)
    return (Path(options.checkpoint) if options.checkpoint else None), every


def _default_outputs() -> tuple[Path, ...]:
    from physarum.output.names import lasting_files  # noqa: PLC0415

    return (next_free(Path("outputs", "physarum-1.png"), lasting_files),)


def _typed(path: Path) -> str:
    """A path as it can be typed after a command."""
    name = str(path)
    return shlex.quote(f"./{name}" if name.startswith("-") else name)
