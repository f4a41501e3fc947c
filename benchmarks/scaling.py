"""Time of the simulator against the number of steps, the side of the world and the number of agents, with curves fitted to it.

The sweeps named published-... go over the ranges of ut21's post "The G in GPU is for Graphics damnit!" (2025), the wide ones as far as
memory goes. No world is timed that has not passed the gate: equal bits after 64 steps, or no figures. The first step of a process is in
no time here. After the times come curves (see fits.py), also through the post's own points, and answers in a sentence each; all are kept
as rows. The times in a row are those of a call, which advances the row's `steps`; `us_a_step` is what a step takes of them.

`python benchmarks/scaling.py --json scaling.jsonl --plot scaling.png`. `--help` lists the options; `--plot` needs matplotlib.
"""

import argparse
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fits import (
    FEWEST_ABOVE,
    FEWEST_POINTS,
    LARGEST_EXPONENT,
    MODELS,
    OPEN,
    SMALLEST_EXPONENT,
    Array,
    Fit,
    Interval,
    contains,
    fit_all,
    not_told_apart,
)
from harness import Results, Row, aligned, choice, clock, listed, parser, positive, read_results, run, save_picture, tell, timed
from worlds import PATTERN, backend, case_of, developed, gate, loaded, runnable, too_large

from physarum.backends import BACKENDS
from physarum.backends.buffered_backend import SORT_EVERY, BufferedBackend
from physarum.backends.memory import available_bytes
from physarum.backends.torch_backend import TorchBackend
from physarum.errors import UsageError

TRIALS = 15
DEVELOPING_STEPS = 64  # before the timing
UNSORTED_STEPS = 8  # timed together where a backend does not sort; others have one sort in each call
CLEARLY = 1.1  # times the p90 of the smallest point: more than its noise
LIMITS = {"cuda": {"side": 16_384, "agents": 1 << 28, "steps": 1050}, "cpu": {"side": 1024, "agents": 1 << 20, "steps": 500}}

# The post's figure of total time over the side of the grid, to the two decimals that it prints; it does not say how many steps or agents.
PUBLISHED = "published figure"
PUBLISHED_SIDES = tuple(range(50, 601, 50))
PUBLISHED_SECONDS = (0.38, 0.39, 0.40, 0.43, 0.46, 0.84, 1.05, 1.13, 1.17, 1.32, 1.47, 1.63)
PUBLISHED_EXPONENT = 1.459
PUBLISHED_INTERCEPT = 0.215  # seconds, of the post's line through total time over steps
PUBLISHED_FIRST_STEP = 0.244  # seconds, in the post's trace

QUANTILES = ("median", "p10", "p90")
LABELS = {"steps": "steps", "side": "side in cells", "agents": "agents"}  # of what is varied


@dataclass(frozen=True)
class Point:
    """A square world and, where their number is varied, how many steps are timed together."""

    side: int
    agents: int
    steps: int | None = None


@dataclass(frozen=True)
class Sweep:
    """Points that differ in one thing.

    Attributes:
        varied: "steps", "side" or "agents".
        points: In order of it.
    """

    varied: str
    points: tuple[Point, ...]


SIDES = tuple(sorted([*(1 << power for power in range(6, 15)), *(3 << power for power in range(5, 13))]))
NAMES = ("published-steps", "published-side", "published-agents", "wide-side", "wide-agents", "wide-both")


def sweeps(largest_side: int) -> dict[str, Sweep]:
    """All sweeps by name.

    The post does not say with how many agents it varied the side, nor on which grid the steps; here they are 5,000 and 400 x 400.

    Args:
        largest_side: The world of the wide sweep of agents is 4096 x 4096 or, where that is less, the largest of `SIDES` up to this.
    """
    roomy = max((side for side in SIDES if side <= min(4096, largest_side)), default=SIDES[0])
    made = (
        Sweep("steps", tuple(Point(400, 5000, steps) for steps in range(50, 1051, 50))),
        Sweep("side", tuple(Point(side, 5000) for side in PUBLISHED_SIDES)),
        Sweep("agents", tuple(Point(200, agents) for agents in range(500, 5001, 500))),
        Sweep("side", tuple(Point(side, 5000) for side in SIDES)),
        Sweep("agents", tuple(Point(roomy, 1 << power) for power in range(10, 29, 2))),
        Sweep("side", tuple(Point(side, side * side) for side in SIDES)),
    )
    return dict(zip(NAMES, made, strict=True))


