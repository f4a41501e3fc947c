"""`physarum trace`: one world handed from backend to backend while a profiler records."""

import dataclasses
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from physarum.cli.config import read_config
from physarum.cli.options import ModelOptions, Settings, WorldOptions, given_options, typed_count
from physarum.cli.run import say, world_of
from physarum.errors import UsageError, did_you_mean
from physarum.files import shown
from physarum.model.params import whole

if TYPE_CHECKING:
    from physarum.profiling.reader import Trace
    from physarum.runner import Runner

TRACE = Group("Trace", sort_key=3, default_parameter=Parameter(show_default=False))

# Bytes of JSON, at most, measured on an H200 and on a CPU (torch 2.11 and 2.13) and rounded up: of a step of each backend, of the start of
# one that compiles, and how many times a step's bytes grow, or by how many, with what else is recorded.
BYTES_A_STEP = {"torch": 500_000, "compile": 50_000, "triton": 5_000}
BYTES_TO_START = {"compile": 15_000_000}
TIMES_THE_BYTES = {"shapes": 2, "memory": 3}
STACK_BYTES_A_STEP = 200_000


def trace(
    *,
    model: Annotated[ModelOptions, Parameter(name="*")] = ModelOptions(),  # type: ignore[valid-type] # noqa: B008
    place: WorldOptions = WorldOptions(),  # noqa: B008
    backends: Annotated[
        str | None, Parameter(help="to compare, in this order, of torch,compile,triton [all that this machine can run]", group=TRACE)
    ] = None,
    device: Annotated[str | None, Parameter(help="cpu, cuda, cuda:1 and so on, or auto [auto]", group=TRACE)] = None,
    steps: Annotated[str | None, Parameter(help="of each backend [10]", group=TRACE)] = None,
    shapes: Annotated[bool, Parameter(help="record the shapes of operators' arguments; larger files", group=TRACE, negative=())] = False,
    memory: Annotated[bool, Parameter(help="record allocations; larger files", group=TRACE, negative=())] = False,
    stack: Annotated[bool, Parameter(help="record Python stacks; much larger files", group=TRACE, negative=())] = False,
    output: Annotated[
        str | None,
        Parameter(name=["--output", "-o"], help="file to write, .json or .json.gz [outputs/traces/step-N.json.gz]", group=TRACE),
    ] = None,
    overwrite: Annotated[bool, Parameter(name=["--overwrite", "-y"], help="replace a file that exists", group=TRACE, negative=())] = False,
    read: Annotated[str | None, Parameter(help="report on a trace that was recorded before, and do nothing else", group=TRACE)] = None,
    as_json: Annotated[bool, Parameter(name="--json", help="print the report as JSON", group=TRACE, negative=())] = False,
    config: Annotated[str | None, Parameter(help="TOML file of a run, whose model and world are taken", group=TRACE)] = None,
) -> int:
    """Run a world on one backend after the other under a profiler, and report what each step costs.

    Writes one file for ui.perfetto.dev, in which the implementations lie one after the other with every step and stage labelled, and prints
    launches and times by stage, the cold start, and the costliest kernels. `compile` runs twice: by stage, and its fast way.
    """
    if read is not None:
        others = (*given_options(model, place), backends, device, steps, shapes, memory, stack, output, overwrite, config)
        return _read(read, as_json, any(others))
    found = read_config(config) if config else {}
    idle = found.keys() - {field.name for options in (ModelOptions, WorldOptions) for field in dataclasses.fields(options)} - {"device"}
    if idle:
        say(f"{shown(str(config))}: a trace has no use for {', '.join(sorted(idle))}")
    settings = Settings().changed(found).changed(given_options(model, place))
    number = 10 if steps is None else whole("steps", typed_count("steps", steps), 1, 10**6)
    chosen = _named(backends)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before PyTorch is there; its allocator would warn where memory is recorded
    extras = {"shapes": shapes, "memory": memory, "stack": stack}
    path = _target(output, overwrite, [Path(name) for name in (settings.image, config) if name])

    from physarum.backends import BACKENDS, choose, choose_device  # noqa: PLC0415
    from physarum.backends.memory import check_memory  # noqa: PLC0415
    from physarum.output.manifest import versions  # noqa: PLC0415
    from physarum.runner import Runner  # noqa: PLC0415
    from physarum.simulation import Simulation  # noqa: PLC0415

    world = world_of(settings)
    where = choose_device(device or settings.device)
    lacking: dict[str, str | None] = {}
    if not chosen:
        lacking = {name: backend.missing(where) for name, backend in BACKENDS.items()}
        chosen = [name for name, lacks in lacking.items() if lacks is None]
    _check_length(number, chosen, extras)
    for name, lacks in lacking.items():
        if lacks:
            say(f"without {name}, which needs {lacks}")
    for name in chosen:
        choose(name, str(where), 0, 0, 0)
    if where.type != "cuda":
        say("no GPU is used: the trace has labels, operators and the host's time, but no launches")
    simulation = Simulation(world, settings.size, settings.agents, backend=chosen[0], device=str(where))
    for name in chosen:
        check_memory(BACKENDS[name], where, simulation.worlds, simulation.size, simulation.slots)
    say(f"seed {settings.seed}")
    runner = Runner(simulation)
    if stack:
        say("the backends are warmed up beforehand: the stacks of compiling would fill the trace, which has no cold start therefore")
        for name in chosen:
            _run(runner, name, 1)
    with runner.trace(path, shapes, memory, stack, alike=True) as recorded:
        for name in chosen:
            say(f"{name}: {number} step{'s' * (number > 1)}")
            _run(runner, name, number)
    assert recorded.trace is not None
    width, height = simulation.size
    about = {
        "file": str(path),
        "device": str(where),
        "size": [width, height],
        "agents": simulation.agents,
        "seed": settings.seed,
        "versions": versions(where),
    }
    _print(recorded.trace, as_json, about)
    if not as_json:
        print(f"\nwrote {shown(path)}; open it in ui.perfetto.dev")
    return 0


