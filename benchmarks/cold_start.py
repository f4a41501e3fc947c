"""Time the first step of each backend in new processes, with the compilers' caches empty and then warm, beside a later step.

A first step includes what it imports, compiles, loads and allocates; PyTorch is imported and the device used before.
A later step is timed by itself, waiting included, so it takes longer than in compare_backends.py. Needs torch and numpy alone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from harness import Results, Timing, aligned, listed, parser, run, synchronize, tell
from worlds import add_world_options, backend, case_of, chosen_worlds, gate, refusals, runnable

from physarum import Simulation, World
from physarum.errors import RunError

LATER = 70  # steps after the first that are timed, each by itself; among them is one that sorts


class Once(NamedTuple):
    """What a new process measured.

    Attributes:
        first_s: Seconds of the first step.
        later_s: Seconds of a later one, the median.
        peak_bytes: Of a GPU's memory, by PyTorch's own account; None on a CPU.
    """

    first_s: float
    later_s: float
    peak_bytes: int | None


def main() -> None:
    """Read the command line and time, or be the new process that is timed."""
    made = parser(__doc__, times=3)
    add_world_options(made, "400x400", "5000")
    made.add_argument("--backends", type=listed(backend), help="such as torch,compile [all that this machine can run]")
    made.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    run(made, start_all)


def start_all(arguments: argparse.Namespace, kept: Results) -> None:
    """Start every backend in every world, with caches empty and warm."""
    chosen, device = chosen_worlds(arguments), arguments.device
    backends = runnable(arguments.backends, device)
    if arguments.once:
        print(json.dumps(once(backends[0], device, *chosen[0])))
        return
    for world_size, agents in chosen:
        reasons = refusals(arguments.backends, device, world_size, agents)
        fitting = [name for name, reason in reasons.items() if not reason]
        if fitting:
            gate(fitting, device, world_size, agents)
        for name, reason in reasons.items():
            if reason:
                kept.not_run(case_of(world_size, agents, backend=name), reason)
                continue
            tell(f"{name}, {arguments.trials} times with empty caches and with warm ones")
            pairs = [in_new_processes(name, device, world_size, agents, 2) for _ in range(arguments.trials)]
            for caches, found in zip(("empty", "warm"), zip(*pairs, strict=True), strict=True):
                kept.add(
                    case_of(world_size, agents, backend=name, caches=caches),
                    wall_us=Timing(tuple(one.first_s * 1e6 for one in found)).figures(),
                    later_us=Timing(tuple(one.later_s * 1e6 for one in found)).figures(),
                    peak_bytes=found[0].peak_bytes,
                )
    print(table(kept))


def table(kept: Results) -> str:
    """The rows as text."""
    lines = [["size", "agents", "backend", "caches", "first step, s", "lowest", "highest", "later step, ms"]]
    for row in kept.measured():
        first, later = row["wall_us"], row["later_us"]["median"] / 1e3
        seconds = [f"{value / 1e6:.3f}" for value in (first["median"], min(first["samples"]), max(first["samples"]))]
        lines.append([*(str(value) for value in row["case"].values()), *seconds, f"{later:.3f}"])
    refused = [f"{', '.join(map(str, row['case'].values()))} was not run: {row['why']}" for row in kept.rows if row["status"] == "not run"]
    return "\n".join([aligned(lines), *refused])


def in_new_processes(name: str, device: torch.device, world_size: tuple[int, int], agents: int, number: int) -> list[Once]:
    """Start a backend in some new processes, one after the other, which share caches that are empty at first.

    Raises:
        RunError: One failed.
    """
    command = [sys.executable, __file__, "--once", "--backends", name, "--device", str(device)]
    command += ["--size", f"{world_size[0]}x{world_size[1]}", "--agents", str(agents)]
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        paths = os.pathsep.join(filter(None, (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH"))))
        found = []
        for _ in range(number):
            done = subprocess.run(command, env={**os.environ, **caches, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RunError(f"a new process with the backend {name} failed: {(done.stderr.splitlines() or ['in silence'])[-1]}")
            found.append(Once(*json.loads(done.stdout)))
    return found


def once(name: str, device: torch.device, world_size: tuple[int, int], agents: int) -> Once:
    """Be a new process: start a backend and go on."""
    simulation = Simulation(World(seed=1), world_size, agents, backend=name, device=str(device))
    times = []
    for _ in range(1 + LATER):
        synchronize(device)
        started = time.perf_counter()
        simulation.run(1)
        synchronize(device)
        times.append(time.perf_counter() - started)
        if len(times) == 1 and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)  # what compilers try out is no part of a step
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return Once(times[0], statistics.median(times[1:]), peak)


if __name__ == "__main__":
    main()
