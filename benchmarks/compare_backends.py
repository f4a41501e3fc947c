"""Time the backends on one world, in one process, after a gate: equal bits after 64 steps, or no figures.

Needs torch and numpy alone. `python benchmarks/compare_backends.py --help` lists the options.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from physarum.backends import BACKENDS, choose_device
from physarum.backends.torch_backend import TorchBackend
from physarum.errors import UsageError
from physarum.model.params import Params
from physarum.model.start import random_start
from physarum.model.state import State
from physarum.model.world import World, as_worlds

GATE_STEPS = 64
# No product with these is exact; timings do not depend on them, bits do.
GATE_PARAMS = Params(
    sensor_angle=33, rotation_angle=51, sensor_distance=9.3, step_size=0.83, deposit_amount=3.3, diffusion=0.37, decay_rate=0.07
)


def main() -> None:
    """Run the comparison and print its table."""
    arguments = parser().parse_args()
    width, height = arguments.size
    try:
        device = choose_device(arguments.device)
        backends = runnable(arguments.backends, device)
    except UsageError as error:
        parser().error(str(error))
    worlds = as_worlds(World(seed=1))
    print(f"{width} x {height} cells, {arguments.agents} agents on {machine(device)['processor']}", file=sys.stderr)
    first_steps = gate(backends, device, (width, height), arguments.agents)
    developed = develop(worlds, random_start(worlds, (width, height), arguments.agents, device=device), backends[-1], device)
    rows = measure(worlds, developed, backends, device, arguments.steps, arguments.rounds)
    for row in rows:
        row["first_step_s"] = first_steps[row["backend"]]
    slowest = max(row["median_us"] for row in rows)
    print(f"{'backend':10} {'us/step':>10} {'lowest':>10} {'highest':>10} {'M agent-steps/s':>16} {'speed-up':>9} {'first step':>11}")
    for row in rows:
        rate = arguments.agents / row["median_us"]
        print(
            f"{row['backend']:10} {row['median_us']:10.1f} {row['lowest_us']:10.1f} {row['highest_us']:10.1f} "
            f"{rate:16.1f} {slowest / row['median_us']:9.1f} {row['first_step_s']:9.2f} s"
        )
    if arguments.json:
        content = {
            "size": [width, height],
            "agents": arguments.agents,
            "steps": arguments.steps,
            "machine": machine(device),
            "backends": rows,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--size", type=size, default=(1024, 1024), help="WIDTHxHEIGHT in cells [1024x1024]")
    made.add_argument("--agents", type=positive, default=1 << 20, help="[1048576]")
    made.add_argument("--backends", type=names, help="in the order to time them, such as torch,compile [all that this machine can run]")
    made.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 … [auto]")
    made.add_argument("--steps", type=positive, default=64, help="timed together; 64 hold one sort of the agents [64]")
    made.add_argument("--rounds", type=positive, default=5, help="how often; the backends take turns [5]")
    made.add_argument("--json", type=Path, help="file for the figures")
    return made


def size(text: str) -> tuple[int, int]:
    """A size such as 1024x1024."""
    width, height = text.lower().split("x")
    return int(width), int(height)


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of 1 or more")
    return int(text)


def names(text: str) -> list[str]:
    """Backends separated by commas."""
    chosen = text.split(",")
    for name in chosen:
        if name not in BACKENDS:
            raise argparse.ArgumentTypeError(f"there is no backend {name!r}: choose from {', '.join(BACKENDS)}")
    return chosen


def runnable(asked: list[str] | None, device: torch.device) -> list[str]:
    """The backends asked for, or all that this machine can run; UsageError where one asked for cannot run."""
    lacking = {name: BACKENDS[name].missing(device) for name in asked or BACKENDS}
    for name, lacks in lacking.items():
        if lacks and asked:
            raise UsageError(f"the backend {name} needs {lacks}")
        if lacks:
            print(f"without {name}, which needs {lacks}", file=sys.stderr)
    return [name for name, lacks in lacking.items() if not lacks]


def loaded(name: str, device: torch.device, worlds: tuple[World, ...], state: State) -> TorchBackend:
    """A backend that holds a copy of a state."""
    backend = BACKENDS[name](device)
    backend.load(worlds, state)
    return backend


def synchronize(device: torch.device) -> None:
    """Wait for the device; the host's clock says nothing before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gate(backends: list[str], device: torch.device, world_size: tuple[int, int], agents: int) -> dict[str, float]:
    """Exit unless all backends reach the same bits; return the seconds that each one's first step in this process took."""
    reach = min(world_size) - 2
    params = Params(**{**vars(GATE_PARAMS), "sensor_distance": min(GATE_PARAMS.sensor_distance, reach)})
    worlds = as_worlds(World((params,), seed=3))
    start = random_start(worlds, world_size, agents, device=device)
    reference: State | None = None
    first_steps = {}
    for name in backends:
        backend = loaded(name, device, worlds, start)
        started = time.perf_counter()
        backend.advance(1)
        synchronize(device)
        first_steps[name] = time.perf_counter() - started
        backend.advance(GATE_STEPS - 1)
        state = backend.state()
        backend.close()
        reference = reference or state
        differing = sum(int((a != b).sum()) for a, b in zip(state.tensors().values(), reference.tensors().values(), strict=True))
        print(f"gate: {name} differs from {backends[0]} in {differing} values after {GATE_STEPS} steps", file=sys.stderr)
        if differing:
            sys.exit("no figures: the backends do not agree")
    return first_steps


def develop(worlds: tuple[World, ...], start: State, name: str, device: torch.device, steps: int = 300) -> State:
    """The pattern that the timings start from: agents on strands, not spread evenly."""
    backend = loaded(name, device, worlds, start)
    backend.advance(steps)
    state = backend.state()
    backend.close()
    return state


def measure(
    worlds: tuple[World, ...], state: State, backends: list[str], device: torch.device, steps: int, rounds: int
) -> list[dict[str, Any]]:
    """Microseconds a step over several rounds."""
    rows: list[dict[str, Any]] = [{"backend": name, "times": []} for name in backends]
    running = {name: loaded(name, device, worlds, state) for name in backends}
    for backend in running.values():
        backend.advance(3)
    for round_number in range(rounds):
        for row in rows:
            synchronize(device)
            started = time.perf_counter()
            running[row["backend"]].advance(steps)
            synchronize(device)
            row["times"].append((time.perf_counter() - started) / steps * 1e6)
        print(f"round {round_number + 1} of {rounds}", file=sys.stderr)
    for row in rows:
        times = row.pop("times")
        row |= {"median_us": statistics.median(times), "lowest_us": min(times), "highest_us": max(times)}
    return rows


def machine(device: torch.device) -> dict[str, Any]:
    """Where and with what the figures were measured."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        processor = models[0] if models else processor
    if device.type == "cuda":
        processor = torch.cuda.get_device_name(device)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton") if importlib.util.find_spec("triton") else None,
        "python": platform.python_version(),
        "commit": commit,
    }


if __name__ == "__main__":
    main()
