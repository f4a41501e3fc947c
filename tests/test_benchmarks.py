"""The benchmarks run, at toy size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
TOY = ["--size", "40x30", "--agents", "200", "--device", "cpu"]


def benchmark(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ROOT / "benchmarks" / name, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("compare_backends.py", ["--backends", "torch", "--steps", "2", "--rounds", "2"]),
        ("cold_start.py", ["--backends", "torch", "--trials", "1"]),
        ("clock.py", ["--backend", "torch", "--steps", "2", "--trials", "2"]),
    ],
)
def test_figures_are_printed_and_kept_with_the_machine(name: str, words: list[str], tmp_path: Path) -> None:
    done = benchmark(name, *TOY, *words, "--json", str(tmp_path / "a.json"))
    assert done.returncode == 0, done.stderr
    assert "torch" in done.stdout
    kept = json.loads((tmp_path / "a.json").read_text())
    assert {"torch", "python", "processor", "commit"} <= kept["machine"].keys()


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("compare_backends.py", ["--backends", "triton"], "an NVIDIA GPU"),
        ("compare_backends.py", ["--backends", "tritn"], "there is no backend 'tritn'"),
        ("compare_backends.py", ["--steps", "0"], "0 is no whole number of 1 or more"),
        ("cold_start.py", ["--backends", "triton"], "an NVIDIA GPU"),
        ("cold_start.py", ["--trials", "0"], "0 is no whole number of 1 or more"),
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
    done = benchmark("draw_trace.py", str(ROOT / "tests" / "traces" / trace), "-o", str(tmp_path / picture))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_trace_is_drawn(tmp_path: Path) -> None:
    done = benchmark("draw_trace.py", str(ROOT / "tests" / "traces" / "h200.json.gz"), "-o", str(tmp_path / "a.png"))
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] > 800