def _read(name: str, as_json: bool, more_is_asked: bool) -> int:
    """Report on a trace that was recorded before; no PyTorch is needed."""
    if more_is_asked:
        raise UsageError("read goes with --json alone: nothing is run, so no other option is of use")
    from physarum.profiling.reader import read_trace  # noqa: PLC0415

    _print(read_trace(name), as_json, {"file": name})
    return 0


def _named(backends: str | None) -> list[str]:
    """The backends that are named, each once; none where all are meant."""
    if backends is None:
        return []
    names = [name.strip() for name in backends.split(",")]
    if len(set(names)) < len(names) or not all(names):
        raise UsageError(f"backends is {backends!r}: it must be names separated by commas, each once")
    for name in names:
        if name not in BYTES_A_STEP:
            raise UsageError(f"there is no backend {name!r}{did_you_mean(name, BYTES_A_STEP)} to trace: choose {', '.join(BYTES_A_STEP)}")
    return names


def _run(runner: "Runner", backend: str, steps: int) -> None:
    """Some steps of a backend by stage, and as many its fast way where that is another one."""
    runner.switch(backend).run(steps)
    if backend == "compile":
        runner.run(steps, by_stage=False)


def _check_length(steps: int, backends: Sequence[str], extras: Mapping[str, bool]) -> None:
    """Refuse a trace that would grow too large to be opened, before anything is run."""
    from physarum.profiling.session import LARGEST_TRACE  # noqa: PLC0415

    a_step = sum(BYTES_A_STEP[name] for name in backends) + (STACK_BYTES_A_STEP * len(backends) if extras["stack"] else 0)
    starts = 0 if extras["stack"] else sum(BYTES_TO_START.get(name, 0) for name in backends)
    for name, more in TIMES_THE_BYTES.items():
        a_step *= more if extras[name] else 1
    most = (LARGEST_TRACE - starts) // a_step
    if steps > most:
        limit = f"{LARGEST_TRACE // 10**6} MB that Perfetto opens well"
        raise UsageError(f"steps is {steps}: at most {most} of each of {', '.join(backends)} fit the {limit}")


def _target(output: str | None, overwrite: bool, inputs: Sequence[Path]) -> Path:
    """Where the trace goes: a name that may be written, by default the first that is free."""
    from physarum.output.names import check_free  # noqa: PLC0415
    from physarum.profiling.session import check_name  # noqa: PLC0415

    free = (path for n in itertools.count(1) if not (path := Path("outputs", "traces", f"step-{n}.json.gz")).exists())
    path = next(free) if output is None else Path(output)
    check_name(path)
    check_free(path, inputs, overwrite)
    return path


def _print(trace: "Trace", as_json: bool, about: Mapping[str, Any]) -> None:
    from physarum.profiling import report  # noqa: PLC0415

    print(json.dumps({**about, **report.as_json(trace)}, indent=2) if as_json else report.as_table(trace))
