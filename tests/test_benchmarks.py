"""The benchmarks run, at toy size."""

import subprocess
import sys
from pathlib import Path

import harness
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
TOY = ["--size", "40x30", "--agents", "200", "--device", "cpu"]
TRACE = ROOT / "tests" / "traces" / "h200.json.gz"


def benchmark(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ROOT / "benchmarks" / name, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "words", "figure"),
    [
        ("compare_backends.py", ["--backends", "torch", "--steps", "2"], "agent_steps_per_s"),
        ("cold_start.py", ["--backends", "torch"], "later_us"),
        ("clock.py", ["--backend", "torch", "--steps", "2"], "returned_us"),
    ],
)
def test_figures_are_printed_and_kept_with_the_machine(name: str, words: list[str], figure: str, tmp_path: Path) -> None:
    done = benchmark(name, *TOY, *words, "--trials", "3", "--json", str(tmp_path / "a.jsonl"))
    assert done.returncode == 0, done.stderr
    assert "torch" in done.stdout
    assert "in 0 values" in done.stderr  # the gate
    kept = harness.read_results(tmp_path / "a.jsonl")
    assert {"torch", "python", "processor", "commit"} <= kept.head["machine"].keys()
    assert kept.rows
    for row in kept.rows:
        assert row["case"].items() >= {"size": "40x30", "agents": 200, "backend": "torch"}.items()
        assert row["status"] == "measured"
        assert row[figure]


def test_a_comparison_has_all_figures_of_all_worlds(tmp_path: Path) -> None:
    words = ["--size", "40x30,33x31", "--agents", "200,100", "--backends", "torch", "--steps", "2", "--trials", "3", "--device", "cpu"]
    files = ["--json", str(tmp_path / "a.jsonl"), "--plot", str(tmp_path / "a.png")]
    done = benchmark("compare_backends.py", *words, *files)
    assert done.returncode == 0, done.stderr
    first, second = (kept := harness.read_results(tmp_path / "a.jsonl")).rows
    assert [row["case"]["size"] for row in (first, second)] == ["40x30", "33x31"]
    times = first["wall_us"]
    assert times["p10"] < times["median"] < times["p90"] <= times["p99"]
    assert first["bytes_per_step"] == 24 * 200 + 20 * 40 * 30
    assert first["agent_steps_per_s"] == pytest.approx(200 / times["median"] * 1e6)
    assert first["roof_share"] == pytest.approx(first["bytes_per_s"] / kept.head["copy_bytes_per_s"])
    assert first["operators"] > 100
    assert first["cold_start_s"][0] > 0
    assert first["host_launches"] is None  # a CPU has none, and none is made up
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] > 1000
    compared = benchmark("compare_backends.py", "--compare", str(tmp_path / "a.jsonl"), str(tmp_path / "a.jsonl"))
    assert compared.returncode == 0, compared.stderr
    assert compared.stdout.count("1.000") == compared.stdout.count("noise") == 2


def test_what_does_not_fit_stays_in_the_table(tmp_path: Path) -> None:
    words = ["--size", "60000x60000,40x30", "--agents", "2000000000,200", "--backends", "torch", "--steps", "2", "--trials", "3"]
    done = benchmark("compare_backends.py", *words, "--device", "cpu", "--cold-starts", "0", "--json", str(tmp_path / "a.jsonl"))
    assert done.returncode == 0, done.stderr
    large, small = harness.read_results(tmp_path / "a.jsonl").rows
    assert (large["status"], small["status"]) == ("not run", "measured")
    assert "GB" in large["why"]
    assert "wall_us" not in large
    assert small["cold_start_s"] is None
    assert f"torch was not run: {large['why']}" in done.stdout


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("compare_backends.py", ["--backends", "triton"], "an NVIDIA GPU"),
        ("compare_backends.py", ["--backends", "tritn"], "there is no backend 'tritn' (did you mean triton?)"),
        ("compare_backends.py", ["--steps", "0"], "0 is no whole number of 1 or more"),
        ("compare_backends.py", ["--trials", "2"], "2 is no whole number of 3 or more"),
        ("compare_backends.py", ["--size", "40"], "'40' is no size"),
        ("compare_backends.py", ["--agents", "1,2"], "2 numbers for 1 sizes"),
        ("compare_backends.py", ["--device", "cuda:x"], "there is no device"),
        ("compare_backends.py", ["--json", "no/such/folder/a.jsonl"], "its folder does not exist"),
        ("compare_backends.py", ["--compare", "a.jsonl", "b.jsonl"], "a.jsonl cannot be read as results"),
        ("cold_start.py", ["--backends", "triton"], "an NVIDIA GPU"),
        ("cold_start.py", ["--trials", "0"], "0 is no whole number of 3 or more"),
        ("clock.py", ["--backend", "triton"], "an NVIDIA GPU"),
        ("clock.py", ["--steps", "-1"], "--steps"),
    ],
)
def test_what_cannot_be_is_refused(name: str, words: list[str], said: str) -> None:
    done = benchmark(name, *TOY, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("trace", "picture"), [("missing.json", "a.png"), ("h200.json.gz", "a.foo"), ("h200.json.gz", "no/folder/a.png")])
def test_a_trace_that_cannot_be_drawn_is_refused(trace: str, picture: str, tmp_path: Path) -> None:
    done = benchmark("draw_trace.py", str(TRACE.with_name(trace)), "-o", str(tmp_path / picture))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_trace_is_drawn(tmp_path: Path) -> None:
    done = benchmark("draw_trace.py", str(TRACE), "-o", str(tmp_path / "a.png"))
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] > 800
