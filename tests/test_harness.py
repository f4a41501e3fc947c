"""What the benchmarks share: no clock that stands still, no row without a gate, no comparison that takes noise for a difference."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness
import pytest
import torch
import worlds

from physarum.backends.torch_backend import TorchBackend
from physarum.errors import RunError, UsageError

CPU = torch.device("cpu")
ROOT = Path(__file__).parent.parent


def written(path: Path, **medians: float) -> Path:
    """Results with these medians, from 5 % below to 5 % above."""
    machine = {"processor": "P", "torch": "2", "triton": None, "commit": "0123456789ab"}
    head = {"benchmark": "made up", "started": "then", "machine": machine}
    rows = [
        {"case": {"of": name}, "status": "measured", "wall_us": {"median": us, "p10": us * 0.95, "p90": us * 1.05}, "events_us": None}
        for name, us in medians.items()
    ]
    rows.append({"case": {"of": "nothing"}, "status": "not run", "why": "no machine"})
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, *rows)))
    return path


def test_quantiles_are_those_of_the_samples() -> None:
    figures = harness.Timing(tuple(float(i) for i in range(101))).figures()
    assert [figures[name] for name in ("median", "p10", "p90", "p99", "mean")] == [50, 10, 90, 99, 50]


def test_a_clock_that_stands_still_is_no_measurement() -> None:
    with pytest.raises(RunError, match="no measurement"):
        harness.Timing((3.0, 3.0, 3.0, 3.0))


def test_times_are_those_of_a_call_and_of_a_unit() -> None:
    def sleep(seconds: float) -> harness.Work:
        return lambda: time.sleep(seconds)

    found = harness.timed({"short": sleep(0.002), "long": sleep(0.006)}, CPU, 3, units=2)
    assert 1000 < found["short"]["wall_us"]["median"] < found["long"]["wall_us"]["median"]
    assert found["long"]["wall_us"]["median"] > 3000
    assert len(found["long"]["wall_us"]["samples"]) == 3
    assert found["long"]["events_us"] is None


def test_short_calls_are_timed_many_together_and_warmed_up() -> None:
    calls = []
    found = harness.timed({"nothing": lambda: calls.append(1)}, CPU, 3)
    assert found["nothing"]["calls"] == harness.MOST_CALLS
    assert len(calls) > 3 * harness.MOST_CALLS


def test_without_a_gpu_operators_are_counted_and_launches_are_not_made_up() -> None:
    x = torch.ones(8)
    found = harness.counted({"one": lambda: x + x, "two": lambda: (x + x) * x}, CPU)
    assert [found[name]["operators"] for name in ("one", "two")] == [1, 2]
    assert {found["one"][name] for name in ("host_launches", "device_operations", "device_us")} == {None}


def test_rows_whose_launches_cannot_be_counted_are_not_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(works: object, device: object) -> None:
        raise RunError("the profiler lost records")

    kept = harness.Results({}, [])
    kept.add({"of": "counted"}, lambda: torch.ones(1) + 1, wall_us={"median": 1})
    kept.count(CPU)
    kept.add({"of": "alone"}, wall_us={"median": 1})
    kept.add({"of": "lost"}, lambda: None, wall_us={"median": 1})
    monkeypatch.setattr(harness, "counted", fails)
    with pytest.raises(RunError, match="lost records"):
        kept.count(CPU)
    assert [row["status"] for row in kept.rows] == ["measured", "measured", "not run"]
    assert kept.rows[0]["operators"] == 2
    assert kept.rows[2]["why"] == "the profiler lost records"


def test_a_copy_reads_and_writes() -> None:
    assert 1e8 < harness.copy_bandwidth(CPU, trials=3) < 1e13


def test_a_difference_inside_the_spread_is_noise(tmp_path: Path) -> None:
    a = written(tmp_path / "a.jsonl", same=100, slow=100, fast=100, gone=1)
    b = written(tmp_path / "b.jsonl", same=105, slow=150, fast=50, new=1)
    lines = harness.comparison(a, b).splitlines()
    said = {line.split()[0]: line.split()[3:] for line in lines[4:]}
    assert said == {
        "same": ["1.050", "0.950", "1.161", "noise"],
        "slow": ["1.500", "1.357", "1.658", "slower"],
        "fast": ["0.500", "0.452", "0.553", "faster"],
    }


@pytest.mark.parametrize("content", ["", "{}", "[]\n{}", '{"benchmark": "x"}\n{"case": {}}', "\x00"])
def test_what_is_no_file_of_results_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(UsageError, match=r"a\.jsonl cannot be read as results"):
        harness.read_results(tmp_path / "a.jsonl")


def test_results_with_nothing_in_common_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no measured case in common"):
        harness.comparison(written(tmp_path / "a.jsonl", x=1), written(tmp_path / "b.jsonl", y=1))


def test_what_was_measured_is_kept_when_the_rest_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"

    def work() -> None:
        with harness.results("x", argparse.Namespace(device=CPU), path) as kept:
            kept.add({"of": "first"}, wall_us={"median": 1})
            raise RunError("the second is wrong")

    with pytest.raises(RunError, match="the second"):
        work()
    found = harness.read_results(path)
    assert [row["case"] for row in found.measured()] == [{"of": "first"}]
    assert found.head["machine"]["torch"] == torch.__version__


def test_a_process_that_is_told_to_end_keeps_its_rows(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(
        "import sys, time, harness\n"
        "def work(arguments, kept):\n"
        "    kept.add({'of': 'first'})\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "harness.run(harness.parser('x'), work)\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'benchmarks'}{os.pathsep}{ROOT}"}
    with subprocess.Popen([sys.executable, script, "--json", tmp_path / "a.jsonl"], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    assert len(harness.read_results(tmp_path / "a.jsonl").rows) == 1


def test_the_gate_passes_equal_bits_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(TorchBackend):
        """Moves one agent by the least there is, once."""

        def advance(self, steps: int, labelled: bool = False, by_stage: bool = True) -> None:
            super().advance(steps, labelled, by_stage)
            x = self._now.agents.x
            x[..., 7] = torch.nextafter(x[..., 7], torch.tensor(100.0))

    worlds.gate(["torch"], CPU, (40, 30), 200)
    monkeypatch.setitem(worlds.BACKENDS, "wrong", Wrong)
    with pytest.raises(RunError, match="no figures: wrong differs from torch in 1 values after 64 steps"):
        worlds.gate(["torch", "wrong"], CPU, (40, 30), 200)


def test_the_gate_sees_what_depends_on_the_order_of_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ordered(TorchBackend):
        """Turns the first agent, whoever that is."""

        def advance(self, steps: int, labelled: bool = False, by_stage: bool = True) -> None:
            super().advance(steps, labelled, by_stage)
            self._now.agents.heading[..., 0] += 1

    monkeypatch.setitem(worlds.BACKENDS, "torch", Ordered)
    with pytest.raises(RunError, match="no figures: torch differs from torch in 2 values"):
        worlds.gate(["torch"], CPU, (40, 30), 200)


def test_a_world_that_does_not_fit_is_told_with_one_that_does() -> None:
    assert worlds.too_large("torch", CPU, (40, 30), 200) is None
    assert "a world of" in str(worlds.too_large("torch", CPU, (65_536, 65_536), 1 << 31))


def test_worlds_are_paired_with_numbers_of_agents() -> None:
    made = argparse.ArgumentParser()
    worlds.add_world_options(made, "8x9,10x11", "5")
    assert worlds.chosen_worlds(made.parse_args([])) == [((8, 9), 5), ((10, 11), 5)]
    assert worlds.chosen_worlds(made.parse_args(["--agents", "1,2"])) == [((8, 9), 1), ((10, 11), 2)]
    with pytest.raises(UsageError, match="3 numbers for 2 sizes"):
        worlds.chosen_worlds(made.parse_args(["--agents", "1,2,3"]))
