"""What a clock says that is read before the device is done, and what it says after: why timings must synchronise."""

import argparse
import time

from harness import Results, Timing, aligned, parser, positive, run, synchronize
from worlds import add_world_options, backend, case_of, chosen_worlds, gate, runnable, too_large

from physarum import Simulation, World


def main() -> None:
    """Read the command line and measure."""
    made = parser(__doc__)
    add_world_options(made, "8192x8192", "67108864")
    made.add_argument("--backend", type=backend, help="[the last that this machine can run]")
    made.add_argument("--steps", type=positive, default=16, help="enqueued at once [16]")
    run(made, read_both)


def read_both(arguments: argparse.Namespace, kept: Results) -> None:
    """Read the clock when Python goes on, and again when the device is done."""
    device, steps = arguments.device, arguments.steps
    name = runnable([arguments.backend] if arguments.backend else None, device)[-1]
    table = [["size", "agents", "backend", f"Python goes on after {steps} steps, ms", "the device is done, ms"]]
    for world_size, agents in chosen_worlds(arguments):
        case, reason = case_of(world_size, agents, backend=name, steps=steps), too_large(name, device, world_size, agents)
        named = [f"{world_size[0]}x{world_size[1]}", str(agents), name]
        if reason:
            kept.not_run(case, reason)
            table.append([*named, "not run", "not run"])
            continue
        gate([name], device, world_size, agents)
        simulation = Simulation(World(seed=1), world_size, agents, backend=name, device=str(device))
        simulation.run(steps)
        returned, done = [], []
        for _ in range(arguments.trials):
            synchronize(device)
            started = time.perf_counter()
            simulation.run(steps)
            returned.append((time.perf_counter() - started) * 1e6)
            synchronize(device)
            done.append((time.perf_counter() - started) * 1e6)
        went_on, was_done = Timing(tuple(returned)), Timing(tuple(done))
        kept.add(case, returned_us=went_on.figures(), wall_us=was_done.figures())
        table.append([*named, f"{went_on.median / 1000:.2f}", f"{was_done.median / 1000:.2f}"])
    print(aligned(table))


if __name__ == "__main__":
    main()
