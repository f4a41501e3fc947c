"""The report on kernels, without a GPU: its rules, its reading of Nsight Compute, what is compiled, and all of it in Triton's interpreter.

Run as a program under TRITON_INTERPRET=1, this file is the part that needs the interpreter, chosen when a kernel is defined.
"""

import dataclasses
import json
import os
import subprocess
import sys
from argparse import Namespace
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import kernel_report as report
import pytest
import torch
import worlds as worlds_module
from harness import Results, read_results
from kernels import nsight
from worlds import bytes_a_step

from physarum import UsageError, World
from physarum.backends import triton_backend
from physarum.errors import RunError
from physarum.model.start import random_start
from physarum.model.world import as_worlds

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "kernel_report.py"

# Kernels of which no rule speaks, but that one of two must: at the roof, or below it.
CODE = report.Code(registers=32, stack=0, local=0, shared=0, occupancy=1.0, limited_by="nothing", flop=1000)
TIMES = report.Times(
    us=100, host_us=50, programs=10_000, at_once=1000, bytes=10**9, l2_bytes=10**8, roof_share=0.9, intensity=3, ridge=6
)  # fmt: skip
COUNTERS = report.Counters(
    dram=65, l2=65, l2_sectors=60, l1_hit=50, sm=60, issue=60, occupancy=90, sectors_a_load=4, excess=0.1,
    stalls=(("data", 9.25), ("its turn", 2.0), ("a branch", 1.0), ("drain", 0.5)),
)  # fmt: skip

FIRES = {
    "spills": [{"stack": 8}, {"local": 16}],
    "few warps": [{"occupancy": 0.49}],
    "launch-bound": [{"us": 49.0}],
    "small grid": [{"programs": 999}],
    "held by L2": [{"bytes": 10**8 - 1}],
    "compute-bound": [{"intensity": 6.1}],
    "at the roof": [{}],
    "below the roof": [{"roof_share": 0.79}],
    "scattered": [{"excess": 0.31}],
    "L2-request-bound": [{"l2": 70}],
    "memory-bound": [{"dram": 70}],
    "issue-bound": [{"issue": 70}],
    "waiting": [{"dram": 59, "l2": 59, "sm": 59, "issue": 59}],
}
QUIET = {
    "spills": [{}],
    "few warps": [{"occupancy": 0.5}],
    "launch-bound": [{"us": 50.0}],
    "small grid": [{"programs": 1000}],
    "held by L2": [{"bytes": 10**8}],
    "compute-bound": [{"intensity": 6.0}],
    "at the roof": [{"roof_share": 0.79}, {"bytes": 1}],
    "below the roof": [{}, {"roof_share": 0.7, "bytes": 1}, {"roof_share": 0.7, "us": 1.0}, {"roof_share": 0.7, "intensity": 7}],
    "scattered": [{"excess": 0.3}],
    "L2-request-bound": [{}, {"l2": 90, "dram": 80}],
    "memory-bound": [{"dram": 69.9}],
    "issue-bound": [{"issue": 69.9}],
    "waiting": [{"dram": 60, "l2": 1}, {"sm": 61, "dram": 1, "l2": 1, "issue": 1}],
}
TABLES = [(report.CODE_RULES, CODE), (report.TIME_RULES, TIMES), (report.COUNTER_RULES, COUNTERS)]
RULES = [(rules, rule.name, known) for rules, known in TABLES for rule in rules]


@pytest.mark.parametrize(("rules", "name", "known"), RULES, ids=[name for _, name, _ in RULES])
def test_each_rule_speaks_when_it_must_and_is_silent_else(rules: Any, name: str, known: Any) -> None:
    for change in FIRES[name]:
        assert [line for line in report.findings(rules, dataclasses.replace(known, **change)) if line.startswith(f"{name}: ")], change
    for change in QUIET[name]:
        assert not [line for line in report.findings(rules, dataclasses.replace(known, **change)) if line.startswith(f"{name}: ")], change


