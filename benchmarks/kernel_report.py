"""What each Triton kernel takes of a GPU, how long it takes, how near it comes to the machine's roof, and what to look at next.

Each kernel is compiled for several sizes of its programs and numbers of warps, after a gate: equal bits with all of them, or no figures.
Then it is launched alone, again and again on the same buffers, which hold a developed pattern with its agents sorted, so that it always
reads and writes in the same places. Where Nsight Compute may read the counters, the program runs itself once more under it.

The bytes that a kernel must move, if it reads and writes each value once:

- sense+motor: worlds.BYTES_AN_AGENT an agent, and the trail, 4 bytes a cell, for the sensors;
- deposit: the position, 8 bytes an agent; the count, read and written, 8 bytes a cell that holds an agent;
- diffuse+decay: trail and count read, new trail and cleared count written, 16 bytes a cell.

So the sum over the kernels is 8 bytes an agent and up to 8 a cell above worlds.bytes_a_step, the least of a step that no kernel divides:
positions are read again, and counts are added to before they are read and cleared.
"""

import argparse
import itertools
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from harness import (
    WARM_UP,
    Results,
    Row,
    Timing,
    aligned,
    copy_bandwidth,
    median_us,
    parser,
    run,
    synchronize,
    tell,
    timed,
)
from kernels.nsight import KERNELS, counters
from kernels.rules import CODE_RULES, COUNTER_RULES, TIME_RULES, Code, Counters, Times, findings
from worlds import (
    BYTES_AN_AGENT,
    PATTERN,
    add_world_options,
    after_gate_steps,
    case_of,
    chosen_worlds,
    developed,
    gate,
    gate_start,
    runnable,
    too_large,
    values_differing,
)

from physarum.backends import triton_backend
from physarum.backends.triton_backend import TritonBackend
from physarum.errors import RunError, UsageError
from physarum.model.state import State
from physarum.profiling import resources
from physarum.profiling.resources import LIMITS, WARP, Compiled, compile_kernels, occupancy

FIELD_KERNEL = "diffuse+decay"
OFFLINE_CAPABILITY = "9.0"
LAUNCHES = 16  # of a replayed graph, so that the host's time a launch does not hide the device's
ENQUEUED = 64  # launches by which the host's time is measured; the queue holds more
MATRIX = 4096  # rows and columns of the product that measures arithmetic
RANGED_STEPS = 8  # with --nvtx

Size = tuple[int, int]


class Blocks(NamedTuple):
    """How the work is divided into programs and threads."""

    agents: int  # a program, of sense+motor and of deposit
    strip: int  # columns a program, of diffuse+decay
    band: int  # rows a program, of diffuse+decay
    warps: int  # a program, of every kernel


DEFAULT = Blocks(
    triton_backend.AGENTS_A_PROGRAM, triton_backend.WIDEST_STRIP, triton_backend.BAND, int(triton_backend.OPTIONS["num_warps"])
)
AGENTS = (128, 256, 512, 1024)
STRIPS = (256, 512, 1024)
BANDS = (2, 4, 8)
WARPS = (2, 4, 8)


def combinations() -> list[Blocks]:
    """As few as bring every kernel with every size of its own and every number of warps; the default first."""
    agents, strips, bands, warps = (sorted({*choices, own}) for choices, own in zip((AGENTS, STRIPS, BANDS, WARPS), DEFAULT, strict=True))
    fields = list(itertools.product(strips, bands))
    rounds = range(max(len(agents), len(fields)))
    made = [Blocks(agents[i % len(agents)], *fields[i % len(fields)], number) for number in warps for i in rounds]
    return list(dict.fromkeys((DEFAULT, *made)))


@contextmanager
def configured(blocks: Blocks) -> Iterator[None]:
    """Let the backend launch with these sizes, and as before from then on."""

    def put(some: Blocks) -> None:
        triton_backend.AGENTS_A_PROGRAM, triton_backend.WIDEST_STRIP, triton_backend.BAND = some[:3]
        triton_backend.OPTIONS["num_warps"] = some.warps

    put(blocks)
    try:
        yield
    finally:
        put(DEFAULT)