def main() -> None:
    """Read the command line and run."""
    made = parser(__doc__, TRIALS)
    made.add_argument("--backends", type=listed(backend), help="such as triton,torch [triton, or torch where that cannot run]")
    made.add_argument("--sweeps", type=listed(choice("sweep", NAMES)), default=list(NAMES), help=f"some of {', '.join(NAMES)} [all]")
    for what in ("side", "agents", "steps"):
        on_gpu, on_cpu = (LIMITS[device][what] for device in ("cuda", "cpu"))
        made.add_argument(f"--largest-{what}", type=positive, help=f"leave out points with more [{on_gpu}; on a CPU {on_cpu}]")
    made.add_argument("--read", type=Path, metavar="FILE", help="measure nothing; fit the times in such a file once more")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw all sweeps, such as scaling.png")
    run(made, benchmark)


def benchmark(arguments: argparse.Namespace, kept: Results) -> None:
    """Measure, or read what was measured; fit, answer, print and draw."""
    if arguments.read:
        read = read_results(arguments.read)
        kept.head = read.head
        kept.rows += [row for row in read.rows if row["case"].keys() >= {"sweep", "backend", "steps"}]
    else:
        measure_all(arguments, kept)
    print(table(kept.rows))
    curves = []
    for name, of in dict.fromkeys((row["case"]["sweep"], row["case"]["backend"]) for row in kept.rows):
        rows = [row for row in kept.measured() if row["case"]["sweep"] == name and row["case"]["backend"] == of]
        varied = sweeps(SIDES[-1])[name].varied
        curves.append(Curve({"sweep": name, "backend": of}, varied, *times(rows, varied)))
    for residuals in ("absolute", "relative"):
        case = {"sweep": PUBLISHED, "residuals": residuals}
        seconds = np.array(PUBLISHED_SECONDS) * 1e6
        curves.append(Curve(case, "side", np.array(PUBLISHED_SIDES, dtype=float), np.stack([seconds] * 3)))
    for curve in curves:
        keep_fits(curve, kept)
    print("\n" + table_of_fits(curves))
    for curve in curves:
        for question, sentence in answers(curve).items():
            kept.computed({**curve.case, "answer": question}, sentence=sentence)
            print(f"\n{', '.join(curve.case.values())}: {sentence}")
    if arguments.plot:
        draw(curves, arguments.plot)


def measure_all(arguments: argparse.Namespace, kept: Results) -> None:
    """Measure the sweeps that were asked for, with each backend."""
    device = arguments.device
    names = runnable(arguments.backends or ["torch" if BACKENDS["triton"].missing(device) else "triton"], device)
    limits = {what: getattr(arguments, f"largest_{what}") or limit for what, limit in LIMITS[device.type].items()}
    chosen = {name: sweep for name, sweep in sweeps(limits["side"]).items() if name in arguments.sweeps}
    if all(beyond(point, limits) for sweep in chosen.values() for point in sweep.points):
        raise UsageError(f"there is nothing to measure: every point of {', '.join(chosen)} is beyond the limits")
    passed: set[tuple[str, int, int]] = set()
    for of, (name, sweep) in itertools.product(names, chosen.items()):
        measure(name, sweep, of, arguments, limits, passed, kept)


def beyond(point: Point, limits: Mapping[str, int]) -> str | None:
    """Which limit a point is beyond, or None."""
    over = (f"beyond --largest-{what} {limits[what]}" for what, value in vars(point).items() if value and value > limits[what])
    return next(over, None)


