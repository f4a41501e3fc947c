"""Put what was measured into the pages: `python benchmarks/figures.py` writes it, and `--check` only tells whether it stands there.

On a page a figure stands between two comments, which nobody sees,

    takes <!-- figure ratio torch triton 1024x1024 -->28.1<!-- /figure --> times as long,

and the words of the first say where it comes from: the name of a function in FIGURES and its arguments. Nothing is ever typed in.
"""

import argparse
import functools
import json
import math
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Results, Row, clock, read_results
from published import CLAIMED_OPERATIONS, CLAIMED_US, PYTORCH, TRITON

from physarum.backends import BACKENDS
from physarum.errors import UsageError

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGES = (HERE.parent / "README.md", HERE / "README.md", HERE / "PROFILERS.md")
MARK = re.compile(r"<!-- figure (.+?) -->(.*?)<!-- /figure -->", re.DOTALL)

FIGURES: dict[str, Callable[..., str]] = {}


def figure(function: Callable[..., str]) -> Callable[..., str]:
    """Let pages use a function under its own name."""
    FIGURES[function.__name__] = function
    return function


def main() -> None:
    """Fill in all pages, or check them."""
    made = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    made.add_argument("--check", action="store_true", help="change nothing; exit with 1 where a page is not as it should be")
    arguments = made.parse_args()
    stale = {page: text for page in PAGES if (text := filled(page.read_text())) != page.read_text()}
    for page, text in stale.items():
        print(f"{page} {'is not' if arguments.check else 'is now'} what was measured")
        if not arguments.check:
            page.write_text(text)
    sys.exit(1 if stale and arguments.check else 0)


def filled(page: str) -> str:
    """A page with all figures as the results have them.

    Raises:
        UsageError: A figure is not to be had.
    """

    def value(found: re.Match[str]) -> str:
        name, *words = shlex.split(found[1])
        if name not in FIGURES:
            raise UsageError(f"there is no figure {name!r}")
        try:
            text = FIGURES[name](*words)
        except (KeyError, LookupError, TypeError, ValueError) as error:
            raise UsageError(f"the figure {found[1]!r} is not to be had: {error}") from error
        text = f"\n\n{text}\n\n" if "\n" in text else text  # a table needs lines of its own
        return f"<!-- figure {found[1]} -->{text}<!-- /figure -->"

    return MARK.sub(value, page)


@functools.cache
def results(name: str) -> Results:
    """A file of results, by its name without the suffix."""
    return read_results(RESULTS / f"{name}.jsonl")


@functools.cache
def report(name: str) -> Any:
    """A report in JSON that something else than a benchmark wrote, by its name without the suffix."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def row(name: str, **case: Any) -> Row:
    """The row of a file that has all of a case.

    Raises:
        LookupError: There is none, or more than one.
    """
    found = [one for one in results(name).rows if one["case"].items() >= case.items()]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows of {name} have {case}")
    return found[0]


def markdown(table: list[list[str]]) -> str:
    """A table, of which the first row is the head."""
    head, *body = ["| " + " | ".join(line) + " |" for line in table]
    return "\n".join([head, "|---" * len(table[0]) + "|", *body])


def short(value: float) -> str:
    """Three digits that count, or all before the point."""
    rounded = float(f"{value:.3g}")
    digits = max(0, 2 - math.floor(math.log10(abs(rounded)))) if rounded else 0
    return f"{value:,.{digits}f}"


@figure
def rate_table() -> str:
    """Million agent-steps a second by world and machine."""
    table = [["world", "machine", *(f"`{name}`" for name in BACKENDS)]]
    for machine in ("cpu", "h200"):
        head, rows = results(f"{machine}-backends").head["machine"], results(f"{machine}-backends").measured()
        where = f"{head['processor']}, torch {head['torch'].partition('+')[0]}"
        where = f"{head['threads']} cores of {where}" if machine == "cpu" else f"{where}, Triton {head['triton']}"
        for size, agents in dict.fromkeys((one["case"]["size"], one["case"]["agents"]) for one in rows):
            rates = {one["case"]["backend"]: one["agent_steps_per_s"] for one in rows if one["case"]["size"] == size}
            cells = [short(rates[name] / 1e6) if name in rates else "not run" for name in BACKENDS]
            table.append([f"{size.replace('x', ' x ')}, {agents:,} agents", where, *cells])
    return markdown(table)


@figure
def step_table() -> str:
    """Microseconds a step on the H200, with p10 and p90, and ratios."""
    table = [["us a step (p10 to p90)", *(f"`{name}`" for name in BACKENDS), "`torch` / `compile`", "`compile` / `triton`"]]
    rows = results("h200-backends").measured()
    for size, agents in dict.fromkeys((one["case"]["size"], one["case"]["agents"]) for one in rows):
        times = [spread(row("h200-backends", backend=name, size=size)["wall_us"]) for name in BACKENDS]
        ratios = [ratio("torch", "compile", size), ratio("compile", "triton", size)]
        table.append([f"{size.replace('x', ' x ')}, {agents:,} agents", *times, *ratios])
    return markdown(table)


def spread(times: Row) -> str:
    """A median with its p10 and p90."""
    return f"{short(times['median'])} ({short(times['p10'])} to {short(times['p90'])})"


@figure
def roof_share(backend: str, size: str) -> str:
    """The bytes that a step must move a second, as a share of those that a copy moves."""
    return f"{row('h200-backends', backend=backend, size=size)['roof_share']:.0%}"


def step_us(backend: str, size: str) -> float:
    """Microseconds a step, by the host's clock."""
    return float(row("h200-backends", backend=backend, size=size)["wall_us"]["median"])