def test_the_rules_say_figures() -> None:
    assert report.findings(report.TIME_RULES, None) == []
    (few,) = report.findings(report.CODE_RULES, dataclasses.replace(CODE, occupancy=0.25, limited_by="registers"))
    assert "room for 25% of the warps, limited by registers" in few
    (waiting,) = report.findings(report.COUNTER_RULES, dataclasses.replace(COUNTERS, dram=1, l2=1, sm=1, issue=1))
    assert waiting.endswith("it waits for data (9.2), its turn (2.0), a branch (1.0)")


# Accounting


def test_the_kernels_move_what_a_step_must_and_the_price_of_three_launches() -> None:
    agents, cells, occupied = 1000, 4000, 300
    moved = {kernel: report.bytes_moved(kernel, agents, cells, occupied) for kernel in report.KERNELS}
    assert moved == {"sense+motor": 24 * 1000 + 4 * 4000, "deposit": 8 * 1000 + 8 * 300, "diffuse+decay": 16 * 4000}
    assert sum(moved.values()) == bytes_a_step(agents, cells) + 8 * agents + 8 * occupied


def test_cells_that_hold_an_agent_are_counted_once() -> None:
    state = random_start(as_worlds(World(seed=1)), (8, 5), 3)
    state = dataclasses.replace(state, x=torch.tensor([[[0.1, 0.9, 7.9]]]), y=torch.tensor([[[4.0, 4.99, 0.0]]]))
    assert report.occupied_cells(state) == 2


def test_operations_are_counted_in_ptx() -> None:
    ptx = """
        add.rn.f32 \t%r1, %r2, %r3;
        sub.f32 %r1, %r2, %r3;
        @%p1 mul.rn.f32 %r1, %r2, %r3;
        fma.rn.f32 %r1, %r2, %r3, %r4;
        add.rn.f32x2 %rd1, %rd2, %rd3;
        setp.lt.f32 %p1, %r2, %r3;
        add.s32 %r1, %r2, %r3;
        neg.f32 %r1, %r2;
        cvt.rn.f32.s32 %r1, %r2;
    """
    assert report.flop_in(ptx) == 1 + 1 + 1 + 2 + 2


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "limit"),
    [(32, 0, 4, "nothing"), (64, 0, 4, "registers"), (32, 40_000, 4, "shared memory"), (16, 0, 1, "the number of programs")],
)
def test_what_limits_occupancy_is_named(registers: int, shared: int, warps: int, limit: str) -> None:
    assert report.limited_by("9.0", registers, shared, warps) == limit


def test_time_stands_to_the_machine() -> None:
    machine = report.Machine("9.0", multiprocessors=132, l2_bytes=50, bandwidth=4e12, arithmetic=2.4e13)
    code = dataclasses.replace(CODE, occupancy=28 / 64, flop=600)
    known = report.times_of(machine, code, programs=1000, warps=4, moved=2_000_000, us=1.0, enqueuing=30.0)
    assert known.at_once == 7 * 132
    assert known.roof_share == pytest.approx(0.5)
    assert known.intensity == pytest.approx(0.3)
    assert known.ridge == pytest.approx(6)


# Configurations


def test_every_kernel_comes_in_every_configuration_and_the_default_first() -> None:
    made = report.combinations()
    assert made[0] == report.DEFAULT == report.Blocks(256, 512, 4, 4)
    assert {(b.agents, b.warps) for b in made} == {(a, w) for a in (128, 256, 512, 1024) for w in (2, 4, 8)}
    fields = {(b.strip, b.band, b.warps) for b in made}
    assert fields == {(s, b, w) for s in (256, 512, 1024) for b in (2, 4, 8) for w in (2, 4, 8)}


def test_the_backend_is_left_as_it_was() -> None:
    before = triton_backend.AGENTS_A_PROGRAM, triton_backend.WIDEST_STRIP, triton_backend.BAND, dict(triton_backend.OPTIONS)
    with suppress(KeyError), report.configured(report.Blocks(128, 256, 2, 8)):
        assert (triton_backend.AGENTS_A_PROGRAM, triton_backend.WIDEST_STRIP, triton_backend.BAND) == (128, 256, 2)
        assert triton_backend.OPTIONS == {"num_warps": 8, "enable_fp_fusion": False}
        raise KeyError
    assert before == (triton_backend.AGENTS_A_PROGRAM, triton_backend.WIDEST_STRIP, triton_backend.BAND, triton_backend.OPTIONS)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, choices in {"AGENTS": (128,), "STRIPS": (), "BANDS": (2,), "WARPS": (8,)}.items():
        monkeypatch.setattr(report, name, choices)


