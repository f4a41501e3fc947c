"""What a trace says about the implementations in it, and whether it can be believed."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from physarum import labels
from physarum.errors import RunError
from physarum.files import shown
from physarum.profiling.reader import Count, Step, Trace

COSTLIEST = 10  # operators and kernels that are shown


@dataclass(frozen=True)
class Implementation:
    """One implementation's steps: the first, and the median of the later ones, which have no cold start; of a single step, itself.

    Attributes:
        name: Of the label around its steps, such as "triton" or "compile, whole step".
        steps: How many there are.
        first: The first step.
        whole: A later step.
        stages: A later step by stage.
        odd: Whether `whole` includes what steps do now and then (sort, reset), since no later step is without.
        uneven: Whether later steps that do not do such things differ in what they launch.
    """

    name: str
    steps: int
    first: Step
    whole: Count
    stages: dict[str, Count]
    odd: bool
    uneven: bool


def implementations(trace: Trace) -> list[Implementation]:
    """The implementations in a trace, in order of time."""
    found: dict[str, list[Step]] = {}
    for step in trace.steps:
        found.setdefault(step.implementation, []).append(step)
    return [_implementation(name, steps) for name, steps in found.items()]


def check(trace: Trace, kernels_a_step: Mapping[str, int], alike: bool = False) -> None:
    """See that a trace of a GPU has lost nothing: profilers drop records silently.

    Args:
        trace: The whole session.
        kernels_a_step: Of the implementations whose kernels are known beforehand, sort and reset aside.
        alike: Nothing was changed between steps, so that the later ones of an implementation must launch the same.

    Raises:
        RunError: A launch has no kernel, a step does not have the known number, or later steps differ that should not.
    """
    if trace.steps and not trace.total.kernels:
        raise RunError("the profiler saw nothing of the GPU: another profiler may be attached, or this user may not profile")
    if trace.unmatched:
        raise RunError(f"the profiler lost records: {trace.unmatched} launches and copies have no operation on the device; trace again")
    for step in trace.steps:
        kernels = step.whole.kernels - sum(step.stages[stage].kernels for stage in labels.NOW_AND_THEN if stage in step.stages)
        expected = kernels_a_step.get(step.implementation.removesuffix(labels.WHOLE_STEP), kernels)
        if kernels != expected:
            raise RunError(
                f"the profiler lost records: it saw {kernels} kernels in step {step.number} of {step.implementation}, "
                f"which has {expected}; trace again"
            )
    uneven = [made.name for made in implementations(trace) if made.uneven]
    if alike and uneven:
        raise RunError(f"the profiler lost records: later steps of {uneven[0]} differ in what they launch; trace again")


def as_table(trace: Trace) -> str:
    """The report as plain text."""
    on_gpu = trace.total.device_operations > 0
    made = implementations(trace)
    later = any(one.steps > 1 for one in made)
    parts = [_counts_table(made, on_gpu, later), _total(trace, on_gpu)]
    if later:
        parts.append(_first_steps_table(made))
    parts.append(_costs_table(trace, on_gpu, later))
    if not on_gpu:
        parts.insert(
            0, "no GPU in this trace: operators are counted instead of launches (compiled kernels are none), and time is the host's"
        )
    return "\n\n".join(part for part in parts if part)


def as_json(trace: Trace) -> dict[str, Any]:
    """The report in JSON's types; times in microseconds."""
    return {
        **asdict(trace.total),
        "steps": len(trace.steps),
        "per_stage": _launches_by_stage(trace.steps),
        "unmatched": trace.unmatched,
        "implementations": [
            {
                "name": made.name,
                "steps": made.steps,
                "first_step": {"host_time": made.first.whole.host_time, "parts": made.first.parts},
                "step": asdict(made.whole),
                "stages": {stage: asdict(count) for stage, count in made.stages.items()},
            }
            for made in implementations(trace)
        ],
        "costliest": [cost._asdict() for cost in trace.costliest(COSTLIEST)],
    }


