"""Measure the published experiment: its steps and their defects, its speed-up of 25.5 with and without drawing, its patterns.

The experiment, ut21's "The G in GPU is for Graphics damnit!" (2025), compares a step in PyTorch with one in Triton; published_model.py is
both, written anew. This project's backends run beside them in the same process, with the same parameters, from the same random start. Needs
torch, Triton and numpy, and matplotlib for drawing and --picture.
"""

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from harness import Results, Row, Work, aligned, choice, listed, parser, positive, run, save_picture, synchronize, tell, timed
from published_model import DECAY, DEFECTS, DEPOSIT, PARAMS, PATTERN_DEFECTS, Model, PublishedTorch, PublishedTriton
from torch import Tensor
from worlds import add_world_options, backend, case_of, chosen_worlds, gate, loaded, refusals, runnable

from physarum.backends import BACKENDS
from physarum.backends.triton_backend import TritonBackend
from physarum.model.start import random_start
from physarum.model.state import State
from physarum.model.world import World, as_worlds
from physarum.output.tone import LEVELS, expected_mean, levels, thresholds

PARTS = ("times", "drawing", "patterns")
PYTORCH, TRITON, CURED = "published, PyTorch", "published, Triton", "all cured"
WORLDS = as_worlds(World((PARAMS,), seed=1))
DRAWN = ((400, 400), 5_000)  # the world of the published comparison
DRAWN_STEPS = 4  # a call; drawing takes many times as long as a step
PATTERN = ((400, 400), 20_000)
SLOWEST = 30.0  # seconds that the timing of one case may take

# Read off the figures of the publication, whose GPU was an RTX A6000: 400 x 400 cells, 5,000 agents, 1,000 steps.
CLAIMED = 25.5
CLAIMED_US = {PYTORCH: 8_840.0, TRITON: 347.0}
CLAIMED_OPERATIONS = {PYTORCH: 55, TRITON: 17}  # of the 17 the publication names the two Triton kernels, and those of diffusion and decay

Figures = Mapping[tuple[str, bool], float]


def main() -> None:
    """Read the command line and measure."""
    made = parser(__doc__)
    add_world_options(made, "400x400,1024x1024", "5000,1048576")
    made.add_argument("--parts", type=listed(choice("part", PARTS)), default=list(PARTS), help=f"of the measurement [{','.join(PARTS)}]")
    made.add_argument("--backends", type=listed(backend), help="such as torch,triton [all that this machine can run]")
    made.add_argument("--steps", type=positive, default=64, help="timed together; 64 hold one sort of the agents [64]")
    made.add_argument(
        "--cure",
        type=listed(choice("defect", DEFECTS)),
        default=[],
        help=f"one more case, the published step with these cured: {', '.join(DEFECTS)}",
        metavar="NAME,...",
    )
    made.add_argument("--pattern-steps", type=positive, default=500, help="after which patterns are compared [500]")
    made.add_argument("--picture", type=Path, dest="plot", metavar="FILE", help="draw the patterns, .png")
    run(made, measure)


def measure(arguments: argparse.Namespace, kept: Results) -> None:
    """Measure the parts that were asked for and print what was found."""
    chosen, backends = chosen_worlds(arguments), runnable(arguments.backends, arguments.device)
    if "times" in arguments.parts:
        for size, agents in chosen:
            measure_times(arguments, backends, size, agents, kept)
    if "drawing" in arguments.parts:
        measure_drawing(arguments, backends[-1], kept)
    if "patterns" in arguments.parts:
        trails = measure_patterns(arguments, backends[-1], kept)
        if arguments.plot:
            draw(trails, kept, arguments.plot)
    kept.count(arguments.device)
    print("\n\n".join([*times_tables(kept), *drawing_table(kept), *patterns_table(kept)]))


def start_of(size: tuple[int, int], agents: int, device: torch.device) -> State:
    """The start of all runs: agents in whole cells, as published, with random headings."""
    start = random_start(WORLDS, size, agents, device=device)
    return replace(start, x=start.x.floor(), y=start.y.floor())


