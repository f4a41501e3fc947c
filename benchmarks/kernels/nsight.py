"""Nsight Compute: running a program under it, and reading what it counted of each kernel."""

import csv
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernels.rules import Counters
from physarum.errors import UsageError

# The kernels by label, as Nsight Compute knows them.
KERNELS = {"sense+motor": "sense_motor_kernel", "deposit": "deposit_kernel", "diffuse+decay": "diffuse_decay_kernel"}

NCU_PLACES = "/usr/local/cuda/bin"
NCU_SECONDS = 120
METRICS = {
    "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_sectors": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "l1_hit": "l1tex__t_sector_hit_rate.pct",
    "sm": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "sectors": "memory_l2_theoretical_sectors_global",
    "ideal": "memory_l2_theoretical_sectors_global_ideal",
}
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
STALLS = {  # in the words of the Kernel Profiling Guide, shortened
    "long_scoreboard": "data from L1, L2 or memory",
    "short_scoreboard": "shared memory or a special function",
    "lg_throttle": "room in the queue of loads and stores",
    "mio_throttle": "room in the queue of shared memory and special functions",
    "tex_throttle": "room in the queue of textures",
    "math_pipe_throttle": "a busy arithmetic unit",
    "wait": "the fixed latency of an instruction",
    "not_selected": "its turn, another warp being chosen",
    "no_instruction": "instructions to be fetched",
    "branch_resolving": "where a branch goes",
    "barrier": "other warps of the program",
    "membar": "a memory barrier",
    "drain": "stores to be done before its end",
    "imc_miss": "constants to be fetched",
    "dispatch_stall": "the dispatcher",
    "sleeping": "its own sleep",
    "misc": "something else",
}


def find_ncu() -> str | None:
    """Nsight Compute's program, if it is here."""
    return shutil.which("ncu") or shutil.which("ncu", path=NCU_PLACES)


def ncu_command(ncu: str, log: Path, program: Sequence[str]) -> list[str]:
    """A program under Nsight Compute: each kernel once, as soon as the program lets profilers record."""
    return [
        ncu,
        *("--profile-from-start", "off", "--kernel-name", f"regex:{'|'.join(KERNELS.values())}", "--launch-count", str(len(KERNELS))),
        *("--target-processes", "application-only", "--clock-control", "none", "--cache-control", "none"),
        *("--section", "WarpStateStats", "--metrics", ",".join(METRICS.values())),
        *("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)),
        *program,
    ]


def counters(program: Sequence[str]) -> dict[str, Counters]:
    """What Nsight Compute counts, by kernel, while a program runs a step.

    Raises:
        UsageError: It is not here, or cannot count here.
    """
    ncu = find_ncu()
    if ncu is None:
        raise UsageError(f"no counters: there is no ncu in PATH or {NCU_PLACES}, which is NVIDIA's Nsight Compute")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "ncu.csv")
        try:
            done = subprocess.run(ncu_command(ncu, log, program), capture_output=True, text=True, check=False, timeout=NCU_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise UsageError(f"no counters: Nsight Compute was not done after {NCU_SECONDS} s") from error
        said = log.read_text(errors="replace") if log.exists() else ""
    found = read_counters(said)
    if not found:
        raise UsageError(why_no_counters(said + done.stdout + done.stderr))
    return found


def why_no_counters(said: str) -> str:
    """What Nsight Compute's output says of its failure, in a sentence."""
    if "ERR_NVGPUCTRPERM" in said:
        return (
            "no counters: this user may not read them (ERR_NVGPUCTRPERM); ask the administrator for the option "
            "NVreg_RestrictProfilingToAdminUsers=0 of the driver's module nvidia, or in a container for the capability SYS_ADMIN"
        )
    lines = [line for line in said.splitlines() if "==ERROR==" in line] or said.splitlines()[-1:]
    cause = lines[0].replace("==ERROR==", "").strip()[:200] if lines else "it said nothing"
    return f"no counters: Nsight Compute failed ({cause})"


def read_counters(text: str) -> dict[str, Counters]:
    """Read the raw page of Nsight Compute as CSV: after messages a row of names, one of units, then one a kernel.

    Args:
        text: With `--csv --page raw --print-units base`.

    Returns:
        By label, of the first launch of each kernel that has all METRICS.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found: dict[str, Counters] = {}
    for row in csv.DictReader(line for line in lines[start:] if line.startswith('"')):
        label = next((label for label, function in KERNELS.items() if function in row["Kernel Name"]), None)
        numbers = {name: value for name, text in row.items() if (value := number(text)) is not None}
        if label is not None and label not in found and numbers.keys() >= set(METRICS.values()):
            found[label] = counters_of(numbers)
    return found


def number(text: str | None) -> float | None:
    """A number with or without separators of thousands; None where it is none, as in the row of units, or not available."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def counters_of(numbers: Mapping[str, float]) -> Counters:
    """The counters of a launch from its numbers by metric."""
    of = {name: numbers[metric] for name, metric in METRICS.items()}
    stalls = {STALLS[found[1]]: value for name, value in numbers.items() if (found := STALL.fullmatch(name)) and found[1] in STALLS}
    return Counters(
        dram=of["dram"],
        l2=of["l2"],
        l2_sectors=of["l2_sectors"],
        l1_hit=of["l1_hit"],
        sm=of["sm"],
        issue=of["issue"],
        occupancy=of["occupancy"],
        sectors_a_load=of["load_sectors"] / max(of["load_requests"], 1),
        excess=1 - of["ideal"] / max(of["sectors"], 1),
        stalls=tuple(sorted(stalls.items(), key=lambda stall: -stall[1])),
    )
