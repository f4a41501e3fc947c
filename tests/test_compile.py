"""torch.compile does what it is there for: it compiles, once a size, and never for a number."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import AWKWARD, SIZE, differing
from torch._dynamo.utils import counters

from physarum import Params, Simulation, UsageError, World
from physarum.backends.buffered_backend import SORT_EVERY
from physarum.backends.compile_backend import CompileBackend
from physarum.checkpoint import sha256


@pytest.fixture
def graphs():
    torch._dynamo.reset()
    counters.clear()
    return lambda: counters["stats"]["unique_graphs"]


def test_no_parameter_seed_or_step_number_compiles_again(graphs) -> None:
    sim = Simulation(World((AWKWARD,), seed=1), SIZE, 500, backend="compile")
    sim.run(2 * SORT_EVERY + 3)
    for change in (
        World((Params(),), seed=1),
        World((dataclasses.replace(AWKWARD, sensor_angle=-7, decay_rate=0.5),), attraction=-2.5, seed=2**32 - 1),
        World((dataclasses.replace(AWKWARD, step_size=0, diffusion=0),), seed=3, number=9),
    ):
        sim.set_params(change)
        sim.run(SORT_EVERY)
    later = Simulation.from_state(World((AWKWARD,), seed=5), dataclasses.replace(sim.state(), step=10**6), backend="compile")
    later.run(5)
    assert graphs() == 1


def test_many_sizes_stay_compiled(graphs) -> None:
    """Dynamo goes back to running eagerly after eight graphs of a function unless it is told otherwise."""
    sizes = [(16 + i, 16) for i in range(9)]
    sims = [Simulation(dataclasses.replace(AWKWARD, sensor_distance=5), size, 40, backend="compile") for size in sizes]
    for sim in sims:
        sim.run(3)
    assert graphs() == len(sizes)
    for sim in sims:
        sim.run(3)
    assert graphs() == len(sizes)


def test_warm_up_compiles_and_changes_nothing(graphs) -> None:
    sim, eager = (Simulation(AWKWARD, SIZE, 500, backend=b) for b in ("compile", "torch"))
    sim.warm_up()
    assert graphs() == 1
    assert differing(sim.state(), eager.state()) == {}
    sim.run(3)
    eager.run(3)
    assert graphs() == 1
    assert differing(sim.state(), eager.state()) == {}


def test_agents_are_kept_by_tile() -> None:
    """Sorting brings agents of a tile together: neighbours in memory then stand closer than chance would have them."""
    backend = CompileBackend()
    start = Simulation(AWKWARD, (256, 256), 5000, backend="torch")
    backend.load(start.worlds, start.state())

    def apart() -> float:
        x, y = backend._now.agents.x.diff().abs(), backend._now.agents.y.diff().abs()
        return torch.hypot(x, y).median().item()

    before = apart()
    backend.advance(1)
    assert apart() < before / 5


def test_a_missing_compiler_is_said_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    with pytest.raises(UsageError, match=r"C\+\+ compiler.*apt install g\+\+"):
        Simulation(AWKWARD, SIZE, 500, backend="compile", device="cpu")
    assert Simulation(AWKWARD, SIZE, 500, device="cpu", planned_steps=10**6).backend == "torch"


def test_missing_headers_are_said_beforehand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(UsageError, match=r"Python\.h.*python3-dev"):
        Simulation(AWKWARD, SIZE, 500, backend="compile", device="cpu")


def test_a_cache_that_cannot_be_written_is_said_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/proc/nowhere")
    with pytest.raises(UsageError, match="TORCHINDUCTOR_CACHE_DIR is /proc/nowhere"):
        Simulation(AWKWARD, SIZE, 500, backend="compile", device="cpu")


@pytest.mark.parametrize("planned", [0, 10**7])
def test_a_compiler_that_fails_is_a_sentence_and_auto_goes_on(
    planned: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, graphs, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho broken compiler >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    params = dataclasses.replace(AWKWARD, sensor_distance=4)
    expected = Simulation(params, (17, 19), 90, backend="torch")
    with torch._inductor.config.patch({"cpp.cxx": (None, str(broken))}):
        if planned:
            sim = Simulation(params, (17, 19), 90, device="cpu", planned_steps=planned)
            assert sim.backend == "torch"
            assert "torch.compile fails" in caplog.text
        else:
            sim = Simulation(params, (17, 19), 90, backend="compile", device="cpu")
            with pytest.raises(UsageError, match=r"torch\.compile fails on this machine"):
                sim.run(3)
            sim.use("torch")
    sim.run(3)
    expected.run(3)
    assert differing(sim.state(), expected.state()) == {}


MEMORY = """
import sys, threading, time
import torch
from physarum import Simulation, World
from physarum.backends import CompileBackend
agents, side = int(sys.argv[1]), int(sys.argv[2])

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def peak_of(function):
    peak, done = 0, threading.Event()
    def watch():
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident())
            time.sleep(0.0002)
    thread = threading.Thread(target=watch)
    thread.start()
    function()
    done.set()
    thread.join()
    return peak

sim = Simulation(World(), (side, side), agents, backend="compile")
sim.run(130)  # compiled, sorted three times: all that is kept is there
buffers = sum(t.nbytes for t in {id(t): t for m in sim._backend._motions for t in m}.values())
buffers += sum(t.nbytes for t in sim._backend._trails) + sim._backend._now.agents.id.nbytes
base = resident() - buffers
used = peak_of(lambda: sim.run(130)) - base
own = 14 * agents + 4 * side * side
print(used / own, used / CompileBackend.bytes_needed(1, 1, (side, side), agents))
"""


@pytest.mark.parametrize(("agents", "side"), [(4_000_000, 1000), (1_000_000, 2000)])
def test_memory_stays_within_four_times_agents_and_trail(agents: int, side: int) -> None:
    """What a process holds at most while it steps and sorts, less what it holds apart from agents and trail."""
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # arrays are given back at once, as larger ones are anyway
    command = [sys.executable, "-c", MEMORY, str(agents), str(side)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    own, needed = (float(word) for word in done.stdout.split())
    assert own > 2, "both buffers were seen"
    assert own <= 4
    assert needed <= 1.05


@pytest.mark.parametrize(
    "flags",
    [
        {"TORCHINDUCTOR_CPP_ENABLE_FLOATING_POINT_CONTRACT_FLAG": "fast"},
        {"TORCHINDUCTOR_CPP_ENABLE_UNSAFE_MATH_OPT_FLAG": "1"},
    ],
    ids=["contraction", "unsafe mathematics"],
)
def test_flags_of_the_environment_do_not_change_the_bits(flags: dict[str, str]) -> None:
    script = """
import torch
from physarum import Params, Simulation, World
from physarum.checkpoint import sha256
torch.set_default_dtype(torch.float64)
params = Params(33, 51, 9.3, 0.83, 3.3, 0.37, 0.07)
for backend in ("torch", "compile"):
    sim = Simulation(World((params,), seed=2), (61, 83), 700, backend=backend, device="cpu")
    sim.run(200)
    print(sha256(sim.state().tensors()))
"""
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | flags, check=True, capture_output=True, text=True)
    eager, compiled = done.stdout.split()
    expected = Simulation(World((AWKWARD,), seed=2), SIZE, 700, backend="torch", device="cpu")
    expected.run(200)
    assert eager == compiled == sha256(expected.state().tensors())


def test_a_switched_off_compiler_is_said_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(UsageError, match="TORCHDYNAMO_DISABLE switches off"):
        Simulation(AWKWARD, SIZE, 500, backend="compile", device="cpu")