@figure
def ratio(slow: str, fast: str, size: str) -> str:
    """How many times as long one backend takes as another."""
    return short(step_us(slow, size) / step_us(fast, size))


@figure
def taken_away(backend: str, size: str) -> str:
    """The share of an eager step that another backend does not need."""
    return f"{1 - step_us(backend, size) / step_us('torch', size):.0%}"


@figure
def cold_start(backend: str, caches: str) -> str:
    """Seconds of the first step in a new process."""
    return short(first_step_s(backend, caches))


def first_step_s(backend: str, caches: str) -> float:
    """Seconds of the first step in a new process, the median."""
    return float(row("h200-cold-start", backend=backend, caches=caches)["wall_us"]["median"]) / 1e6


@figure
def repaid(backend: str, caches: str) -> str:
    """Steps at 400 x 400 after which a first step has been worth while, to two digits."""
    first = 1e6 * (first_step_s(backend, caches) - first_step_s("torch", caches))
    later = [row("h200-cold-start", backend=name, caches=caches)["later_us"]["median"] for name in ("torch", backend)]
    return f"{float(f'{first / (later[0] - later[1]):.2g}'):,.0f}"


@figure
def reading(when: str, size: str) -> str:
    """Milliseconds that a clock says, `returned` when Python goes on and `done` when the device is."""
    return short(row("h200-clock", size=size)["returned_us" if when == "returned" else "wall_us"]["median"] / 1000)


def implementation(size: str, name: str) -> Any:
    """One implementation in the report on a trace."""
    return next(one for one in report(f"h200-trace-{size}")["implementations"] if one["name"] == name)


def titled(name: str) -> str:
    """An implementation as pages call it."""
    return {"compile": "`compile`, stage by stage", "compile, whole step": "`compile`, whole step"}.get(name, f"`{name}`")


@figure
def first_steps(size: str) -> str:
    """Milliseconds of a later and of the first step, and what the first went into."""
    parts = ("module loading", "allocation", "compilation", "launching", "rest")
    table = [["", "later step", "first step", "= loading of modules", "+ allocation", "+ compilation", "+ launching", "+ rest"]]
    for one in report(f"h200-trace-{size}")["implementations"]:
        first = one["first_step"]
        times = [one["step"]["host_time"], first["host_time"], *(first["parts"][part] for part in parts)]
        table.append([titled(one["name"]), *(short(time / 1000) if time >= 50 else "" for time in times)])
    return markdown(table)


@figure
def first_step_ms(name: str, size: str) -> str:
    """Milliseconds that the first step takes beyond a later one."""
    one = implementation(size, name)
    return short((one["first_step"]["host_time"] - one["step"]["host_time"]) / 1000)


@figure
def compilation_s(name: str, size: str) -> str:
    """Seconds for which the first step compiles."""
    return short(implementation(size, name)["first_step"]["parts"]["compilation"] / 1e6)


@figure
def trace_table(size: str) -> str:
    """Launches and times of a later step."""
    table = [["", "host launches", "device operations", "device, us", "host, us"]]
    for one in report(f"h200-trace-{size}")["implementations"]:
        step = one["step"]
        counts = [str(step[name]) for name in ("host_launches", "device_operations")]
        table.append([titled(one["name"]), *counts, short(step["device_time"]), short(step["host_time"])])
    return markdown(table)


def published_times(model: str) -> Row:
    """The row of a published step in the published world."""
    return row("h200-published", part="times", model=model, size="400x400")


