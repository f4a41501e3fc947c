"""What all benchmarks share: arguments, the machine, clocks, launch counts, results as JSON lines, and the comparison of two files of them.

A file of results has one JSON object a line. The first says what was run, where and with what; each other one is a row: its `case` (what
tells it from other rows), its `status`, and its figures. The status is "measured", "computed" (from rows that were, or from published
figures), or "not run", with the reason. Needs torch and numpy alone.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch.profiler import record_function

from physarum.backends import choose_device
from physarum.errors import RunError, UsageError, did_you_mean
from physarum.files import shown, written_whole
from physarum.profiling.reader import CALLS, KERNEL, LABEL, read_events, trace_of
from physarum.profiling.session import recording

STATUSES = ("measured", "computed", "not run")
WARM_UP = 3  # calls that are not timed
SHORTEST = 2e-3  # seconds that the calls of a trial take together, where their number is free
MOST_CALLS = 1000
FEWEST_TRIALS = 3  # that have quantiles
MOST_TRIALS = 10  # times those asked for, where a clock is too coarse to tell them apart
FLUSHED = 16  # times the L2 cache is written over to empty it: a quarter of a millisecond on an H200
ROOF_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}  # many times what caches hold

Work = Callable[[], Any]
Row = dict[str, Any]


def at_least(least: int) -> Callable[[str], int]:
    """Whole numbers from `least` up, for argparse."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is no whole number of {least} or more")
        return int(text)

    return read


positive = at_least(1)


def size(text: str) -> tuple[int, int]:
    """A size such as 1024x1024, for argparse."""
    found = re.fullmatch("([1-9][0-9]{0,8})x([1-9][0-9]{0,8})", text.lower(), re.ASCII)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 1024x1024")
    return int(found[1]), int(found[2])


def choice(kind: str, names: Collection[str]) -> Callable[[str], str]:
    """One of some names, for argparse; `kind` says what they name."""

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"there is no {kind} {text!r}{did_you_mean(text, names)}: choose from {', '.join(names)}")
        return text

    return read