def measure(
    name: str,
    sweep: Sweep,
    of: str,
    arguments: argparse.Namespace,
    limits: Mapping[str, int],
    passed: set[tuple[str, int, int]],
    kept: Results,
) -> None:
    """Time the points of a sweep; those of one world in turns.

    Args:
        name: Of the sweep.
        sweep: What to time.
        of: The backend.
        arguments: Device and trials.
        limits: What is not to be exceeded.
        passed: Backends and worlds that passed the gate; those of this sweep are added.
        kept: Takes the rows, also of what was not run.
    """
    device = arguments.device
    usual_steps = SORT_EVERY if issubclass(BACKENDS[of], BufferedBackend) else UNSORTED_STEPS
    cases: dict[Point, dict[str, Any]] = {}
    for point in sweep.points:
        case = case_of((point.side, point.side), point.agents, sweep=name, backend=of, steps=point.steps or usual_steps)
        if why := beyond(point, limits) or too_large(of, device, (point.side, point.side), point.agents):
            kept.not_run(case, why)
        else:
            cases[point] = case
    for points in in_turns(list(cases), of, device):
        running: dict[tuple[int, int], TorchBackend] = {}
        for side, agents in dict.fromkeys((point.side, point.agents) for point in points):
            tell(f"{name}, {of}: {side} x {side} cells, {agents} agents")
            if (of, side, agents) not in passed:
                gate([of], device, (side, side), agents)
                passed.add((of, side, agents))
            start = developed(of, device, (side, side), agents, DEVELOPING_STEPS)
            running[side, agents] = loaded(of, device, PATTERN, start)
            del start
        works = {str(point): functools.partial(running[point.side, point.agents].advance, cases[point]["steps"]) for point in points}
        timings = timed(works, device, arguments.trials, calls=1, warm_up=1)
        for made in running.values():
            made.close()
        for point in points:
            figures = timings[str(point)]
            us_a_step = {quantile: round(clock(figures)[quantile] / cases[point]["steps"], 4) for quantile in QUANTILES}
            kept.add(cases[point], **figures, us_a_step=us_a_step)


def in_turns(points: Sequence[Point], of: str, device: torch.device) -> list[list[Point]]:
    """Points to be timed in turns, so that a machine that slows down slows them all: as many together as fit half of the memory."""
    room = (available_bytes(device) or 0) / 2
    groups: list[list[Point]] = []
    used = 0
    for point in points:
        needed = BACKENDS[of].bytes_needed(1, 1, (point.side, point.side), point.agents)
        if not groups or used + needed > room:
            groups.append([])
            used = 0
        groups[-1].append(point)
        used += needed
    return groups


@dataclass
class Curve:
    """Times over one thing that was varied.

    Attributes:
        case: The sweep and the backend, or how the published points are fitted.
        varied: What.
        x: Its values, growing.
        us: Median, p10 and p90 (3, points) of a step, or of all steps where their number is varied; of all in the published points.
        fits: By model, the best first; empty where there are too few points.
    """

    case: dict[str, str]
    varied: str
    x: Array
    us: Array
    fits: dict[str, Fit] = field(default_factory=dict)

    @property
    def median(self) -> Array:
        """Of each point."""
        return np.asarray(self.us[0])


def times(rows: Sequence[Row], varied: str) -> tuple[Array, Array]:
    """What a curve needs of the rows of a sweep."""
    x = np.array([row["case"]["size"].partition("x")[0] if varied == "side" else row["case"][varied] for row in rows], dtype=float)
    us = np.array([[row["us_a_step"][quantile] for row in rows] for quantile in QUANTILES], dtype=float)
    return x, us * x if varied == "steps" else us


def keep_fits(curve: Curve, kept: Results) -> None:
    """Fit all models to a curve and keep them as rows; too few points are a row that was not run."""
    if len(curve.x) < FEWEST_POINTS:
        kept.not_run({**curve.case, "fit": "all"}, f"{len(curve.x)} points are too few: a fit needs {FEWEST_POINTS}")
        return
    curve.fits = fit_all(curve.x, curve.median, relative=curve.case.get("residuals") != "absolute")
    for name, fit in curve.fits.items():
        kept.computed({**curve.case, "fit": name}, **fit.figures())


def table(rows: Sequence[Row]) -> str:
    """The times, and what was not run, points that lack the same in one line."""
    columns = ["sweep", "backend", "size", "agents", "steps"]
    lines = [[*columns, "us/step", "p10", "p90"]]
    lines += [
        [*(str(row["case"][column]) for column in columns), *(f"{row['us_a_step'][quantile]:.2f}" for quantile in QUANTILES)]
        for row in rows
        if row["status"] == "measured"
    ]
    missing = itertools.groupby(
        (row for row in rows if row["status"] == "not run"), key=lambda row: (row["case"]["sweep"], row["case"]["backend"], row["why"])
    )
    return "\n".join([aligned(lines), *(f"not run: {points([row['case'] for row in alike])}: {why}" for (_, _, why), alike in missing)])


