"""Time the backends on the same worlds, in one process, after a gate: equal bits after 64 steps, or no figures.

A step's time includes its share of sorting. The pattern has developed for 300 steps: agents on strands, not spread evenly. The bytes are
those that a step must move at least (24 an agent, 20 a cell), so that a backend that moves more has a smaller share of the roof, which is
what the machine itself copies. Launches and operations are those of a call of one step; random keys, which a run sends to the device once
in 1,024 steps, are among them. Needs torch and numpy alone, and matplotlib for --plot.
"""

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

import torch
from cold_start import in_new_processes
from harness import Results, Row, Work, aligned, at_least, copy_bandwidth, listed, parser, positive, run, save_picture, tell, timed
from worlds import PATTERN, add_world_options, backend, bytes_a_step, case_of, chosen_worlds, developed, gate, loaded, refusals, runnable

from physarum.model.state import State

COLUMNS = ["backend", "us a step", "p10", "p90", "p99", "mean", "M agent-steps/s", "speed-up", "launches", "operations"]
COLUMNS += ["GB/s", "of the roof", "peak MB", "cold start, s"]


def main() -> None:
    """Read the command line and compare."""
    made = parser(__doc__)
    add_world_options(made, "1024x1024", "1048576")
    made.add_argument("--backends", type=listed(backend), help="such as torch,compile [all that this machine can run]")
    made.add_argument("--steps", type=positive, default=64, help="timed together; 64 hold one sort of the agents [64]")
    made.add_argument("--cold-starts", type=at_least(0), default=1, help="new processes with empty caches, a backend; 0 for none [1]")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw a bar chart, .png or .svg")
    run(made, compare)


def compare(arguments: argparse.Namespace, kept: Results) -> None:
    """Gate, time and count all backends in all worlds."""
    chosen = chosen_worlds(arguments)
    runnable(arguments.backends, arguments.device)
    kept.head["copy_bytes_per_s"] = copy_bandwidth(arguments.device)
    for world_size, agents in chosen:
        compare_in_one_world(arguments, world_size, agents, kept)
    kept.count(arguments.device)
    print(table(kept))
    if arguments.plot:
        draw(kept, arguments.plot)


def compare_in_one_world(arguments: argparse.Namespace, world_size: tuple[int, int], agents: int, kept: Results) -> None:
    """Add the rows of one world."""
    device = arguments.device
    tell(f"{world_size[0]} x {world_size[1]} cells, {agents:,} agents on {kept.head['machine']['processor']}")
    cases, fitting = {}, []
    for name, reason in refusals(arguments.backends, device, world_size, agents).items():
        cases[name] = case_of(world_size, agents, backend=name, steps=arguments.steps)
        if reason:
            kept.not_run(cases[name], reason)
        else:
            fitting.append(name)
    if not fitting:
        return
    gate(fitting, device, world_size, agents)
    cold = {name: cold_starts(name, arguments, world_size, agents) for name in fitting}
    state = developed(fitting[-1], device, world_size, agents)
    times = time_steps(fitting, device, state, arguments.steps, arguments.trials)
    slowest = max(row["wall_us"]["median"] for row in times.values())
    for name in fitting:
        seconds, moved = times[name]["wall_us"]["median"] / 1e6, bytes_a_step(agents, world_size[0] * world_size[1])
        kept.add(
            cases[name],
            one_step(name, device, state),
            **times[name],
            agent_steps_per_s=agents / seconds,
            speed_up=slowest / times[name]["wall_us"]["median"],
            bytes_per_step=moved,
            bytes_per_s=moved / seconds,
            roof_share=moved / seconds / kept.head["copy_bytes_per_s"],
            **cold[name],
        )


def cold_starts(name: str, arguments: argparse.Namespace, world_size: tuple[int, int], agents: int) -> dict[str, Any]:
    """The seconds of the first step in new processes with empty caches, and the memory that the steps after it took at the peak."""
    if arguments.device.type == "cuda":
        torch.cuda.empty_cache()  # the new process needs room
    found = [in_new_processes(name, arguments.device, world_size, agents, 1)[0] for _ in range(arguments.cold_starts)]
    tell(f"{name} starts: " + (", ".join(f"{once.first_s:.2f} s" for once in found) or "not measured"))
    return {
        "cold_start_s": sorted(once.first_s for once in found) or None,
        "peak_bytes": max((once.peak_bytes for once in found if once.peak_bytes is not None), default=None),
    }