def listed(one: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Several of something, separated by commas, for argparse."""

    def read(text: str) -> list[Any]:
        return [one(word) for word in text.split(",")]

    return read


class Parser(argparse.ArgumentParser):
    """A command line that refuses in one sentence."""

    def error(self, message: str) -> NoReturn:
        """End the process with exit code 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def parser(description: str | None, times: int = 20) -> Parser:
    """A command line with the options that every benchmark has.

    Args:
        description: The benchmark's docstring, of which the first paragraph is shown.
        times: Trials, unless asked for otherwise.
    """
    made = Parser(description=(description or "").split("\n\n", maxsplit=1)[0])
    made.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 … [auto]")
    made.add_argument("--trials", type=at_least(FEWEST_TRIALS), default=times, help=f"how often each case is timed [{times}]")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the results to a file, as JSON lines")
    made.add_argument(
        "--compare", type=Path, nargs=2, metavar=("A.jsonl", "B.jsonl"), help="measure nothing; print the ratios of two such files"
    )
    return made


def run(made: Parser, benchmark: Callable[[argparse.Namespace, "Results"], None]) -> None:
    """Read the command line and run a benchmark, whose `device` is then a torch.device; what was measured is kept however it ends.

    A request that cannot be met ends the process with one sentence and exit code 2, one that failed with 1, Ctrl-C with 130.
    """
    arguments = made.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if arguments.compare:
            print(comparison(*arguments.compare))
            return
        arguments.device = choose_device(arguments.device)
        check_place(arguments.json)
        check_picture(getattr(arguments, "plot", None))
        with results(Path(made.prog).stem, arguments, arguments.json) as kept:
            benchmark(arguments, kept)
    except UsageError as error:
        made.error(str(error))
    except RunError as error:
        sys.exit(f"{made.prog}: error: {error}")
    except torch.OutOfMemoryError as error:
        sys.exit(f"{made.prog}: error: the memory of {arguments.device} is full: {str(error).splitlines()[0]}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever reads the table has seen enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_place(path: Path | None) -> None:
    """See that a file can be written, before anything is measured; UsageError where it cannot."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise UsageError(f"{shown(path)} cannot be written: " + ("it is a folder" if path.is_dir() else "its folder does not exist"))


def check_picture(path: Path | None) -> None:
    """See that a picture can be drawn there, before anything is measured; UsageError where it cannot."""
    check_place(path)
    if path is None:
        return
    if not importlib.util.find_spec("matplotlib"):
        raise UsageError("a picture needs matplotlib: pip install matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415 (only a picture needs it)

    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise UsageError(f"{shown(path)} cannot be drawn: its suffix must be one of {', '.join(sorted(kinds))}")


def save_picture(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib's, whole or not at all."""
    with written_whole(path) as part:
        figure.savefig(part, format=path.suffix[1:].lower(), dpi=130)


def tell(text: str) -> None:
    """Say on stderr how the work goes on."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Results:
    """What was measured.

    Attributes:
        head: What was run, where and with what; of JSON's types, as all else here.
        rows: In order; more figures may be put into one until the benchmark ends.
        works: With each the row whose launches are still to be counted.
    """

    head: dict[str, Any]
    rows: list[Row]
    works: list[tuple[Row, Work]] = field(default_factory=list)

    def add(self, case: Mapping[str, Any], work: Work | None = None, **figures: Any) -> Row:
        """Keep a row that was measured, and return it; `count` will count what `work` launches."""
        row = self._keep({"case": dict(case), "status": "measured", **figures})
        if work:
            self.works.append((row, work))
        return row

    def count(self, device: torch.device) -> None:
        """Count the launches of all works, each once, and put them into their rows; see `counted`.

        Raises:
            RunError: They cannot be counted; these rows are then marked as not run.
        """
        if not self.works:
            return
        tell("counting launches")
        try:
            found = counted({f"work {i}": work for i, (_, work) in enumerate(self.works)}, device)
        except RunError as error:
            for row, _ in self.works:
                row.update(status="not run", why=str(error))
            raise
        for i, (row, _) in enumerate(self.works):
            row.update(found[f"work {i}"])
        self.works.clear()

    def computed(self, case: Mapping[str, Any], **figures: Any) -> Row:
        """Keep a row that follows from others, or from published figures."""
        return self._keep({"case": dict(case), "status": "computed", **figures})

    def not_run(self, case: Mapping[str, Any], why: str) -> Row:
        """Keep a row that was not measured, with the reason."""
        return self._keep({"case": dict(case), "status": "not run", "why": why})

    def measured(self) -> list[Row]:
        """The rows that were measured."""
        return [row for row in self.rows if row["status"] == "measured"]

    def _keep(self, row: Row) -> Row:
        self.rows.append(row)
        return row


@contextmanager
def results(benchmark: str, arguments: argparse.Namespace, path: Path | None) -> Iterator[Results]:
    """Results that are written as JSON lines when the block ends, in whatever way."""
    asked = {name: value for name, value in vars(arguments).items() if name not in ("json", "compare", "plot")}
    head = {
        "benchmark": benchmark,
        "arguments": json.loads(json.dumps(asked, default=str)),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(arguments.device),
    }
    kept = Results(head, [])
    try:
        yield kept
    finally:
        if path is not None and kept.rows:
            with written_whole(path) as part:
                part.write_text("".join(json.dumps(line) + "\n" for line in (kept.head, *kept.rows)))


def read_results(path: Path) -> Results:
    """Read a file of results.

    Raises:
        UsageError: It is missing or something else.
    """
    try:
        head, *rows = [json.loads(line) for line in path.read_text().splitlines()]
        found = Results(head, rows)
        if "benchmark" not in head or not all(row["status"] in STATUSES and row["case"] for row in rows):
            raise ValueError("its lines are not those of a benchmark")
    except (OSError, ValueError, KeyError, TypeError) as error:
        cause = getattr(error, "strerror", None) or error
        raise UsageError(f"{shown(path)} cannot be read as results: {cause}") from error
    return found


@dataclass(frozen=True)
class Timing:
    """Microseconds a call, one figure a trial.

    Raises:
        RunError: The tenth percentile is not below the ninetieth: the clock stands still, or is none.
    """

    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.quantile(0.1) < self.quantile(0.9):
            raise RunError(f"{len(self.samples)} trials all took {self.median} us: that is no measurement")

    def quantile(self, share: float) -> float:
        """Linear between the samples."""
        return float(np.quantile(self.samples, share))

    @property
    def median(self) -> float:
        """Microseconds."""
        return self.quantile(0.5)

    def figures(self) -> dict[str, Any]:
        """For a row."""
        named = {"median": self.median, "p10": self.quantile(0.1), "p90": self.quantile(0.9), "p99": self.quantile(0.99)}
        named["mean"] = sum(self.samples) / len(self.samples)
        return {name: round(value, 4) for name, value in named.items()} | {"samples": [round(sample, 4) for sample in self.samples]}


def timed(
    works: Mapping[str, Work],
    device: torch.device,
    trials: int,
    calls: int | None = None,
    cold: bool = False,
    warm_up: int = WARM_UP,
    units: int = 1,
) -> dict[str, Row]:
    """Time some works in turns, so that a machine that slows down slows them all.

    Args:
        works: What to time, by name; on a GPU they enqueue and need not wait.
        device: Where the work is done.
        trials: How often.
        calls: Calls of a trial, of which the mean is taken; None for as many as fill `SHORTEST`.
        cold: Empty a GPU's L2 cache before each call, of which a trial then has one; that takes longer than to enqueue the call, so that
            the device does not wait for the host. Else, and on a CPU, caches hold what the call before has left.
        warm_up: Calls of each beforehand, which compile, allocate and load.
        units: Steps, or whatever a call does several of: times are those of one.

    Returns:
        Figures of each by name: `wall_us`, by the host's clock, from before the first call to after the device is done, None with a cold
        cache; `events_us`, by CUDA events before and after the calls, None on a CPU; `calls` a trial; and `l2`, "warm" or "cold".
    """
    cold = cold and device.type == "cuda"
    numbers = {name: _warmed_up(work, device, warm_up, 1 if cold else calls) for name, work in works.items()}
    much = FLUSHED * torch.cuda.get_device_properties(device).L2_cache_size if cold else 0
    flushed = torch.empty(much, dtype=torch.int8, device=device) if cold else None
    walls: dict[str, list[float]] = {name: [] for name in works}
    events: dict[str, list[float]] = {name: [] for name in works}
    telling = [*([] if cold else walls.values()), *(events.values() if device.type == "cuda" else [])]
    while not all(_enough(samples, trials) for samples in telling):
        for name, work in works.items():
            wall, event = _trial(work, device, numbers[name], flushed)
            walls[name].append(wall / units)
            events[name].append(event / units)
    return {
        name: {
            "wall_us": None if cold else Timing(tuple(walls[name])).figures(),
            "events_us": Timing(tuple(events[name])).figures() if device.type == "cuda" else None,
            "calls": numbers[name],
            "l2": "cold" if cold else "warm",
        }
        for name in works
    }


def _enough(samples: Sequence[float], trials: int) -> bool:
    """Whether there are as many trials as asked for and, as far as more of them help, not all between two ticks of a clock."""
    return len(samples) >= trials and (bool(np.ptp(np.quantile(samples, (0.1, 0.9)))) or len(samples) >= MOST_TRIALS * trials)


def synchronize(device: torch.device) -> None:
    """Wait for the device; the host's clock says nothing before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _warmed_up(work: Work, device: torch.device, warm_up: int, calls: int | None) -> int:
    """Warm up, and tell how many calls a trial should have."""
    for _ in range(warm_up):
        work()
    if calls is not None:
        return calls
    calls = 1
    while calls < MOST_CALLS:
        wall, _ = _trial(work, device, calls, None)
        if wall * calls >= SHORTEST * 1e6:
            break
        calls = min(MOST_CALLS, max(2 * calls, int(SHORTEST * 1e6 / max(wall, 1e-3)) + 1))
    return calls


def _trial(work: Work, device: torch.device, calls: int, flushed: torch.Tensor | None) -> tuple[float, float]:
    """Microseconds a call, by the host's clock and by the device's events (which are 0 on a CPU)."""
    if device.type != "cuda":
        started = time.perf_counter()
        for _ in range(calls):
            work()
        return (time.perf_counter() - started) / calls * 1e6, 0.0
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    started = time.perf_counter()
    if flushed is not None:
        flushed.zero_()
    first.record()
    for _ in range(calls):
        work()
    last.record()
    torch.cuda.synchronize(device)
    return (time.perf_counter() - started) / calls * 1e6, first.elapsed_time(last) / calls * 1e3


def counted(works: Mapping[str, Work], device: torch.device) -> dict[str, Row]:
    """What each work launches, called once, under the profiler; on a GPU once in a process, and after all timing, for it slows launches.

    Args:
        works: By name; they have been called before, so that nothing compiles.
        device: Where the work is done.

    Returns:
        By name: `host_launches`, `device_operations` (kernels, copies, sets), `operators` that PyTorch dispatched, `device_us`, the sum of
        the operations, and how often each of the `kernels` ran, by name. Without a GPU the operators alone; the others are None.

    Raises:
        RunError: The profiler lost records, or saw no launch where there must be one.
    """
    on_gpu = device.type == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        with recording(path, device=device):
            for name, work in works.items():
                with record_function(f"{name}, counted"), record_function("step 0"):
                    work()
                synchronize(device)
        events = read_events(path)
    labels = {event.name.removesuffix(", counted"): event for event in events if event.category == LABEL}
    steps = {step.implementation.removesuffix(", counted"): step.whole for step in trace_of(events).steps}
    calls = [event for event in events if event.category in CALLS]
    kernels = {event.correlation: event.name for event in sorted(events, key=lambda event: event.start) if event.category == KERNEL}
    found = {}
    for name in works:
        label, whole = labels[name], steps[name]
        if on_gpu and not whole.host_launches:
            raise RunError(f"the profiler saw no launch in {name}")
        inside = [call.correlation for call in calls if call.track == label.track and label.start <= call.start < label.end]
        found[name] = {
            "host_launches": whole.host_launches if on_gpu else None,
            "device_operations": whole.device_operations if on_gpu else None,
            "operators": whole.operators,
            "device_us": round(whole.device_time, 3) if on_gpu else None,
            "kernels": dict(Counter(kernels[number] for number in inside if number in kernels)) if on_gpu else None,
        }
    return found


def copy_bandwidth(device: torch.device, trials: int = 10) -> float:
    """Bytes a second that a device reads and writes while it copies an array larger than its caches: the roof of all that moves bytes."""
    source = torch.zeros(ROOF_BYTES[device.type], dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    figures = timed({"copy": lambda: target.copy_(source)}, device, trials)["copy"]
    return 2 * source.numel() / (median_us(figures) * 1e-6)


def median_us(row: Row) -> float:
    """The median of a row's own clock: events where there are any, else the host's."""
    return float(clock(row)["median"])


def clock(row: Row) -> dict[str, Any]:
    """The times that speak for a row: by events where there are any, else by the host's clock; empty where it has no times."""
    return row.get("events_us") or row.get("wall_us") or {}


def comparison(first: Path, second: Path) -> str:
    """A table of the ratios of two files of results: medians of the second over those of the first, by the clock that both have.

    The spread of a ratio is from p10 of the second over p90 of the first to p90 over p10; where 1 lies in it, the difference is noise.

    Raises:
        UsageError: A file cannot be read, they are of different benchmarks, or have no measured case in common.
    """
    a, b = read_results(first), read_results(second)
    if a.head["benchmark"] != b.head["benchmark"]:
        raise UsageError(f"{shown(first)} is of {a.head['benchmark']} and {shown(second)} of {b.head['benchmark']}: nothing to compare")
    rows = {json.dumps(row["case"], sort_keys=True): row for row in a.measured()}
    lines = [f"{label}: {described(read.head)}" for label, read in (("A", a), ("B", b))]
    table = [["case", "A us", "B us", "B / A", "from", "to", ""]]
    for row_b in b.measured():
        row_a = rows.get(json.dumps(row_b["case"], sort_keys=True), {})
        clocks = [name for name in ("events_us", "wall_us") if row_a.get(name) and row_b.get(name)]
        if clocks:
            one, other = row_a[clocks[0]], row_b[clocks[0]]
            ratio, low, high = other["median"] / one["median"], other["p10"] / one["p90"], other["p90"] / one["p10"]
            verdict = "noise" if low <= 1 <= high else "slower" if ratio > 1 else "faster"
            name = ", ".join(str(value) for value in row_b["case"].values())
            table.append([name, f"{one['median']:.2f}", f"{other['median']:.2f}", f"{ratio:.3f}", f"{low:.3f}", f"{high:.3f}", verdict])
    if len(table) == 1:
        raise UsageError(f"{shown(first)} and {shown(second)} have no measured case in common")
    return "\n".join([*lines, "", aligned(table)])


def described(head: Mapping[str, Any]) -> str:
    """The machine of some results, in a line."""
    at = head["machine"]
    return f"{at['processor']}, torch {at['torch']}, Triton {at['triton']}, commit {at['commit'][:10] or 'unknown'}, {head['started']}"


def aligned(table: Sequence[Sequence[str]]) -> str:
    """Columns of text, the first flush left, the others flush right."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in table
    )


def machine(device: torch.device) -> dict[str, Any]:
    """Where and with what figures are measured."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        processor = models[0] if models else processor
    found = {
        "processor": processor,
        "host": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton") if importlib.util.find_spec("triton") else None,
        "python": platform.python_version(),
        "commit": _commit(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "processor": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
            "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0],
        }
    return found


def _commit() -> str:
    """Of this project, with "+" where files differ from it; empty where there is no history."""
    here = Path(__file__).parent
    commit = _output("git", "-C", str(here), "rev-parse", "HEAD")
    return commit + ("+" if commit and _output("git", "-C", str(here), "status", "--porcelain", "--untracked-files=no") else "")


def _output(*command: str) -> str:
    """What a command prints, or nothing where it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