def _implementation(name: str, steps: list[Step]) -> Implementation:
    later = steps[1:] or steps
    without = [step.whole for step in later if not step.stages.keys() & set(labels.NOW_AND_THEN)]
    regular = without or [step.whole for step in later]
    stages = {stage: [step.stages[stage] for step in later if stage in step.stages] for step in later for stage in step.stages}
    launched = {(count.host_launches, count.kernels, count.device_operations) for count in regular}
    return Implementation(
        name=name,
        steps=len(steps),
        first=steps[0],
        whole=_median(regular),
        stages={stage: _median(counts) for stage, counts in stages.items()},
        odd=not without,
        uneven=len(launched) > 1,
    )


def _median(counts: list[Count]) -> Count:
    fields = [asdict(count) for count in counts]
    middle = {name: median(field[name] for field in fields) for name in fields[0]}
    return Count(**{name: value if name.endswith("time") else round(value) for name, value in middle.items()})


def _launches_by_stage(steps: Iterable[Step]) -> dict[str, int]:
    launches: dict[str, int] = {}
    for step in steps:
        for stage, count in step.stages.items():
            launches[stage] = launches.get(stage, 0) + count.host_launches
    return launches


def _counts_table(made: list[Implementation], on_gpu: bool, later: bool) -> str:
    which = "median of the later ones" if later else "the only one, with its cold start"
    rows = [[f"a step ({which})", *(["launches", "device ops", "device us"] if on_gpu else ["operators"]), "host us"]]

    def row(name: str, count: Count) -> None:
        counted = [f"{count.host_launches}", f"{count.device_operations}", f"{count.device_time:.1f}"] if on_gpu else [f"{count.operators}"]
        rows.append([name, *counted, f"{count.host_time:.1f}"])

    for implementation in made:
        row(shown(implementation.name) or "steps", implementation.whole)
        for stage, count in implementation.stages.items():
            row(f"  {stage}{' (now and then)' if stage in labels.NOW_AND_THEN and not implementation.odd else ''}", count)
    return aligned(rows) if made else "no steps in this trace"


def _total(trace: Trace, on_gpu: bool) -> str:
    total = trace.total
    if not on_gpu:
        return f"the whole trace: {total.operators} operators"
    counted = f"{total.host_launches} host launches, {total.graph_launches} of them of graphs, {total.device_operations} device operations"
    lost = f"; {trace.unmatched} launches or copies have no operation on the device: the profiler lost records, or a graph was captured"
    return f"the whole trace: {counted}{lost if trace.unmatched else ''}"


def _first_steps_table(made: list[Implementation]) -> str:
    parts = [part for part in made[0].first.parts if any(one.first.parts[part] for one in made)]
    signs = [f"{'=' if i == 0 else '+'} {part}" for i, part in enumerate(parts)]
    rows = [["cold start, host ms", "later step", "first step", *signs]]
    for implementation in made:
        first = implementation.first
        times = [implementation.whole.host_time, first.whole.host_time, *(first.parts[part] for part in parts)]
        rows.append([shown(implementation.name) or "steps", *(f"{time / 1000:.2f}" for time in times)])
    return aligned(rows)


def _costs_table(trace: Trace, on_gpu: bool, later: bool) -> str:
    whole = sum(cost.time_us for cost in trace.costs)
    rows = [[f"costliest on the {'device' if on_gpu else 'host'}{', later steps' if later else ''}", "in", "calls", "us", "share"]]
    for cost in trace.costliest(COSTLIEST):
        name = shown(cost.name)
        name = name if len(name) <= 60 else f"{name[:57]}..."
        share = cost.time_us / whole if whole else 0.0
        rows.append([name, shown(cost.implementation) or "-", f"{cost.calls}", f"{cost.time_us:.1f}", f"{share:.1%}"])
    return aligned(rows, left=2) if len(rows) > 1 else ""


def aligned(rows: list[list[str]], left: int = 1) -> str:
    """Columns of text: the first `left` flush left, the others flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))) for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
