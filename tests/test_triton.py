"""The Triton backend without a GPU: its kernels in the interpreter, and what is said where it cannot run. On a GPU: scripts/check_exact."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import AWKWARD, SIZE

from physarum import Simulation, UsageError
from physarum.backends import BACKENDS, choose, choose_device, compile_backend, needs, triton_backend
from physarum.backends.triton_backend import TritonBackend

TESTS = Path(__file__).parent
GPU = torch.device("cuda", 0)


def test_kernels_equal_the_model_in_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", TESTS / "interpreted_kernels.py"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if there were a GPU, as far as choosing goes."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


LACKS = {
    "Triton": ({}, "Triton, which is not installed"),
    "a new Triton": ({}, r"Triton 3\.4 or newer: this is 3\.3\.1"),
    "a Triton that does not fuse on Blackwell": ({}, r"Triton 3\.7 or newer: 3\.6\.0 rounds products and sums as one on this GPU"),
    "a compiler": ({"CC": "/nonexistent/cc"}, r"C compiler: there is no /nonexistent/cc \(on Debian and Ubuntu: apt install gcc\)"),
    "any compiler": ({"PATH": "/nonexistent"}, r"C compiler: there is no gcc or clang \(on Debian and Ubuntu: apt install gcc\)"),
    "headers": ({}, r"Python\.h.*apt install python3-dev"),
    "no interpreter": ({"TRITON_INTERPRET": "1"}, "TRITON_INTERPRET replaces by its slow interpreter: unset it"),
    "no interpreter in words": ({"TRITON_INTERPRET": "True"}, "TRITON_INTERPRET replaces"),
    "a cache": ({"TRITON_CACHE_DIR": "/proc/nowhere"}, "TRITON_CACHE_DIR is /proc/nowhere, which cannot be written"),
    "a home": (
        {"TRITON_CACHE_DIR": "", "TRITON_HOME": "/proc/nowhere"},
        r"/proc/nowhere/\.triton/cache cannot be written \(set TRITON_CACHE_DIR",
    ),
}


@pytest.mark.parametrize("lack", LACKS)
def test_what_is_missing_is_said_and_auto_goes_on(gpu: None, lack: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment, said = LACKS[lack]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if lack == "Triton":
        monkeypatch.setattr(needs.importlib.util, "find_spec", lambda _: None)
    if lack == "a new Triton":
        monkeypatch.setattr(needs.importlib.metadata, "version", lambda _: "3.3.1")
    if "Blackwell" in lack:
        monkeypatch.setattr(needs.importlib.metadata, "version", lambda _: "3.6.0")
        assert choose("triton", "cuda", 0, 0, 0), "which is right on older GPUs"
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (12, 0))
    if lack == "headers":
        monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(UsageError, match=f"the backend triton needs .*{said}"):
        choose("triton", "cuda", 10**6, 10**6, 10**6)
    chosen = choose("auto", "cuda", 10**6, 10**6, 10**6)
    assert chosen.backend != "triton"
    assert chosen.why is not None
    assert "faster with" in chosen.why


def test_auto_takes_triton_on_a_gpu_when_it_pays(gpu: None) -> None:
    chosen = choose("auto", "auto", 10**6, 10**6, 10**6)
    assert (chosen.backend, chosen.device) == ("triton", GPU)
    assert chosen.why == "backend triton on cuda:0: compiling… (about 3 s the first time, less later)"
    short = choose("auto", "auto", 1000, 1000, 10)
    assert short.backend == "torch"
    assert choose("triton", "cuda:0", 1000, 1000, 10).why is None


def test_auto_takes_compile_where_only_triton_cannot_run(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/proc/nowhere")
    chosen = choose("auto", "auto", 10**6, 10**6, 10**6)
    assert chosen.backend == "compile"
    assert chosen.why is not None
    assert chosen.why.startswith("backend compile on cuda:0: faster with a folder to keep compiled kernels in")


def test_without_a_gpu_it_is_a_sentence() -> None:
    assert choose_device("auto").type == "cpu", "this file is about machines without a GPU"
    for device in ("auto", "cpu"):
        with pytest.raises(UsageError, match="the backend triton needs an NVIDIA GPU: none is visible here"):
            Simulation(AWKWARD, SIZE, 100, backend="triton", device=device)


def test_on_the_cpu_of_a_machine_with_a_gpu_it_is_a_sentence(gpu: None) -> None:
    with pytest.raises(UsageError, match="the backend triton needs an NVIDIA GPU: the device asked for is cpu"):
        choose("triton", "cpu", 0, 0, 0)


def test_compile_on_a_gpu_needs_triton_too(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "TRITON_INTERPRET" in str(compile_backend.CompileBackend.missing(GPU))
    assert compile_backend.CompileBackend.missing(torch.device("cpu")) is None


def test_backends_are_a_literal_list() -> None:
    assert list(BACKENDS) == ["torch", "compile", "triton"]
    assert all(name == backend.name for name, backend in BACKENDS.items())


def test_programs_are_powers_of_two() -> None:
    for number in (triton_backend.AGENTS_A_PROGRAM, triton_backend.WIDEST_STRIP):
        assert number & (number - 1) == 0


def test_the_table_holds_the_parameters_exactly() -> None:
    backend = TritonBackend("cpu")
    worlds = [dataclasses.replace(AWKWARD, sensor_angle=-33.3, rotation_angle=359.99)]
    start = Simulation(worlds, SIZE, 10, backend="torch", device="cpu")
    backend.load(start.worlds, start.state())
    names = [name for name in backend._constants._fields if name != "attraction"]
    assert backend._table.shape == (1, len(names))
    for value, name in zip(backend._table[0].tolist(), names, strict=True):
        assert value == getattr(backend._constants, name).item(), name


def test_auto_says_what_is_missing_also_where_it_would_not_wait_for_the_next_best(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/proc/nowhere")
    chosen = choose("auto", "auto", 10**6, 10**6, 2000)
    assert chosen.backend == "torch"
    assert "faster with a folder to keep compiled kernels in" in str(chosen.why)
    assert "compiling could take 20 s" in str(chosen.why)
