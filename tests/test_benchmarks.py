"""The benchmarks run, at toy size."""

import runpy
import signal
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
        ("compare_backends.py", ["--backends", "triton"], "the backend triton needs an NVIDIA GPU"),
        ("compare_backends.py", ["--backends", "tritn"], "there is no backend 'tritn' (did you mean triton?)"),
        ("compare_backends.py", ["--steps", "0"], "0 is no whole number of 1 or more"),
        ("compare_backends.py", ["--trials", "2"], "2 is no whole number of 3 or more"),
        ("compare_backends.py", ["--size", "40"], "'40' is no size such as 1024x1024"),
        ("compare_backends.py", ["--agents", "1,2"], "--agents has 2 numbers for 1 sizes"),
        ("compare_backends.py", ["--device", "cuda:x"], "there is no device"),
        ("compare_backends.py", ["--json", "no/such/folder/a.jsonl"], "its folder does not exist"),
        ("compare_backends.py", ["--plot", "a.foo"], "its suffix must be one of"),
        ("compare_backends.py", ["--compare", "a.jsonl", "b.jsonl"], "a.jsonl cannot be read as results"),
        ("cold_start.py", ["--backends", "triton"], "an NVIDIA GPU"),
        ("cold_start.py", ["--trials", "0"], "0 is no whole number of 3 or more"),
        ("clock.py", ["--backend", "triton"], "an NVIDIA GPU"),
        ("clock.py", ["--steps", "-1"], "--steps"),
        ("scaling.py", ["--sweeps", "wide-sides"], "there is no sweep 'wide-sides' (did you mean wide-side?)"),
        ("scaling.py", ["--backends", "triton"], "the backend triton needs an NVIDIA GPU"),
        ("scaling.py", ["--largest-side", "0"], "0 is no whole number of 1 or more"),
        ("scaling.py", ["--largest-side", "49"], "there is nothing to measure"),
        ("scaling.py", ["--read", "a.jsonl"], "a.jsonl cannot be read as results"),
        ("published.py", ["--cure", "seem"], "there is no defect 'seem' (did you mean seam?)"),
        ("published.py", ["--parts", "time"], "there is no part 'time' (did you mean times?)"),
        ("published.py", ["--size", "64x48,32x32", "--agents", "1,2,3"], "--agents has 3 numbers for 2 sizes"),
        ("published.py", ["--backends", "triton"], "the backend triton needs an NVIDIA GPU"),
        ("published.py", ["--picture", "no/folder/a.png"], "its folder does not exist"),
        ("fusion_lab.py", ["--cases", "gelu,sofmax"], "there is no case 'sofmax' (did you mean softmax?)"),
        ("fusion_lab.py", ["--scale", "huge"], "--scale"),
        ("kernel_report.py", ["--capability", "7.5"], "the compute capability '7.5' is not known"),
        ("kernel_report.py", ["--nvtx"], "the backend triton needs an NVIDIA GPU"),
        ("kernel_report.py", ["--nvtx", "--capability", "9.0"], "--nvtx measures nothing"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    name: str, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", [name, "--device", "cpu", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / name), run_name="__main__")
    told = capsys.readouterr()
    assert ended.value.code == 2
    assert told.out == ""
    assert told.err.splitlines()[-1].startswith(f"{name}: error: ")
    assert said in told.err.splitlines()[-1]


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