def cured(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The published PyTorch step with these defects cured: its name, and the defects that are left. Nothing where there are no names."""
    left = tuple(name for name in DEFECTS if name not in names)
    return {f"{' and '.join(names)} cured" if left else CURED: left} if names else {}


def published_steps(cure: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """What is timed: the step as published, with each defect cured alone, with some, and with all. Names, and the defects left."""
    found = {PYTORCH: tuple(DEFECTS)}
    for names in (*([name] for name in DEFECTS), cure, tuple(DEFECTS)):
        found |= cured(names)
    return found


def ours(name: str) -> str:
    """The name of a case that is a backend of this project."""
    return f"physarum, {name}"


# Times and launches


def measure_times(arguments: argparse.Namespace, backends: Sequence[str], size: tuple[int, int], agents: int, kept: Results) -> None:
    """Add the rows of one world."""
    device, steps = arguments.device, arguments.steps
    tell(f"{size[0]} x {size[1]} cells, {agents:,} agents on {kept.head['machine']['processor']}")
    refused = {ours(name): why for name, why in refusals(arguments.backends, device, size, agents).items()}
    fitting = [name for name in backends if not refused[ours(name)]]
    if not fitting:
        for name, why in refused.items():
            kept.not_run(case_of(size, agents, part="times", model=name), str(why))
        return
    gate(fitting, device, size, agents)
    start = start_of(size, agents, device)
    makers: dict[str, Callable[[], Model]] = {
        name: partial(PublishedTorch, start, left) for name, left in published_steps(arguments.cure).items()
    }
    makers[TRITON] = partial(PublishedTriton, start)
    makers |= {ours(name): partial(loaded, name, device, WORLDS, start) for name in arguments.backends or BACKENDS}
    lacks = TritonBackend.missing(device)
    refused[TRITON] = lacks and f"it needs {lacks}"
    models = {}
    for name, make in makers.items():
        made = refused.get(name) or tried(make, device, steps * arguments.trials)
        if isinstance(made, str):
            kept.not_run(case_of(size, agents, part="times", model=name), made)
        else:
            models[name] = made
    tell(f"timing {steps} steps of {len(models)} cases {arguments.trials} times")
    works = {name: partial(model.advance, steps) for name, model in models.items()}
    times = timed(works, device, arguments.trials, calls=1, warm_up=1, units=steps)
    for name, row in times.items():
        step = makers[name]()
        step.advance(3)  # the first sorts, and allocates
        kept.add(case_of(size, agents, part="times", model=name), partial(step.advance, 1), **row)


def tried(make: Callable[[], Model], device: torch.device, steps: int) -> Model | str:
    """A model that has run two steps, or why it cannot be timed for so many."""
    try:
        model = make()
        model.advance(1)
        synchronize(device)
        started = time.perf_counter()
        model.advance(1)
        synchronize(device)
    except torch.OutOfMemoryError:
        return "it is too large for the memory of this device"
    except RuntimeError as error:
        if "cudnn" not in str(error).lower():
            raise
        return f"cuDNN refuses it: {str(error).splitlines()[0]}"
    seconds = (time.perf_counter() - started) * steps
    return f"{steps:,} steps would take {seconds:,.0f} s: ask for fewer --steps or --trials" if seconds > SLOWEST else model


def times_tables(kept: Results) -> list[str]:
    """The times and launches of each world as text."""
    rows = [row for row in kept.rows if row["case"]["part"] == "times"]
    found = []
    for size, agents in dict.fromkeys((row["case"]["size"], row["case"]["agents"]) for row in rows):
        here = [row for row in rows if (row["case"]["size"], row["case"]["agents"]) == (size, agents)]
        measured = [row for row in here if row["status"] == "measured"]
        published = next((row["wall_us"]["median"] for row in measured if row["case"]["model"] == PYTORCH), None)
        table = [["step", "us", "p10", "p90", "speed-up", "launches", "operations", "device us", "operators"]]
        for row in measured:
            us = row["wall_us"]
            counts = [
                "-" if row[name] is None else f"{row[name]:,g}" for name in ("host_launches", "device_operations", "device_us", "operators")
            ]
            ratio = "-" if published is None else f"{published / us['median']:.2f}"
            table.append([row["case"]["model"], *(f"{us[name]:,.1f}" for name in ("median", "p10", "p90")), ratio, *counts])
        refusals = [f"{row['case']['model']} was not run: {row['why']}" for row in here if row["status"] == "not run"]
        found.append("\n".join([f"{size}, {agents:,} agents", aligned(table), *refusals, *operations_said(measured)]))
    return found


def operations_said(rows: Sequence[Row]) -> list[str]:
    """Our counts of operations on the device beside those that were published; nothing without a GPU."""
    counts = {row["case"]["model"]: row["device_operations"] for row in rows if row["device_operations"] is not None}
    return [
        f"{name}: {counts[name]} operations on the device, where the publication counts {claimed}."
        for name, claimed in CLAIMED_OPERATIONS.items()
        if name in counts
    ]


# Drawing


def measure_drawing(arguments: argparse.Namespace, fastest: str, kept: Results) -> None:
    """Time the steps of the published comparison with and without drawing each, as one who writes an animation draws: image and canvas."""
    device, (size, agents) = arguments.device, DRAWN
    gate([fastest], device, size, agents)
    start = start_of(size, agents, device)
    models: dict[str, Model] = {PYTORCH: PublishedTorch(start), ours(fastest): loaded(fastest, device, WORLDS, start)}
    lacks = TritonBackend.missing(device)
    if lacks:
        for drawing in ("none", "every step"):
            kept.not_run(case_of(size, agents, part="drawing", model=TRITON, drawing=drawing), f"it needs {lacks}")
    else:
        models[TRITON] = PublishedTriton(start)
    works: dict[str, Work] = {}
    for name, model in models.items():
        works[f"{name}; none"] = partial(model.advance, DRAWN_STEPS)
        works[f"{name}; every step"] = drawn(model)
    tell(f"drawing every step of {len(models)} cases")
    for name, row in timed(works, device, arguments.trials, calls=1, warm_up=1, units=DRAWN_STEPS).items():
        model_name, drawing = name.split("; ")
        kept.add(case_of(size, agents, part="drawing", model=model_name, drawing=drawing), **row)


def drawn(model: Model) -> Work:
    """Steps of a model, each drawn by matplotlib's Agg into a figure of its default size, with axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    canvas = FigureCanvasAgg(Figure())
    image = canvas.figure.add_subplot().imshow(model.trail()[0, 0].cpu().numpy())

    def steps() -> None:
        for _ in range(DRAWN_STEPS):
            model.advance(1)
            image.set_data(model.trail()[0, 0].cpu().numpy())
            image.autoscale()
            canvas.draw()  # type: ignore[no-untyped-call]

    return steps


def drawing_table(kept: Results) -> list[str]:
    """The times with and without drawing as text, and what follows from them."""
    rows = [row for row in kept.measured() if row["case"]["part"] == "drawing"]
    if not rows:
        return []
    table = [["step", "drawing", "us", "p10", "p90"]]
    for row in rows:
        table.append([row["case"]["model"], row["case"]["drawing"], *(f"{row['wall_us'][name]:,.1f}" for name in ("median", "p10", "p90"))])
    times = {(row["case"]["model"], row["case"]["drawing"] == "every step"): row["wall_us"]["median"] for row in rows}
    (width, height), agents = DRAWN
    heading = f"{width}x{height}, {agents:,} agents, drawn by matplotlib (Agg, imshow, set_data and canvas.draw)"
    return ["\n".join([heading, aligned(table), "", *evidence(times)])]


def evidence(times: Figures) -> list[str]:
    """What measured times say about the published 25.5, in sentences.

    Args:
        times: Microseconds a step, by the model and whether each step was drawn.
    """
    alone, with_drawing = times[PYTORCH, False], times[PYTORCH, True]
    said = [f"Drawing makes a step of the published PyTorch version {with_drawing / alone:.1f} times as long here."]
    if (TRITON, False) not in times:
        return [*said, f"Nothing can be said here about the published factor of {CLAIMED}: its Triton version needs an NVIDIA GPU."]
    ratios = {
        "without drawing": alone / times[TRITON, False],
        "with drawing on both sides": with_drawing / times[TRITON, True],
        "with drawing on the side of PyTorch alone": with_drawing / times[TRITON, False],
    }
    said += [f"PyTorch takes {ratio:.2f} times as long as Triton {how}." for how, ratio in ratios.items()]
    nearest = min(ratios, key=lambda how: abs(math.log(ratios[how] / CLAIMED)))
    said.append(f"The published factor is {CLAIMED}; the nearest of these is that {nearest}, {ratios[nearest]:.1f}.")
    said.append(
        f"The published step of PyTorch took {CLAIMED_US[PYTORCH]:,.0f} us: {CLAIMED_US[PYTORCH] / alone:.1f} times ours without "
        f"drawing and {CLAIMED_US[PYTORCH] / with_drawing:.1f} times ours with it. That of Triton took {CLAIMED_US[TRITON]:,.0f} us: "
        f"{CLAIMED_US[TRITON] / times[TRITON, False]:.1f} times ours without and {CLAIMED_US[TRITON] / times[TRITON, True]:.2f} times with."
    )
    if CLAIMED_US[TRITON] < times[TRITON, True] / 3 and CLAIMED_US[PYTORCH] > 3 * alone:
        said.append(
            "So the published time of Triton holds no drawing, while that of PyTorch is too long for its step alone: the two times are not "
            "of the same work."
        )
    said.append(
        "That was another GPU and host, and its scripts are not public: these figures can make an explanation likely, not prove it."
    )
    return said


# Patterns


def measure_patterns(arguments: argparse.Namespace, fastest: str, kept: Results) -> dict[str, Tensor]:
    """Run all models from one start, each defect alone in the cured one, and add what stands then; return the trails."""
    device, steps, (size, agents) = arguments.device, arguments.pattern_steps, PATTERN
    gate([fastest], device, size, agents)
    start = start_of(size, agents, device)
    published = {CURED: ()} | {name: (name,) for name in DEFECTS} | cured(arguments.cure) | {PYTORCH: tuple(DEFECTS)}
    models: dict[str, Model] = {name: PublishedTorch(start, left) for name, left in published.items()}
    lacks = TritonBackend.missing(device)
    if lacks:
        kept.not_run(case_of(size, agents, part="patterns", model=TRITON, steps=steps), f"it needs {lacks}")
    else:
        models[TRITON] = PublishedTriton(start)
    models[ours(fastest)] = loaded(fastest, device, WORLDS, start)
    trails = {}
    for name, model in models.items():
        tell(f"pattern after {steps} steps: {name}")
        model.advance(steps)
        trails[name] = model.trail()[0, 0].cpu()
        full = expected_mean(DEPOSIT, agents / trails[name].numel(), DECAY, steps)
        own = own_senses(model) if isinstance(model, PublishedTorch) else {}
        kept.add(case_of(size, agents, part="patterns", model=name, steps=steps), None, **pattern_figures(trails[name], full), **own)
    return trails


def pattern_figures(trail: Tensor, full: float) -> dict[str, float]:
    """What a pattern is like.

    Args:
        trail: (height, width).
        full: The mean trail if every deposit counts and none is lost but by decay.

    Returns:
        `mass`, the trail over what it would be in full; `entropy` of the trail as a distribution over cells, 1 where it is even; `edge`,
        the mean of the outermost rows and columns over that of the cells inside; `contrast`, the standard deviation over the mean.
    """
    cells = trail.double()
    inside = cells[1:-1, 1:-1]
    at_edge = (cells.sum() - inside.sum()) / (cells.numel() - inside.numel())
    return {
        "mass": float(cells.mean()) / full,
        "entropy": float(torch.special.entr(cells / cells.sum()).sum()) / math.log(cells.numel()),
        "edge": float(at_edge / inside.mean()),
        "contrast": float(cells.std() / cells.mean()),
    }


def own_senses(model: PublishedTorch) -> dict[str, float]:
    """The share of agents that now follow the sensor which the cured model would follow in their place, and the share by chance."""
    followed = model.choices()
    defects, model.defects = model.defects, frozenset()
    own = model.choices()
    model.defects = defects
    shares = [torch.bincount(choices, minlength=3).double() / len(choices) for choices in (followed, own)]
    return {"own_senses": float((followed == own).double().mean()), "own_senses_by_chance": float(shares[0] @ shares[1])}


def patterns_table(kept: Results) -> list[str]:
    """What patterns are like, as text."""
    rows = [row for row in kept.rows if row["case"]["part"] == "patterns"]
    if not rows:
        return []
    names = ("mass", "entropy", "edge", "contrast", "own_senses", "own_senses_by_chance")
    table = [["model or defect", "mass", "entropy", "edge", "contrast", "own senses", "by chance"]]
    for row in rows:
        if row["status"] == "measured":
            table.append([row["case"]["model"], *(f"{row[name]:.3f}" if name in row else "-" for name in names)])
    (width, height), agents = PATTERN
    said = [f"{row['case']['model']} was not run: {row['why']}" for row in rows if row["status"] == "not run"]
    said += [f"{name}: {what}." for name, what in DEFECTS.items()]
    heading = f"{width}x{height}, {agents:,} agents, after {rows[0]['case']['steps']} steps; each defect alone in the cured step"
    return ["\n".join([heading, aligned(table), "", *said])]


def draw(trails: Mapping[str, Tensor], kept: Results, path: Path) -> None:
    """A sheet of patterns, all with one scale of brightness, each with two of its figures."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figures = {row["case"]["model"]: row for row in kept.measured() if row["case"]["part"] == "patterns"}
    shown = {name: trail for name, trail in trails.items() if name not in DEFECTS or name in PATTERN_DEFECTS}
    (width, height), agents = PATTERN
    steps = figures[CURED]["case"]["steps"]
    begins = thresholds(expected_mean(DEPOSIT, agents / (width * height), DECAY, steps))
    columns = 3 if len(shown) == 9 else 4
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(3.2 * columns, 3.6 * rows + 0.4), facecolor="black", layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.axis("off")
    for panel, (name, trail) in zip(axes.flat, shown.items(), strict=False):
        panel.imshow(levels(trail, begins), cmap="magma", vmin=0, vmax=LEVELS - 1, interpolation="none")
        panel.set_title(f"{name} alone" if name in DEFECTS else name, color="white", fontsize=13, pad=19)
        said = f"contrast {figures[name]['contrast']:.2f}, trail {figures[name]['mass']:.0%}"
        if "own_senses" in figures[name]:
            said += f", own senses {figures[name]['own_senses']:.0%}"
        panel.text(0.5, 1.02, said, transform=panel.transAxes, color="0.75", fontsize=9, ha="center", in_layout=False)
    figure.suptitle(f"{agents:,} agents on {width} x {height} cells after {steps} steps from one start", color="white", fontsize=14)
    save_picture(figure, path)


if __name__ == "__main__":
    main()