@figure
def launches_table() -> str:
    """Launches and operations of a step beside those that were published."""
    published = {name: published_times(name) for name in (PYTORCH, TRITON)}
    table = [["", "launches from the host", "operations on the device"]]
    table += [[f"{name} (its own count)", "", str(operations)] for name, operations in CLAIMED_OPERATIONS.items()]
    for name, one in published.items():
        table.append([f"{name}, written anew", str(one["host_launches"]), str(one["device_operations"])])
    for backend in BACKENDS:
        one = row("h200-backends", backend=backend, size="400x400")
        table.append([f"`{backend}`", str(one["host_launches"]), str(one["device_operations"])])
    return markdown(table)


@figure
def busy(name: str, size: str) -> str:
    """The share of a step under the profiler for which the device works."""
    step = implementation(size, name)["step"]
    return f"{step['device_time'] / step['host_time']:.0%}"


@figure
def whole_us(name: str, size: str) -> str:
    """Microseconds that the device works in a step under the profiler."""
    return short(implementation(size, name)["step"]["device_time"])


@figure
def stage_us(name: str, stage: str, size: str) -> str:
    """Those of a stage."""
    return short(implementation(size, name)["stages"][stage]["device_time"])


SWEEPS = {
    "published-steps": "50 to 1,050 steps, 400 x 400, 5,000 agents",
    "published-side": "side 50 to 600, 5,000 agents",
    "published-agents": "500 to 5,000 agents, 200 x 200",
    "wide-side": "side 64 to 16,384, 5,000 agents",
    "wide-agents": "1,024 to 268 M agents, 4096 x 4096",
    "wide-both": "side 64 to 16,384, an agent a cell",
}


@figure
def scaling_table() -> str:
    """The best curve through each sweep, and what it says."""
    table = [["sweep", "AICc prefers", "b, 95 %", "c, us, 95 %", "what grows is the larger part from"]]
    for sweep, name in SWEEPS.items():
        table.append([name, *fit_cells(sweep=sweep, backend="triton")])
    for residuals in ("absolute", "relative"):
        table.append(
            [f"the published points of the side, {residuals} residuals", *fit_cells(sweep="published figure", residuals=residuals)]
        )
    return markdown(table)


def fit_cells(**case: Any) -> list[str]:
    """Formula, exponent, constant and crossing of the best fit."""
    fits = [one for one in results("h200-scaling").rows if one["case"].items() >= case.items() and "fit" in one["case"]]
    best, second = sorted(fits, key=lambda one: float(one["aicc"]))[:2]
    rival = f", {second['formula']} within {second['aicc'] - best['aicc']:.1f}" if second["aicc"] - best["aicc"] < 2 else ""
    b = f"{best['b']:.2f} ({ends(best['b_interval'])})" if best["b_interval"] else "1" if best["b"] else ""
    crossing = short(best["crossing"]) if best["crossing"] else ""
    return [f"{best['formula']}{rival}", b, f"{short(best['c'])} ({ends(best['c_interval'])})", crossing]


def ends(interval: list[float | None]) -> str:
    """An interval, of which an end may be open."""
    return " to ".join("open" if end is None else short(end) for end in interval)


@figure
def exponent(residuals: str) -> str:
    """b in a x^b + c through the published points, with its interval."""
    fit = row("h200-scaling", sweep="published figure", residuals=residuals, fit="power")
    return f"{fit['b']:.2f} (95 % {ends(fit['b_interval'])})"


@figure
def flat(sweep: str) -> str:
    """The largest distance of a point of a sweep from a constant."""
    return f"{row('h200-scaling', sweep=sweep, backend='triton', fit='constant')['worst']:.1%}"


@figure
def slope(sweep: str) -> str:
    """The exponent between the sides 8192 and 16384."""
    times = [
        row("h200-scaling", sweep=sweep, backend="triton", size=f"{side}x{side}", steps=64)["us_a_step"]["median"] for side in (8192, 16384)
    ]
    return f"{math.log2(times[1] / times[0]):.2f}"


@figure
def agents_us(agents: str) -> str:
    """Microseconds a step with so many agents on 4096 x 4096 cells."""
    return short(row("h200-scaling", sweep="wide-agents", backend="triton", agents=int(agents), steps=64)["us_a_step"]["median"])


