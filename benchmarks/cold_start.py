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

from compare_backends import machine, names, positive, runnable, size

from physarum import Simulation, World
from physarum.backends import choose_device
from physarum.errors import UsageError

LATER = 40  # steps after the first that are timed, each by itself


def main() -> None:
    """Time, or be the new process that is timed."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--size", type=size, default=(400, 400), help="WIDTHxHEIGHT in cells [400x400]")
    made.add_argument("--agents", type=positive, default=5000, help="[5000]")
    made.add_argument("--backends", type=names, help="such as torch,compile [all that this machine can run]")
    made.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 … [auto]")
    made.add_argument("--trials", type=positive, default=3, help="of each backend [3]")
    made.add_argument("--json", type=Path, help="file for the figures")
    made.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    arguments = made.parse_args()
    try:
        device = choose_device(arguments.device)
        backends = runnable(arguments.backends, device)
    except UsageError as error:
        made.error(str(error))
    if arguments.once:
        print(json.dumps(timed(backends[0], str(device), arguments.size, arguments.agents)))
        return
    rows = []
    print(f"{'backend':10} {'caches':8} {'first step, s':>14} {'lowest':>8} {'highest':>8} {'later, ms':>10}")
    for backend in backends:
        trials = [trial(backend, arguments) for _ in range(arguments.trials)]
        for i, caches in enumerate(("empty", "warm")):
            firsts, laters = zip(*(pair[i] for pair in trials), strict=True)
            row = {"backend": backend, "caches": caches, "first_s": sorted(firsts), "later_s": sorted(laters)}
            rows.append(row)
            later = statistics.median(laters) * 1000
            print(
                f"{backend:10} {caches:8} {statistics.median(firsts):14.3f} {min(firsts):8.3f} {max(firsts):8.3f} {later:10.3f}", flush=True
            )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"size": arguments.size, "agents": arguments.agents, "machine": machine(device), "rows": rows}, indent=2) + "\n"
        )


def trial(backend: str, arguments: argparse.Namespace) -> list[tuple[float, float]]:
    """Two new processes, one after the other, which share caches that are empty at first."""
    width, height = arguments.size
    command = [sys.executable, __file__, "--once", "--backends", backend, "--device", arguments.device]
    command += ["--size", f"{width}x{height}", "--agents", str(arguments.agents)]
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        done = [subprocess.run(command, env={**os.environ, **caches}, capture_output=True, text=True, check=True) for _ in range(2)]
    return [tuple(json.loads(one.stdout)) for one in done]


def timed(backend: str, device: str, world_size: tuple[int, int], agents: int) -> tuple[float, float]:
    """Seconds of the first step, and the median of later ones, each until the device has done it."""
    simulation = Simulation(World(seed=1), world_size, agents, backend=backend, device=device)
    times = []
    for _ in range(1 + LATER):
        simulation.synchronize()
        started = time.perf_counter()
        simulation.run(1)
        simulation.synchronize()
        times.append(time.perf_counter() - started)
    return times[0], statistics.median(times[1:])


if __name__ == "__main__":
    main()
