"""torch.compile does what it is there for: it compiles, once a size, and never for a number."""

import dataclasses
from pathlib import Path

import pytest
import torch
from cases import AWKWARD, SIZE, differing
from torch._dynamo.utils import counters

from physarum import Params, Simulation, UsageError, World
from physarum.backends.compile_backend import SORT_EVERY, CompileBackend


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
    assert not counters["recompiles"]


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


@pytest.mark.parametrize(("agents", "size"), [(400_000, (200, 200)), (2_000, (800, 800))])
def test_memory_stays_within_four_times_agents_and_trail(agents: int, size: tuple[int, int]) -> None:
    """What is held, and what a step with a sort allocates on top, as the profiler counts it."""
    sim = Simulation(AWKWARD, size, agents, backend="compile")
    sim.run(SORT_EVERY)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        sim.run(2, labelled=False)
    changes = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    total = peak = 0
    for change in sorted(changes, key=lambda e: e.start_ns()):
        total += change.nbytes()
        peak = max(peak, total)
    buffers = [*(t for m in sim._backend._motions for t in m), *sim._backend._trails, sim._backend._now.agents.id]
    held = sum(t.nbytes for t in buffers)
    cells = size[0] * size[1]
    assert peak > 8 * agents, "the profiler saw the cells that agents stand in"
    assert held + peak <= 4 * (14 * agents + 4 * cells)
    assert held + peak <= 1.05 * CompileBackend.bytes_needed(1, 1, size, agents)
