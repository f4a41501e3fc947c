"""What a clock says that is read before the device is done, and what it says after: why timings must synchronise."""

import argparse
import json
import statistics
import time
from pathlib import Path

from compare_backends import machine, positive, runnable, size

from physarum import Simulation, World
from physarum.backends import BACKENDS, choose_device
from physarum.errors import UsageError


def main() -> None:
    """Measure and print."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--size", type=size, default=(8192, 8192), help="WIDTHxHEIGHT in cells [8192x8192]")
    made.add_argument("--agents", type=positive, default=1 << 26, help="[67108864]")
    made.add_argument("--backend", choices=list(BACKENDS), help="[the last that this machine can run]")
    made.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 … [auto]")
    made.add_argument("--steps", type=positive, default=16, help="enqueued at once [16]")
    made.add_argument("--trials", type=positive, default=5, help="[5]")
    made.add_argument("--json", type=Path, help="file for the figures")
    arguments = made.parse_args()
    try:
        device = choose_device(arguments.device)
        backend = runnable([arguments.backend] if arguments.backend else None, device)[-1]
    except UsageError as error:
        made.error(str(error))
    simulation = Simulation(World(seed=1), arguments.size, arguments.agents, backend=backend, device=str(device))
    simulation.run(arguments.steps)
    returned, done = [], []
    for _ in range(arguments.trials):
        simulation.synchronize()
        started = time.perf_counter()
        simulation.run(arguments.steps)
        returned.append(time.perf_counter() - started)
        simulation.synchronize()
        done.append(time.perf_counter() - started)
    print(f"{arguments.steps} steps of {backend}: Python goes on after {statistics.median(returned) * 1000:.2f} ms", end=", ")
    print(f"the device is done after {statistics.median(done) * 1000:.2f} ms (medians of {arguments.trials})")
    if arguments.json:
        world = {"size": arguments.size, "agents": arguments.agents, "backend": backend, "steps": arguments.steps}
        arguments.json.write_text(
            json.dumps({**world, "machine": machine(device), "returned_s": returned, "done_s": done}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