@figure
def published_table() -> str:
    """Microseconds and launches of the published steps, and of ours, in two worlds."""
    rows = [one for one in results("h200-published").measured() if one["case"]["part"] == "times"]
    worlds = dict.fromkeys((one["case"]["size"], one["case"]["agents"]) for one in rows)
    heads = [f"{size.replace('x', ' x ')}, {agents:,} agents, us" for size, agents in worlds]
    table = [["", f"operations on the device ({next(iter(worlds))[0].replace('x', ' x ')})", *heads]]
    for model in dict.fromkeys(one["case"]["model"] for one in rows):
        own = {one["case"]["size"]: one for one in rows if one["case"]["model"] == model}
        times = [short(own[size]["wall_us"]["median"]) for size, _ in worlds]
        name = model if "cured" not in model else f"the same, {model}" if model != "all cured" else "the same, all of these cured"
        table.append([name, str(next(iter(own.values()))["device_operations"]), *times])
    return markdown(table)


@figure
def published_operations() -> str:
    """Operations on the device of a step of the published PyTorch version."""
    return str(published_times(PYTORCH)["device_operations"])


@figure
def published_pattern(model: str, figure: str) -> str:
    """A share in the pattern of a model."""
    return f"{row('h200-published', part='patterns', model=model)[figure]:.1%}"


def drawing_us(model: str, drawing: str) -> float:
    """Microseconds of a step of the published comparison, `none` or `every` one drawn."""
    told = {"none": "none", "every": "every step"}[drawing]
    return float(row("h200-published", part="drawing", model=model, drawing=told)["wall_us"]["median"])


@figure
def drawing_table() -> str:
    """Microseconds of a step with and without drawing."""
    table = [["us a step, four steps a call", "without drawing", "every step drawn"]]
    for model in (PYTORCH, TRITON, "physarum, triton"):
        table.append([model, *(short(drawing_us(model, drawing)) for drawing in ("none", "every"))])
    return markdown(table)


@figure
def drawing_ratio(pytorch: str, triton: str) -> str:
    """The published factor as measured here, by what is drawn on each side."""
    return short(drawing_us(PYTORCH, pytorch) / drawing_us(TRITON, triton))


@figure
def drawn_ms(model: str) -> str:
    """Milliseconds that drawing a step takes."""
    return short((drawing_us(model, "every") - drawing_us(model, "none")) / 1000)


@figure
def claimed_ratio() -> str:
    """How many times as long the published step in PyTorch took as ours of it, without drawing."""
    return short(CLAIMED_US[PYTORCH] / published_times(PYTORCH)["wall_us"]["median"])


@figure
def published_ratio() -> str:
    """PyTorch over Triton without drawing."""
    pytorch, triton = (published_times(name)["wall_us"] for name in (PYTORCH, TRITON))
    return short(pytorch["median"] / triton["median"])


@figure
def published_spread() -> str:
    """Its spread, p10 over p90 to p90 over p10."""
    pytorch, triton = (published_times(name)["wall_us"] for name in (PYTORCH, TRITON))
    return f"{short(pytorch['p10'] / triton['p90'])} to {short(pytorch['p90'] / triton['p10'])}"


def lab(**case: Any) -> Row:
    """A row of the lab."""
    return row("h200-fusion-lab", **case)


@figure
def copy_ms(side: str) -> str:
    """Milliseconds to copy a square of float32 numbers."""
    return short(8e3 * int(side) ** 2 / results("h200-fusion-lab").head["copy_bytes_per_s"])


@figure
def ladder_table() -> str:
    """GELU and softmax, operator by operator and fused, at the published size."""
    rows = {}
    for operator in ("gelu", "softmax"):
        case = {"operator": operator, "size": "16384x16384", "type": "float32", "l2": "cold"}  # so that no launch is waited for
        found = [one for one in results("h200-fusion-lab").measured() if one["case"].items() >= case.items()]
        rows[operator] = {one["case"]["implementation"].replace(f"torch's {operator}", "torch"): one for one in found}
    table = [["", "GELU", "launches", "softmax", "launches"]]
    for name in dict.fromkeys([*rows["gelu"], *rows["softmax"]]):
        cells = []
        for operator in ("gelu", "softmax"):
            one = rows[operator].get(name)
            cells += [short(clock(one)["median"] / 1000), str(one["host_launches"])] if one else ["", ""]
        table.append([name, *cells])
    return markdown(table)


@figure
def of_a_copy(operator: str, implementation: str) -> str:
    """The share of the bandwidth of a copy that an implementation reaches at the published size."""
    found = lab(operator=operator, size="16384x16384", type="float32", l2="cold", implementation=implementation)
    return f"{found['roof_share']:.0%}"