def points(cases: Sequence[Mapping[str, Any]]) -> str:
    """Some points of a sweep in words."""
    first, last = cases[0], cases[-1]
    between = (f"{name} {first[name]}" + (f" to {last[name]}" if last[name] != first[name] else "") for name in ("size", "agents", "steps"))
    return f"{first['sweep']}, {first['backend']}, {', '.join(between)}"


def table_of_fits(curves: Sequence[Curve]) -> str:
    """All fits, the best of each curve first."""
    lines = [["curve", "fit, best first", "a", "b", "95 %", "c in us", "95 %", "R2", "misses by", "AICc above best"]]
    for curve in curves:
        best = min((fit.aicc for fit in curve.fits.values()), default=0.0)
        lines += [
            [
                ", ".join(curve.case.values()),
                MODELS[name].formula,
                number(fit.a) if fit.b is not None else "",
                f"{fit.b:.3f}" if fit.b_interval else "",
                ends(fit.b_interval) if fit.b_interval else "",
                number(fit.c),
                ends(fit.c_interval),
                f"{fit.r2:.4f}",
                f"{fit.worst:.1%}",
                f"{fit.aicc - best:.1f}",
            ]
            for name, fit in curve.fits.items()
        ]
    return aligned(lines)


def ends(interval: Interval) -> str:
    """An interval, with the ends of the search where it is open."""
    low, high = interval
    below, above = f"below {SMALLEST_EXPONENT:g}", f"above {LARGEST_EXPONENT:g}"
    return f"{below if low is None else number(low)} to {above if high is None else number(high)}"


def number(value: float) -> str:
    """Without an exponent where that can be read."""
    return f"{value:,.0f}" if 1000 <= value < 1e9 else f"{value:.4g}"


def answers(curve: Curve) -> dict[str, str]:
    """What the curve says to the post's claims, a sentence each, by question; none without fits."""
    if not curve.fits:
        return {}
    if curve.varied == "steps":
        return {"linear": whether_linear(curve)}
    if curve.varied == "agents":
        return {"constant": whether_constant(curve)}
    return {"exponent": which_exponent(curve), "fixed cost": what_is_fixed(curve)}


def which_exponent(curve: Curve) -> str:
    """Whether time grows as side^1.459 beside a constant."""
    if "constant" in not_told_apart(curve.fits):
        return f"Is the exponent {PUBLISHED_EXPONENT}? There is none to be seen: {preferred(curve)}."
    fits = sorted((curve.fits["power"], curve.fits["larger"]), key=lambda fit: fit.aicc)
    inside = [[value for value in (1, PUBLISHED_EXPONENT, 2) if contains(fit.b_interval or OPEN, value)] for fit in fits]
    above = int((curve.x > (fits[0].crossing or np.inf)).sum())
    verdict = "no" if PUBLISHED_EXPONENT not in inside[0] else "it may be" if len(inside[0]) == 1 else "the data do not tell"
    if above < FEWEST_ABOVE:
        verdict = f"the data do not tell, since what grows is the larger part in {above} points alone"
    said = (
        f"in {MODELS[fit.model].formula} b is {fit.b:.3f}, 95 % {ends(fit.b_interval or OPEN)}, "
        f"which holds {', '.join(map(str, values)) or f'none of 1, {PUBLISHED_EXPONENT} and 2'}"
        for fit, values in zip(fits, inside, strict=True)
    )
    half = int(np.abs(np.log(curve.x / curve.x[-1] * 2)).argmin())
    slope = np.log(curve.median[-1] / curve.median[half]) / np.log(curve.x[-1] / curve.x[half])
    return (
        f"Is the exponent {PUBLISHED_EXPONENT}? {verdict.capitalize()}: {'; '.join(said)}; {preferred(curve)}; "
        f"from side {curve.x[half]:.0f} to {curve.x[-1]:.0f} the time grows as side^{slope:.2f}."
    )


def what_is_fixed(curve: Curve) -> str:
    """Which part of the time does not depend on the side, and up to where it is the larger one."""
    fit = growing(curve)
    return (
        f"Why not 2? {number(fit.c)} us, 95 % {ends(fit.c_interval)}, do not depend on the side, and at side {curve.x[0]:.0f} all takes "
        f"{number(curve.median[0])} us; {prevailing(curve, fit)}."
    )