def test_launches_are_recorded_and_not_done(few: None) -> None:
    backend = report.Recorder("cpu")
    worlds = as_worlds(World(seed=1))
    backend.load(worlds, random_start(worlds, (40, 30), 1000))
    launches = report.distinct_launches(backend)
    assert backend.step == 0
    by_kernel = {
        kernel: {str(report.variant(kernel, blocks)): launch for (name, blocks), launch in launches.items() if name == kernel}
        for kernel in report.KERNELS
    }
    assert {kernel: len(own) for kernel, own in by_kernel.items()} == {"sense+motor": 4, "deposit": 4, "diffuse+decay": 4}, "one strip"
    default = launches["deposit", report.DEFAULT._replace(strip=512)]
    assert (default.programs, default.keywords["BLOCK"], default.keywords["num_warps"]) == (4, 256, 4)
    assert next(iter(launches))[1].agents == report.DEFAULT.agents
    field = {(launch.programs, launch.keywords["STRIP"], launch.keywords["BAND"]) for launch in by_kernel["diffuse+decay"].values()}
    assert field == {(8, 64, 4), (15, 64, 2)}


# Without a GPU


def test_without_a_gpu_it_compiles_and_says_what_was_not_run(few: None, capsys: pytest.CaptureFixture[str]) -> None:
    kept = Results({}, [])
    report.report_offline(kept, "9.0", [((400, 400), 5000), ((64, 64), 4096)], "they need an NVIDIA GPU")
    said = capsys.readouterr().out
    measured, others = kept.measured(), [row for row in kept.rows if row["status"] == "not run"]
    assert len(measured) == 12
    assert len(others) == 24
    assert {row["why"] for row in others} == {"they need an NVIDIA GPU"}
    assert {(row["case"]["size"], row["case"]["agents"]) for row in others} == {("400x400", 5000), ("64x64", 4096)}
    rows = {(row["case"]["kernel"], row["case"]["block"], row["case"]["warps"]): row for row in measured}
    assert [key for key, row in rows.items() if row["default"]] == [
        ("sense+motor", "256", 4),
        ("deposit", "256", 4),
        ("diffuse+decay", "512x4", 4),
    ]
    for row in measured:
        assert 8 <= row["code"]["registers"] <= 255
        assert row["code"]["stack"] + row["code"]["local"] == 0
    assert rows["diffuse+decay", "512x4", 4]["code"]["flop"] > 512 * 4 * 10
    assert rows["deposit", "256", 4]["code"]["flop"] == 0
    assert rows["diffuse+decay", "512x4", 8]["code"]["registers"] < rows["diffuse+decay", "512x4", 4]["code"]["registers"]
    assert said.count("default\n") == 3
    assert "no times: they need an NVIDIA GPU" in said


# Nsight Compute

NUMBERS = {
    "dram": "39.4", "l2": "76.25", "l2_sectors": "61", "l1_hit": "48.1", "sm": "58.5", "issue": "60", "occupancy": "97",
    "load_sectors": "1,200,000", "load_requests": "100,000", "sectors": "2,000,000.5", "ideal": "860,000",
}  # fmt: skip
STALLS = {
    "long_scoreboard": "11.5",
    "wait": "2.25",
    "not_selected": "3.5",
    "selected": "1",
    "long_scoreboard_not_issued": "10",
    "drain": "0",
}


