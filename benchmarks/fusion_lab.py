"""Standard operators and the simulator's step, operator by operator and fused ever further: times, bandwidth, launches, roofs.

Each implementation is first compared with float64 (the step: with the bits of the model), extreme values included; one that is wrong ends
the run without figures. All times come first; launches are counted at the end, in one session of the profiler, which slows launches.

`python benchmarks/fusion_lab.py --json lab.jsonl --plot lab.png`. `--help` lists the options; `--plot` needs matplotlib.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from harness import Results, Row, aligned, choice, copy_bandwidth, listed, parser, run, tell
from lab import gelu, matmul, mlp, relu, softmax, step
from lab.settings import SCALES, Settings

Measure = Callable[[Settings, Results], None]

CASES: dict[str, Measure] = {
    "gelu": gelu.measure,
    "softmax": softmax.measure,
    "relu": relu.measure,
    "matmul": matmul.measure,
    "mlp": mlp.measure,
    "step": step.measure,
}
SMALLEST = 1e-3  # that is written without an exponent
MOST_NAMES = 6  # of cases that were not run for one reason; the results name all
LONGEST_NAME = 60  # of a kernel in a table; the results have all of it

# What a table shows of a row, as far as any of its rows has it; figures that are not named here follow under their own names.
COLUMNS: dict[str, Callable[[Row], str]] = {
    "events us": lambda row: number((row.get("events_us") or {}).get("median")),
    "wall us": lambda row: number((row.get("wall_us") or {}).get("median")),
    "GB/s": lambda row: number(row.get("bytes_per_s"), 1e9),
    "of copy": lambda row: percent(row.get("roof_share")),
    "TFLOP/s": lambda row: number(row.get("flop_per_s"), 1e12),
    "of best": lambda row: percent(row.get("share_of_best")),
    "launches": lambda row: number(row.get("host_launches")),
    "on device": lambda row: number(row.get("device_operations")),
    "kernel": lambda row: kernel(row) if "precision" in row["case"] else "",
}
IN_COLUMNS = ("events_us", "wall_us", "bytes_per_s", "roof_share", "flop_per_s", "share_of_best", "host_launches")
UNNAMED = ("case", "status", "calls", "l2", "bytes", "error_bound", "device_operations", "kernels")  # of no use in a table, or in a column


def main() -> None:
    """Read the command line and measure."""
    made = parser(__doc__)
    made.add_argument("--cases", type=listed(choice("case", CASES)), default=list(CASES), help=f"what to measure [{','.join(CASES)}]")
    made.add_argument("--scale", choices=SCALES, help="how large [full on a GPU, small on a CPU]")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw the ladders, bandwidth by size and matrix products")
    run(made, measure)


def measure(arguments: argparse.Namespace, kept: Results) -> None:
    """Measure what was asked for, count launches, print the tables and draw.

    Raises:
        RunError: An implementation is wrong.
    """
    device = arguments.device
    if device.type == "cuda":
        torch.cuda.set_device(device)  # Triton and NVRTC launch on the current one
    bandwidth = copy_bandwidth(device)
    kept.head["copy_bytes_per_s"] = bandwidth
    tell(f"a copy moves {bandwidth / 1e9:,.0f} GB/s")
    settings = Settings(device, arguments.trials, arguments.scale or ("full" if device.type == "cuda" else "small"), bandwidth)
    kept.head["scale"] = settings.scale
    for name in dict.fromkeys(arguments.cases):
        CASES[name](settings, kept)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    kept.count(device)
    for name in dict.fromkeys(table_name(row) for row in kept.rows):
        print(report(name, [row for row in kept.rows if table_name(row) == name]))
    if arguments.plot:
        from lab.drawing import draw  # noqa: PLC0415 (it needs matplotlib)

        draw(kept.measured(), bandwidth, arguments.plot)


def table_name(row: Row) -> str:
    """The table that a row stands in."""
    return ", ".join(row["case"][name] for name in ("operator", "part") if name in row["case"])


def report(name: str, rows: Sequence[Row]) -> str:
    """A table of what was measured, and below it what was not, by reason."""
    measured = [row for row in rows if row["status"] == "measured"]
    named = {title: [cell(row) for row in measured] for title, cell in COLUMNS.items()}
    others = dict.fromkeys(figure for row in measured for figure in row if figure not in (*IN_COLUMNS, *UNNAMED))
    named |= {figure.replace("_", " "): [value(row.get(figure)) for row in measured] for figure in others}
    columns = {title: cells for title, cells in named.items() if any(cells)}
    table = [[name, *columns]]
    table += [[case_name(row), *cells] for row, *cells in zip(measured, *columns.values(), strict=True)]
    lines = [aligned(table)] if measured else [name]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["status"] == "not run":
            reasons.setdefault(row["why"], []).append(case_name(row))
    for why, cases in reasons.items():
        more = f"; and {len(cases) - MOST_NAMES} more" if len(cases) > MOST_NAMES else ""
        lines.append(f"not run, since {why}: {'; '.join(cases[:MOST_NAMES])}{more}")
    return "\n".join([*lines, ""])


def case_name(row: Row) -> str:
    """What tells a row from others of its table."""
    named = {name: value for name, value in row["case"].items() if name not in ("operator", "part")}
    return ", ".join(value if isinstance(value, str) else f"{name.replace('_', ' ')} {value:,}" for name, value in named.items())


def kernel(row: Row) -> str:
    """The first kernel that a row launched, shortened, and how many more launches of kernels there were."""
    kernels = row.get("kernels") or {"": 1}
    first, more = next(iter(kernels)), sum(kernels.values()) - 1
    short = first if len(first) <= LONGEST_NAME else first[: LONGEST_NAME - 1] + "…"
    return f"{short} + {more}" if more else short


def number(figure: float | None, unit: float = 1) -> str:
    """A whole number as it is, another with three digits that count, or more before the point; tiny ones with an exponent."""
    if figure is None:
        return ""
    if isinstance(figure, int) and unit == 1:
        return f"{figure:,}"
    scaled = figure / unit
    if scaled and abs(scaled) < SMALLEST:
        return f"{scaled:.2e}"
    digits = max(0, 2 - math.floor(math.log10(abs(scaled)))) if scaled else 0
    return f"{scaled:,.{digits}f}"


def percent(share: float | None) -> str:
    """A share of something."""
    return "" if share is None else f"{share:.0%}"


def value(figure: Any) -> str:
    """A figure of any kind."""
    if isinstance(figure, dict):
        return " ".join(f"{name} {count}" for name, count in figure.items())
    return number(figure) if isinstance(figure, int | float) else ""


if __name__ == "__main__":
    main()