@figure
def relu_us(implementation: str) -> str:
    """Microseconds of the smallest ReLU."""
    name = {"torch": "torch's relu"}.get(implementation, implementation)
    return short(clock(lab(operator="relu", input_bytes=1024, implementation=name, l2="warm"))["median"])


@figure
def mlp_ms(implementation: str) -> str:
    """Milliseconds of the published MLP."""
    return short(clock(lab(operator="mlp", depth=64, implementation=implementation))["median"] / 1000)


@figure
def instructions_table() -> str:
    """What fast instructions buy in the step."""
    table = [["direction of a heading", "instructions", "registers", "sense + motor, us", "whole step, us", "largest error of a direction"]]
    for name in ("polynomial", "polynomial with FMA", "libm", "approximate", "approximate with FMA"):
        code = lab(operator="step", part="machine code", implementation=name, kernel="sense+motor")
        times = [short(clock(lab(operator="step", part=part, implementation=name))["median"]) for part in ("sense+motor", "whole step")]
        error = lab(operator="step", part="direction", implementation=name)["greatest_error"]
        named = "polynomial (ours)" if name == "polynomial" else name
        table.append([named, str(code["instructions"]), str(code["registers"]), *times, f"{error:.1e}"])
    return markdown(table)


@figure
def step_gain(variant: str) -> str:
    """How much shorter a whole step is with other arithmetic."""
    ours, other = (clock(lab(operator="step", part="whole step", implementation=name))["median"] for name in ("polynomial", variant))
    return f"{1 - other / ours:.0%}"


@figure
def differing(variant: str, steps: str) -> str:
    """The share of agents that stand elsewhere with other arithmetic."""
    name = {"fma": "polynomial with FMA"}[variant]
    one = lab(operator="step", part="differing bits", implementation=name, steps=int(steps))
    return f"{one['agents_differing'] / one['case']['agents']:.1%}"


@figure
def kernels_table() -> str:
    """The default and the fastest configuration of each kernel in the largest world."""
    rows = [one for one in results("h200-kernels").measured() if one["case"]["size"] == "8192x8192"]
    table = [["kernel", "block", "warps", "registers", "spilled", "occupancy", "us", "GB/s", "of a copy"]]
    for one in rows:
        if one["default"] or one["best"]:
            case, code = one["case"], one["code"]
            name = case["kernel"] + " (default)" * one["default"]
            taken = [str(code["registers"]), str(code["stack"] + code["local"]), f"{code['occupancy']:.0%}"]
            speed = [short(clock(one)["median"]), short(one["bytes_per_s"] / 1e9), f"{one['times']['roof_share']:.0%}"]
            table.append([name, case["block"], str(case["warps"]), *taken, *speed])
    return markdown(table)


@figure
def counters(kernel: str) -> str:
    """What Nsight Compute counted of a kernel."""
    found = next(one["counters"] for one in results("h200-kernels").rows if "counters" in one and one["case"]["kernel"] == kernel)
    waits, cycles = found["stalls"][0]
    return (
        f"{kernel} keeps memory busy for {found['dram']:.0f} %, L2 for {found['l2']:.0f} %, and issues instructions in "
        f"{found['issue']:.0f} % of the cycles; for each, warps spend {cycles:.1f} cycles waiting for {waits}."
    )


@figure
def configurations() -> str:
    """How many configurations the report tries in a world."""
    return str(sum(one["case"]["size"] == "8192x8192" for one in results("h200-kernels").measured()))


@figure
def gain(kernel: str) -> str:
    """How much faster than the default the best configuration of a kernel is in the largest world."""
    rows = [one for one in results("h200-kernels").measured() if one["case"]["size"] == "8192x8192" and one["case"]["kernel"] == kernel]
    default, best = (next(clock(one)["median"] for one in rows if one[mark]) for mark in ("default", "best"))
    return f"{1 - best / default:.0%}"


@figure
def autotuning() -> str:
    """What Triton printed."""
    return f"```\n{(RESULTS / 'h200-autotuning.txt').read_text().rstrip()}\n```"


@figure
def exact_runs() -> str:
    """How often implementations reached the committed sums."""
    found = [one for case in report("h200-exact")["cases"].values() for one in case["implementations"].values()]
    if any(one["differing_bits"] for one in found):
        raise ValueError("bits differ")
    return str(len(found))


@figure
def peak_bytes(backend: str, of: str) -> str:
    """Bytes an agent or a cell at the peak."""
    return str(getattr(BACKENDS[backend], f"bytes_per_{of}"))


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(f"figures.py: error: {error}")