def raw_page(kernels: list[str], numbers: dict[str, str]) -> str:
    """As Nsight Compute writes it: messages, names, units, a launch a line, all in quotes."""
    metrics = {nsight.METRICS[name]: value for name, value in numbers.items()}
    metrics |= {f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio": value for name, value in STALLS.items()}
    fixed = {"ID": "0", "Process ID": "7", "Process Name": "python3.12", "Host Name": "127.0.0.1"}
    rest = {"Context": "1", "Stream": "7", "Block Size": "(128, 1, 1)", "Grid Size": "(4096, 1, 1)", "Device": "0", "CC": "9.0"}
    lines = [[*fixed, "Kernel Name", *rest, *metrics], [""] * (len(fixed) + 1 + len(rest)) + ["%"] * len(metrics)]
    lines += [[*fixed.values(), kernel, *rest.values(), *metrics.values()] for kernel in kernels]
    messages = '==PROF== Connected to process 7 (/usr/bin/python3.12)\n==PROF== Profiling "deposit_kernel" - 0: 0%....100% - 9 passes\n'
    return messages + "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in lines)


def test_counters_are_read() -> None:
    found = nsight.read_counters(raw_page(["sense_motor_kernel", "deposit_kernel(int, float *)", "elsewhere"], NUMBERS))
    assert list(found) == ["sense+motor", "deposit"]
    seen = found["sense+motor"]
    assert seen == found["deposit"]
    assert (seen.dram, seen.l2, seen.l1_hit, seen.issue, seen.occupancy) == (39.4, 76.25, 48.1, 60, 97)
    assert seen.sectors_a_load == 12
    assert seen.excess == pytest.approx(0.57, abs=1e-3)
    assert [words for words, _ in seen.stalls] == [nsight.STALLS[n] for n in ("long_scoreboard", "not_selected", "wait", "drain")]
    told = report.findings(report.COUNTER_RULES, seen)
    assert [line.partition(":")[0] for line in told] == ["scattered", "L2-request-bound"]


@pytest.mark.parametrize("text", ["", "==PROF== nothing\n", raw_page([], NUMBERS), raw_page(["deposit_kernel"], NUMBERS | {"l2": "n/a"})])
def test_what_is_not_there_is_not_made_up(text: str) -> None:
    assert nsight.read_counters(text) == {}


FAILURES = {
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission": "NVreg_RestrictProfilingToAdminUsers=0",
    "==PROF== x\n==ERROR== Failed to find metric regex:^a\\.b": r"Nsight Compute failed (Failed to find metric regex:^a\.b)",
    "": "it said nothing",
}


@pytest.fixture
def ncu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A program in the place of Nsight Compute, which writes down its arguments and copies a file to its log."""
    program = tmp_path / "ncu"
    program.write_text(
        "#!/bin/sh\n"
        f'for word in "$@"; do echo "$word" >>{tmp_path}/words; done\n'
        'while [ "$1" != --log-file ]; do shift; done\n'
        f'cp {tmp_path}/page "$2"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_it_runs_itself_under_nsight_compute(ncu: Path) -> None:
    (ncu / "page").write_text(raw_page(list(report.KERNELS.values()), NUMBERS))
    program = [sys.executable, str(SCRIPT), "--nvtx"]
    assert list(nsight.counters(program)) == list(report.KERNELS)
    words = (ncu / "words").read_text().splitlines()
    assert words[words.index("--kernel-name") + 1] == "regex:sense_motor_kernel|deposit_kernel|diffuse_decay_kernel"
    assert words[words.index("--launch-count") + 1] == "3"
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[-3:] == program


@pytest.mark.parametrize("page", FAILURES)
def test_why_nothing_could_be_counted_is_a_sentence(ncu: Path, page: str) -> None:
    (ncu / "page").write_text(page)
    with pytest.raises(UsageError) as caught:
        nsight.counters(["program"])
    assert FAILURES[page] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_nsight_compute_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsight.shutil, "which", lambda *_, **__: None)
    with pytest.raises(UsageError, match="no counters: there is no ncu in PATH or /usr/local/cuda/bin"):
        nsight.counters(["program"])


# Words


def row_of(kernel: str, block: str, us: float, default: bool, best: bool) -> dict[str, Any]:
    times = dataclasses.asdict(dataclasses.replace(TIMES, us=us))
    events = {"median": us, "p10": us - 1, "p90": us + 1}
    case = {"size": "512x512", "kernel": kernel, "block": block, "warps": 4}
    known = {"code": dataclasses.asdict(CODE), "times": times, "events_us": events, "bytes_per_s": 1e9}
    return {"case": case, **known, "default": default, "best": best}


@pytest.mark.parametrize(
    ("us", "said"),
    [
        (98.5, "no configuration is faster than the default beyond noise (nearest: block 512, 4 warps, 1.5%)"),
        (90, "block 512, 4 warps: 10.0% faster than the default"),
        (None, "the default, block 256, 4 warps, is the fastest"),
    ],
)
def test_a_gain_within_noise_is_none(us: float | None, said: str) -> None:
    rows = [row_of("deposit", "256", 100, True, us is None), row_of("deposit", "512", us or 120, False, us is not None)]
    lines = report.verdict(rows)
    assert lines[1] == said
    assert lines[0].startswith("deposit at 512x512: 100.0 us for 1000.0 MB, 90% of a copy's rate; 3.0 FLOP a byte, ridge 6.0: memory-bound")
    assert lines[2:] == report.findings(report.TIME_RULES, TIMES)


def test_the_path_of_a_gpu_in_the_interpreter(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path / "a.jsonl")],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": f"{ROOT / 'benchmarks'}:{ROOT}", "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"refused": True, "same": True}
    kept = read_results(tmp_path / "a.jsonl")
    assert kept.head["counters"].startswith("no counters: there is no ncu")
    assert len(kept.measured()) == 12
    assert [row["best"] for row in kept.rows].count(True) == [row["default"] for row in kept.rows].count(True) == 3
    deposit = next(row for row in kept.rows if row["case"]["kernel"] == "deposit" and row["default"])
    assert deposit["bytes_per_s"] == pytest.approx(deposit["times"]["bytes"] / deposit["events_us"]["median"] * 1e6, rel=1e-3)
    assert "16x12 cells, 60 agents" in done.stdout
    assert "- held by L2: " in done.stdout


def interpreted(path: Path) -> None:
    """Report a small world in the interpreter, with figures of no worth where a GPU is asked; then with a kernel that errs."""
    calls = iter(range(1, 10**6))

    def timed(works: Any, device: torch.device, trials: int) -> Any:
        for work in works.values():
            work()
        return {name: {"events_us": {"samples": [next(calls) * 1.0 for _ in range(trials)]}, "calls": 1, "l2": "warm"} for name in works}

    report.AGENTS, report.STRIPS, report.BANDS, report.WARPS = (32,), (), (8,), (8,)
    worlds_module.GATE_STEPS = report.GATE_STEPS = report.ENQUEUED = 2
    report.developed = partial(report.developed, steps=2)
    report.copy_bandwidth = report.arithmetic_rate = lambda device: 1e12
    report.runnable = lambda *_: None
    report.repeated = lambda launch: launch
    report.timed = timed
    report.Launch.compiled = lambda launch: None
    report.code_of = lambda *_: CODE
    torch.cuda.empty_cache = lambda: None
    arguments = Namespace(device=torch.device("cpu"), size=[(16, 12)], agents=[60], trials=3)
    kept = Results({"benchmark": "x", "machine": {"capability": "9.0", "multiprocessors": 132, "l2_bytes": 10**8}}, [])
    report.report_measured(arguments, kept)
    path.write_text("".join(json.dumps(line) + "\n" for line in (kept.head, *kept.rows)))

    # What is recorded and launched is what the backend does.
    worlds = as_worlds(World(seed=1))
    start = random_start(worlds, (16, 12), 60)
    recorder, backend = report.Recorder("cpu"), triton_backend.TritonBackend("cpu")
    for one in (recorder, backend):
        one.load(worlds, start)
    launches = recorder.launches()
    for launch in launches.values():
        launch()
    backend.advance(1)
    trail = launches["diffuse+decay"].arguments[6]
    same = torch.equal(trail, backend.trail()) and torch.equal(launches["sense+motor"].arguments[12], backend._now.agents.x)

    # Blocks of 32 agents that are one cell off must not pass the gate.
    launch = triton_backend.TritonBackend._launch

    def err(self: Any, label: str, labelled: bool, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        launch(self, label, labelled, kernel, programs, *arguments, **constants)
        if constants.get("BLOCK") == 32 and label == "deposit":
            arguments[3].view(-1)[0] += 1

    triton_backend.TritonBackend._launch = err
    try:
        report.check_bits(torch.device("cpu"), (16, 12), 60)
        refused = False
    except RunError as error:
        refused = "no figures: with Blocks(agents=32" in str(error)
    print(json.dumps({"refused": refused, "same": same}))


if __name__ == "__main__":
    interpreted(Path(sys.argv[1]))