def whether_constant(curve: Curve) -> str:
    """Whether time does not depend on the number of agents."""
    highest = curve.us[2, 0]
    above = np.flatnonzero(curve.median > CLEARLY * highest)
    bar = f"more than {CLEARLY - 1:.0%} above the p90 with {curve.x[0]:.0f}, {number(highest)} us".replace("%", " %")
    if len(above):
        said = f"no: {curve.x[above[0]]:.0f} are the first that take {bar}: {number(curve.median[above[0]])} us"
    else:
        said = f"as far as was measured, up to {curve.x[-1]:.0f}, where no number takes {bar}"
    return f"Is the time constant in the agents? {said.capitalize()}; {preferred(curve)}; {prevailing(curve, growing(curve))}."


def whether_linear(curve: Curve) -> str:
    """Whether time is linear in the number of steps, what a step takes and what comes on top."""
    power, line = curve.fits["power"], curve.fits["linear"]
    interval = power.b_interval or OPEN
    return (
        f"Is the time linear in the steps? {'Yes' if contains(interval, 1) else 'Not quite'}: in a x^b + c b is {power.b:.4f}, 95 % "
        f"{ends(interval)}; a line has {number(line.a)} us a step and {number(line.c)} us on top, 95 % {ends(line.c_interval)}, and misses "
        f"no point by more than {line.worst * 100:.1f} %; on top the post has {PUBLISHED_INTERCEPT * 1e6:,.0f} us, and a first step of "
        f"{PUBLISHED_FIRST_STEP * 1e6:,.0f} us, which is in no time here."
    )


def preferred(curve: Curve) -> str:
    """Which models the data prefer, and by how much."""
    first, *others = curve.fits.values()
    within = not_told_apart(curve.fits)
    told = "AICc prefers" if len(within) == 1 else f"AICc, which does not tell the first {len(within)} apart, has"
    return f"{told} {MODELS[first.model].formula}, then " + ", ".join(
        f"{MODELS[fit.model].formula} (by {fit.aicc - first.aicc:.1f})" for fit in others
    )


def prevailing(curve: Curve, fit: Fit) -> str:
    """From where on the growing part of a fit is the larger one."""
    if "constant" in not_told_apart(curve.fits) or fit.crossing is None:
        return f"nothing is seen to grow with the {curve.varied}"
    where = f"what grows is the larger part from {curve.varied} {number(fit.crossing)} on"
    beyond_all = f", beyond the {curve.x[-1]:.0f} measured" if fit.crossing > curve.x[-1] else ""
    return f"{where}{beyond_all} (by {MODELS[fit.model].formula}, which misses no point by more than {fit.worst * 100:.0f} %)"


def growing(curve: Curve) -> Fit:
    """The best fit that is no constant."""
    return next(fit for fit in curve.fits.values() if fit.b is not None)


def draw(curves: Sequence[Curve], path: Path) -> None:
    """A panel for each sweep, with the fits that the data prefer."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    panels: dict[str, list[Curve]] = {}
    for curve in curves:
        if len(curve.x):
            panels.setdefault(curve.case["sweep"], []).append(curve)
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.8 * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in places[len(panels) :]:
        axes.remove()
    for axes, (name, together) in zip(places, panels.items(), strict=False):
        for curve in together:
            draw_curve(axes, curve)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel(LABELS[together[0].varied])
        total = name == PUBLISHED or together[0].varied == "steps"
        axes.set_ylabel("microseconds in all" if total else "microseconds a step")
        if name.startswith("wide"):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, frameon=False)
    save_picture(figure, path)


def draw_curve(axes: Any, curve: Curve) -> None:
    """Medians with p10 and p90, and the best fit through them."""
    _, label = curve.case.values()
    spread = np.abs(curve.us[1:] - curve.median)
    points = axes.errorbar(curve.x, curve.median, yerr=spread, fmt="o", markersize=3.5, capsize=2)
    if curve.fits:
        fit = next(iter(curve.fits.values()))
        label += f": {MODELS[fit.model].formula}" + (f", b = {fit.b:.2f}" if fit.b_interval else "")
        x = np.geomspace(curve.x[0], curve.x[-1], 300)
        axes.plot(x, fit.at(x), color=points[0].get_color(), linewidth=1)
    points.set_label(label)


if __name__ == "__main__":
    main()