def variant(kernel: str, blocks: Blocks) -> dict[str, Any]:
    """What of `blocks` concerns a kernel, for the case of a row."""
    block = f"{blocks.strip}x{blocks.band}" if kernel == FIELD_KERNEL else str(blocks.agents)
    return {"kernel": kernel, "block": block, "warps": blocks.warps}


class Launch(NamedTuple):
    """A launch of a kernel that can be repeated."""

    kernel: Any  # triton.JITFunction
    programs: int
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]  # constants and options of the compilation

    def __call__(self) -> None:
        self.kernel[(self.programs,)](*self.arguments, **self.keywords)

    def compiled(self) -> Any:
        """Triton's CompiledKernel; nothing is launched."""
        return self.kernel.warmup(*self.arguments, grid=(self.programs,), **self.keywords)


class Recorder(TritonBackend):
    """The backend, which keeps what it would launch."""

    def launches(self) -> dict[str, Launch]:
        """The launches of the next step by kernel, agents sorted; none is done."""
        self._recorded: dict[str, Launch] = {}
        with torch.no_grad(), self._on_device():
            self._sort_when_due()
            self._compute()
        return self._recorded

    def _launch(self, label: str, labelled: bool, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:  # noqa: ARG002
        self._recorded[label] = Launch(kernel, programs, arguments, constants | triton_backend.OPTIONS)


class Ranged(TritonBackend):
    """The backend, whose launches lie in NVTX ranges.

    Not by torch.autograd.profiler.emit_nvtx: that makes ranges of labels too, but adds a number to each name, so that no two are alike
    and profilers cannot sum over them.
    """

    def _launch(self, label: str, labelled: bool, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        with torch.cuda.nvtx.range(label):
            super()._launch(label, labelled, kernel, programs, *arguments, **constants)


def code_of(kernel: str, capability: str, compiled: Any) -> Code:
    """Read a compiled kernel.

    Args:
        kernel: Its label.
        capability: A key of LIMITS.
        compiled: Triton's CompiledKernel.
    """
    taken = resources.read(Compiled(kernel, "plain", capability, compiled))
    warps = compiled.metadata.num_warps
    return Code(
        taken.registers,
        taken.stack,
        taken.local,
        taken.shared,
        taken.occupancy,
        limited_by(capability, taken.registers, taken.shared, warps),
        flop_in(compiled.asm["ptx"]) * warps * WARP,
    )


def limited_by(capability: str, registers: int, shared: int, warps: int) -> str:
    """What keeps more programs from a multiprocessor: the first without which there would be room for more."""
    there = occupancy(capability, registers, shared, warps)
    if there == 1:
        return "nothing"
    if occupancy(capability, 1, shared, warps) > there:
        return "registers"
    if occupancy(capability, registers, 0, warps) > there:
        return "shared memory"
    return "the number of programs"


def flop_in(ptx: str) -> int:
    """Float32 additions, subtractions and multiplications that a thread does in a PTX text without loops; a fused one counts as two."""
    found = re.findall(r"^\s*(?:@!?%p\d+\s+)?(add|sub|mul|fma)(?:\.r[nzmp])?(?:\.ftz)?(?:\.sat)?\.f32(x2)?\s", ptx, re.MULTILINE)
    return sum((2 if name == "fma" else 1) * (2 if paired else 1) for name, paired in found)


def offline(capability: str) -> dict[tuple[str, Blocks], Code]:
    """What every kernel takes with every size of its programs, compiled for a GPU that need not be there."""
    found: dict[tuple[str, Blocks], Code] = {}
    seen: dict[str, Code] = {}
    for blocks in combinations():
        with configured(blocks):
            made = list(itertools.islice(compile_kernels([capability]), len(KERNELS)))  # the first variant, "plain"
        for compiled in made:
            name = str(variant(compiled.kernel, blocks))
            if name not in seen:
                seen[name] = found[compiled.kernel, blocks] = code_of(compiled.kernel, capability, compiled.code)
    return found


def bytes_moved(kernel: str, agents: int, cells: int, occupied: int) -> int:
    """What a kernel must move at least; see the top of this file.

    Args:
        kernel: Its label.
        agents: All.
        cells: All.
        occupied: Cells that hold an agent.
    """
    return {
        "sense+motor": BYTES_AN_AGENT * agents + 4 * cells,
        "deposit": 8 * agents + 8 * occupied,
        "diffuse+decay": 16 * cells,
    }[kernel]


def occupied_cells(state: State) -> int:
    """How many cells hold an agent."""
    width, height = state.size
    cells = state.y.flatten().to(torch.int64) * width + state.x.flatten().to(torch.int64)
    holds = torch.zeros(width * height, dtype=torch.bool, device=cells.device)
    return int(holds.index_fill_(0, cells, True).sum())


def arithmetic_rate(device: torch.device) -> float:
    """Float32 operations a second that our kernels could do at best.

    They must not fuse multiplication and addition, so it is half of what a product of matrices in float32 (no TF32) reaches here.
    """
    torch.set_float32_matmul_precision("highest")
    matrix = torch.rand(MATRIX, MATRIX, device=device)
    product = torch.empty_like(matrix)
    figures = timed({"product": lambda: torch.mm(matrix, matrix, out=product)}, device, trials=10)["product"]
    return MATRIX**3 / (median_us(figures) * 1e-6)


def check_bits(device: torch.device, world_size: Size, agents: int) -> None:
    """See that the kernels reach the bits of the eager model with every size of their programs.

    Raises:
        RunError: They do not: no figures.
    """
    reference = gate(["triton"], device, world_size, agents)
    world, start = gate_start(world_size, agents, device)
    for blocks in combinations():
        with configured(blocks):
            differing = values_differing(after_gate_steps("triton", device, world, start), reference)
        if differing:
            raise RunError(f"no figures: with {blocks} triton differs from the eager model in {differing} values")
    tell(f"gate: triton reaches the same bits with {len(combinations())} combinations of block sizes and warps")


def repeated(launch: Launch) -> Callable[[], None]:
    """A graph of LAUNCHES launches, to be replayed."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            launch()
    replay: Callable[[], None] = graph.replay
    return replay


def host_us(launch: Launch, device: torch.device, trials: int) -> float:
    """Microseconds that the host takes to put a launch into the queue: the median."""
    samples = []
    for _ in range(trials):
        synchronize(device)
        started = time.perf_counter()
        for _ in range(ENQUEUED):
            launch()
        samples.append((time.perf_counter() - started) / ENQUEUED * 1e6)
    synchronize(device)
    return Timing(tuple(samples)).median


def a_launch(figures: Row) -> Row:
    """Figures of a replayed graph as those of one of its launches."""
    each = Timing(tuple(sample / LAUNCHES for sample in figures["events_us"]["samples"]))
    return {"events_us": each.figures(), "calls": figures["calls"] * LAUNCHES, "l2": figures["l2"]}


@dataclass(frozen=True)
class Machine:
    """What the kernels are measured against: bytes and float32 operations a second, and what the device has."""

    capability: str
    multiprocessors: int
    l2_bytes: int
    bandwidth: float
    arithmetic: float


def measure(kept: Results, machine: Machine, device: torch.device, world_size: Size, agents: int, trials: int) -> list[Row]:
    """Keep a row for each kernel and each size of its programs, for one size of the world."""
    state = developed("triton", device, world_size, agents)
    cells, occupied = world_size[0] * world_size[1], occupied_cells(state)
    backend = Recorder(device)
    backend.load(PATTERN, state)
    tell(f"{named(world_size)}: compiling…")
    launches = distinct_launches(backend)
    codes = {key: code_of(key[0], machine.capability, launch.compiled()) for key, launch in launches.items()}
    for launch in launches.values():  # the agents' kernel first, which writes the positions that the next one reads
        launch()
    rows = []
    for kernel in KERNELS:
        own = {blocks: launch for (name, blocks), launch in launches.items() if name == kernel}
        tell(f"{named(world_size)}: timing {kernel} in {len(own)} configurations…")
        figures = timed({str(blocks): repeated(launch) for blocks, launch in own.items()}, device, trials)
        times = {blocks: a_launch(figures[str(blocks)]) for blocks in own}
        default, best = next(iter(own)), min(own, key=lambda blocks: median_us(times[blocks]))
        enqueuing = host_us(own[default], device, trials)
        moved = bytes_moved(kernel, agents, cells, occupied)
        for blocks, launch in own.items():
            us, code = median_us(times[blocks]), codes[kernel, blocks]
            row = kept.add(
                case_of(world_size, agents, **variant(kernel, blocks)),
                **times[blocks],
                code=asdict(code),
                times=asdict(times_of(machine, code, launch.programs, blocks.warps, moved, us, enqueuing)),
                bytes_per_s=moved / us * 1e6,
                default=blocks == default,
                best=blocks == best,
            )
            rows.append(row)
    backend.close()
    return rows


def distinct_launches(backend: Recorder) -> dict[tuple[str, Blocks], Launch]:
    """Every kernel's launches with every size of its programs, in the order of a step, the defaults first."""
    found: dict[tuple[str, Blocks], Launch] = {}
    seen = set()
    for blocks in combinations():
        with configured(blocks):
            launches = backend.launches()
        for kernel, launch in launches.items():
            own = blocks._replace(strip=launch.keywords.get("STRIP", blocks.strip))  # a narrow world has narrower strips
            name = str(variant(kernel, own))
            if name not in seen:
                found[kernel, own] = launch
                seen.add(name)
    return found


def times_of(machine: Machine, code: Code, programs: int, warps: int, moved: int, us: float, enqueuing: float) -> Times:
    """How a kernel's time stands to the machine."""
    at_once = round(code.occupancy * LIMITS[machine.capability].warps / warps) * machine.multiprocessors
    return Times(
        us=us,
        host_us=enqueuing,
        programs=programs,
        at_once=at_once,
        bytes=moved,
        l2_bytes=machine.l2_bytes,
        roof_share=moved / (us * 1e-6) / machine.bandwidth,
        intensity=code.flop * programs / moved,
        ridge=machine.arithmetic / machine.bandwidth,
    )


def run_ranges(device: torch.device, world_size: Size, agents: int) -> None:
    """Some steps on a developed pattern in NVTX ranges, between cudaProfilerStart and cudaProfilerStop; nothing else is done there."""
    backend = Ranged(device)
    backend.load(PATTERN, developed("triton", device, world_size, agents))
    backend.advance(WARM_UP)
    synchronize(device)
    with torch.cuda.device(device), torch.cuda.profiler.profile():
        for _ in range(RANGED_STEPS):
            with torch.cuda.nvtx.range(f"step {backend.step}"):
                backend.advance(1)
        synchronize(device)
    tell(f"{RANGED_STEPS} steps of {named(world_size)} in NVTX ranges")


def named(world_size: Size) -> str:
    """A size as it is written on the command line."""
    return "x".join(map(str, world_size))


def table(rows: Sequence[Row]) -> str:
    """Rows of one size of the world, or of none, as text; the last column marks the default, the best and what CODE_RULES find."""
    with_times = "times" in rows[0]
    head = ["kernel", "block", "warps", "registers", "spilled B", "shared B", "occupancy", "limited by"]
    lines = [head + (["us", "p10", "p90", "GB/s", "of copy"] if with_times else []) + [""]]
    for row in rows:
        case, code = row["case"], Code(**row["code"])
        cells = [case["kernel"], case["block"], case["warps"], code.registers, code.stack + code.local, code.shared]
        cells += [f"{code.occupancy:.0%}", code.limited_by]
        if with_times:
            cells += [f"{row['events_us'][name]:.2f}" for name in ("median", "p10", "p90")]
            cells += [f"{row['bytes_per_s'] / 1e9:.0f}", f"{row['times']['roof_share']:.0%}"]
        marks = [mark for mark in ("default", "best") if row[mark]]
        lines.append([*map(str, cells), ", ".join(marks + [rule.name for rule in CODE_RULES if rule.applies(code)])])
    return aligned(lines)


def verdict(rows: Sequence[Row]) -> list[str]:
    """What the rows of one kernel say in words, of the default: its time and roof, the best configuration, what to look at next."""
    default = next(row for row in rows if row["default"])
    known = Times(**default["times"])
    seen = Counters(**default["counters"]) if "counters" in default else None
    bound = "compute" if known.intensity > known.ridge else "memory"
    lines = [
        f"{default['case']['kernel']} at {default['case']['size']}: {known.us:.1f} us for {known.bytes / 1e6:.1f} MB, "
        f"{known.roof_share:.0%} of a copy's rate; {known.intensity:.1f} FLOP a byte, ridge {known.ridge:.1f}: {bound}-bound by these",
        best_in_words(rows, default),
    ]
    if seen:
        lines.append(
            f"counters: memory {seen.dram:.0f} %, L2 {seen.l2:.0f} % (sectors {seen.l2_sectors:.0f} %), L1 hits {seen.l1_hit:.0f} %, "
            f"multiprocessors {seen.sm:.0f} %, issue {seen.issue:.0f} %, warps {seen.occupancy:.0f} %, "
            f"{seen.sectors_a_load:.1f} sectors a load; warps wait for {seen.longest}"
        )
    return lines + findings(CODE_RULES, Code(**default["code"])) + findings(TIME_RULES, known) + findings(COUNTER_RULES, seen)


def best_in_words(rows: Sequence[Row], default: Row) -> str:
    """Whether another configuration is faster than the default by more than noise."""
    best = next(row for row in rows if row["best"])
    block = f"block {best['case']['block']}, {best['case']['warps']} warps"
    if best is default:
        return f"the default, {block}, is the fastest"
    gain = 1 - median_us(best) / median_us(default)
    if best["events_us"]["p90"] < default["events_us"]["p10"]:
        return f"{block}: {gain:.1%} faster than the default"
    return f"no configuration is faster than the default beyond noise (nearest: {block}, {gain:.1%})"


def report_offline(kept: Results, capability: str, chosen: Sequence[tuple[Size, int]], why: str) -> None:
    """Compile only: keep and print what the kernels take of a GPU."""
    tell(f"compiling for the compute capability {capability}…")
    found = offline(capability)
    ordered = [(kernel, blocks) for kernel in KERNELS for other, blocks in found if other == kernel]
    rows = [
        kept.add({"capability": capability, **variant(*key)}, code=asdict(found[key]), default=key[1] == DEFAULT, best=False)
        for key in ordered
    ]
    for world_size, agents in chosen:
        for key in ordered:
            kept.not_run(case_of(world_size, agents, **variant(*key)), why)
    print(f"compute capability {capability}; no times: {why}\n\n{table(rows)}")
    for row in rows:
        if row["default"]:
            told = findings(CODE_RULES, Code(**row["code"]))
            print("\n  - ".join([f"\n{row['case']['kernel']}, default:", *(told or ["no rule finds anything in what the compiler made"])]))


def report_measured(arguments: argparse.Namespace, kept: Results) -> None:
    """Measure on a GPU: keep and print rows, then verdicts."""
    device, at = arguments.device, kept.head["machine"]
    if at["capability"] not in LIMITS:
        raise UsageError(f"the compute capability {at['capability']} is not known: it must be one of {', '.join(LIMITS)}")
    runnable(["triton"], device)
    machine = Machine(at["capability"], at["multiprocessors"], at["l2_bytes"], copy_bandwidth(device), arithmetic_rate(device))
    kept.head["roof"] = asdict(machine)
    print(
        f"roofs measured here: a copy moves {machine.bandwidth / 1e9:.0f} GB/s; float32 without FMA does {machine.arithmetic / 1e12:.1f} "
        f"TFLOP/s, half of a product of matrices; ridge {machine.arithmetic / machine.bandwidth:.1f} FLOP a byte\n"
    )
    by_world: dict[tuple[Size, int], list[Row]] = {}
    for world_size, agents in chosen_worlds(arguments):
        why = too_large("triton", device, world_size, agents)
        if why:
            for kernel in KERNELS:
                kept.not_run(case_of(world_size, agents, **variant(kernel, DEFAULT)), why)
            print(f"{named(world_size)}: not run: {why}\n")
            continue
        check_bits(device, world_size, agents)
        rows = by_world[world_size, agents] = measure(kept, machine, device, world_size, agents, arguments.trials)
        torch.cuda.empty_cache()
        print(f"{named(world_size)} cells, {agents} agents\n{table(rows)}\n", flush=True)
    if by_world:
        add_counters(kept, by_world, str(device))
    for rows in by_world.values():
        for kernel in KERNELS:
            print("\n  - ".join(verdict([row for row in rows if row["case"]["kernel"] == kernel])), end="\n\n")


def add_counters(kept: Results, by_world: Mapping[tuple[Size, int], Sequence[Row]], device: str) -> None:
    """Put what Nsight Compute counts into the default rows of the largest world, or say why there is nothing."""
    most = largest(by_world)
    size, agents = named(most[0]), str(most[1])
    tell(f"{size}: counting with Nsight Compute…")
    try:
        found = counters([sys.executable, str(Path(__file__).resolve()), "--nvtx", "--device", device, "--size", size, "--agents", agents])
    except UsageError as error:
        kept.head["counters"] = str(error)
        print(f"{error}\n")
        return
    kept.head["counters"] = f"Nsight Compute, {size}"
    for row in by_world[most]:
        if row["default"] and row["case"]["kernel"] in found:
            row["counters"] = asdict(found[row["case"]["kernel"]])


def largest(worlds: Iterable[tuple[Size, int]]) -> tuple[Size, int]:
    """The world with the most cells, and its agents."""
    return max(worlds, key=lambda one: one[0][0] * one[0][1])


def report(arguments: argparse.Namespace, kept: Results) -> None:
    """Do what the command line asks for."""
    on_gpu = arguments.device.type == "cuda"
    if arguments.nvtx:
        if arguments.json or arguments.capability:
            raise UsageError("--nvtx measures nothing, so that neither --json nor --capability goes with it")
        runnable(["triton"], arguments.device)
        run_ranges(arguments.device, *largest(chosen_worlds(arguments)))
    elif on_gpu and not arguments.capability:
        with torch.cuda.device(arguments.device):
            report_measured(arguments, kept)
    else:
        why = "--capability compiles only" if on_gpu else "they need an NVIDIA GPU"
        report_offline(kept, arguments.capability or OFFLINE_CAPABILITY, chosen_worlds(arguments), why)


if __name__ == "__main__":
    made = parser(__doc__)
    add_world_options(made, "1024x1024,8192x8192", "1048576,67108864")
    made.add_argument("--capability", help=f"compile only, for this compute capability [without a GPU, {OFFLINE_CAPABILITY}]")
    made.add_argument(
        "--nvtx", action="store_true", help="measure nothing; run some steps of the largest size in NVTX ranges, for nsys and ncu"
    )
    run(made, report)