def time_steps(backends: list[str], device: torch.device, state: State, steps: int, trials: int) -> dict[str, Row]:
    """Microseconds a step, the backends taking turns."""
    running = {name: loaded(name, device, PATTERN, state) for name in backends}
    works = {name: lambda made=made: made.advance(steps) for name, made in running.items()}
    tell(f"timing {steps} steps {trials} times")
    found = timed(works, device, trials, calls=1, warm_up=1, units=steps)
    for made in running.values():
        made.close()
    return found


def one_step(name: str, device: torch.device, state: State) -> Work:
    """A step that neither sorts nor compiles."""
    made = loaded(name, device, PATTERN, state)
    made.advance(3)
    return lambda: made.advance(1)


def table(kept: Results) -> str:
    """The rows as text, by world."""
    parts = [f"copy roof {kept.head['copy_bytes_per_s'] / 1e9:.1f} GB/s"]
    worlds = dict.fromkeys((row["case"]["size"], row["case"]["agents"]) for row in kept.rows)
    for world_size, agents in worlds:
        rows = [row for row in kept.rows if (row["case"]["size"], row["case"]["agents"]) == (world_size, agents)]
        lines = aligned([COLUMNS, *(cells(row) for row in rows if row["status"] == "measured")])
        refused = [f"{row['case']['backend']} was not run: {row['why']}" for row in rows if row["status"] == "not run"]
        parts.append("\n".join([f"{world_size}, {agents:,} agents", lines, *refused]))
    return "\n\n".join(parts)


def cells(row: Row) -> list[str]:
    """A line of the table; what was not measured is a dash."""
    times = row["wall_us"]
    cold = row["cold_start_s"]
    return [
        row["case"]["backend"],
        *(f"{times[name]:,.1f}" for name in ("median", "p10", "p90", "p99", "mean")),
        f"{row['agent_steps_per_s'] / 1e6:,.1f}",
        f"{row['speed_up']:.2f}",
        *("-" if row[name] is None else str(row[name]) for name in ("host_launches", "device_operations")),
        f"{row['bytes_per_s'] / 1e9:.1f}",
        f"{row['roof_share']:.1%}",
        "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:,.0f}",
        "-" if cold is None else f"{statistics.median(cold):.3g}",
    ]


def draw(kept: Results, path: Path) -> None:
    """A bar a backend and world: agent-steps a second, from p90 to p10 of the time marked."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (only a picture needs it)

    rows = kept.measured()[::-1]
    rates = [row["agent_steps_per_s"] / 1e6 for row in rows]
    spans = [[row["case"]["agents"] / row["wall_us"][name] for name in ("p90", "p10")] for row in rows]
    spread = [[max(0.0, rate - low) for rate, (low, _) in zip(rates, spans, strict=True)]]
    spread.append([max(0.0, high - rate) for rate, (_, high) in zip(rates, spans, strict=True)])
    colours = dict(zip(dict.fromkeys(row["case"]["backend"] for row in reversed(rows)), ("#f2a65a", "#b5446e", "#432371"), strict=False))
    figure = Figure(figsize=(9, 1.2 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(rows)), rates, color=[colours[row["case"]["backend"]] for row in rows], xerr=spread, ecolor="0.35", capsize=3)
    axes.set_yticks(
        range(len(rows)), [f"{row['case']['size']}, {row['case']['agents']:,} agents   {row['case']['backend']}" for row in rows]
    )
    axes.set_xscale("log")
    for i, (row, rate, above) in enumerate(zip(rows, rates, spread[1], strict=True)):
        axes.annotate(
            f"{rate:,.1f}   {row['speed_up']:.1f}x", (rate + above, i), (6, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.margins(y=0.02)
    axes.set_xlim(10 ** math.floor(math.log10(min(rates))), max(rates) * (max(rates) / min(rates)) ** 0.2 * 2)
    axes.set_xlabel("million agent-steps a second (logarithmic), and how many times as fast as the slowest")
    axes.set_title(kept.head["machine"]["processor"], loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    save_picture(figure, path)


if __name__ == "__main__":
    main()
