"""The Triton kernels in Triton's interpreter, on the CPU, against the model: run by test_triton in a process of its own.

The interpreter is chosen when a kernel is defined, hence the process. It finds wrong arithmetic, not races: those need a GPU.
"""

import dataclasses
import os

import pytest
import torch
from cases import AWKWARD, NARROW, blobs, differing, mapped_world, noise

from physarum import Params, Simulation, State, UsageError, World
from physarum.backends import triton_backend
from physarum.backends.buffered_backend import SORT_EVERY
from physarum.backends.kernels import launched
from physarum.backends.torch_backend import TorchBackend
from physarum.backends.triton_backend import TritonBackend

assert os.environ["TRITON_INTERPRET"] == "1"

WIDTH, HEIGHT = 23, 13
STEPS = 40
AGENTS = 60


def programs(monkeypatch: pytest.MonkeyPatch, agents: int, strip: int, band: int) -> None:
    """Let a program compute so many agents, columns and rows."""
    monkeypatch.setattr(triton_backend, "AGENTS_A_PROGRAM", agents)
    monkeypatch.setattr(triton_backend, "WIDEST_STRIP", strip)
    monkeypatch.setattr(triton_backend, "BAND", band)


@pytest.fixture(autouse=True)
def programs_that_do_not_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the agents nor the columns nor the rows; and few, since each takes the interpreter 20 ms."""
    programs(monkeypatch, 64, 32, 16)


BATCH = [
    World((AWKWARD,), seed=1, number=0),
    World((Params(),), attraction=-0.5, seed=1, number=1, walls=blobs(1, HEIGHT, WIDTH)),
    World((dataclasses.replace(AWKWARD, rotation_angle=-90),), seed=2**32 - 1, number=3, light=noise(4, HEIGHT, WIDTH)),
]

WORLDS = {
    "awkward": ([World((AWKWARD,), seed=2)], (WIDTH, HEIGHT), None),
    "narrow, seams everywhere": ([World((NARROW,), seed=3)], (8, 11), None),
    "aligned": ([World((NARROW,), attraction=-0.3, seed=4)], (32, 8), None),
    "two populations, every map, unequal counts": ([mapped_world(size=(WIDTH, HEIGHT))], (WIDTH, HEIGHT), [AGENTS, 41]),
    "three populations": (
        [World((AWKWARD,) * 3, attraction=[[1, 0.3, -2], [0, 1, 0.7], [-0.1, 1.7, 0]], seed=6)],
        (WIDTH, HEIGHT),
        [[AGENTS, 0, 1]],
    ),
    "batch": (BATCH, (WIDTH, HEIGHT), torch.tensor([[AGENTS], [40], [AGENTS - 1]])),
}
MAPS = "two populations, every map, unequal counts"


def both(name: str, step: int = 0) -> tuple[TorchBackend, TritonBackend]:
    """The model and the kernels, holding the same worlds."""
    worlds, size, count = WORLDS[name]
    start = Simulation(worlds, size, AGENTS, count=count, backend="torch", device="cpu")
    backends = TorchBackend("cpu"), TritonBackend("cpu")
    for backend in backends:
        backend.load(start.worlds, dataclasses.replace(start.state(), step=step))
    return backends


@pytest.mark.parametrize("name", WORLDS)
def test_equals_the_model(name: str) -> None:
    model, kernels = both(name)
    model.advance(STEPS)
    kernels.advance(STEPS)
    assert differing(kernels.state(), model.state()) == {}
    assert model.state().trail.max() > 1, "a developed state"


def test_equals_the_model_with_many_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    programs(monkeypatch, 16, 8, 8)
    model, kernels = both("awkward")
    model.advance(STEPS)
    kernels.advance(STEPS)
    assert differing(kernels.state(), model.state()) == {}


def test_equals_the_model_with_64_bit_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launched, "CELLS_IN_INT32", 8)
    model, kernels = both(MAPS)
    model.advance(8)
    kernels.advance(8)
    assert differing(kernels.state(), model.state()) == {}


@pytest.mark.parametrize("step", [SORT_EVERY - 3, 2**31 - 3, 2**32 - 3, 2**61])
def test_equals_the_model_late(step: int) -> None:
    model, kernels = both(MAPS, step)
    model.advance(6)
    kernels.advance(6)
    assert differing(kernels.state(), model.state()) == {}


def test_labelled_steps_have_the_same_bits_and_their_labels() -> None:
    model, kernels = both(MAPS)
    model.advance(4)
    kernels.advance(1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        kernels.advance(3, labelled=True)
    assert differing(kernels.state(), model.state()) == {}
    labels = [event.name for event in profile.events() if event.name.startswith(("step", "sense", "deposit", "diffuse"))]
    assert labels == [name for n in range(1, 4) for name in (f"step {n}", "sense+motor", "deposit", "diffuse+decay")]


def test_agents_in_any_order() -> None:
    model, kernels = both(MAPS)
    state = model.state()
    order = torch.stack([torch.randperm(AGENTS, generator=torch.Generator().manual_seed(i)) for i in range(2)])[None]
    kernels.load(model.worlds, dataclasses.replace(state, **{n: getattr(state, n).gather(-1, order) for n in ("x", "y", "heading", "id")}))
    model.advance(10)
    kernels.advance(10)
    assert differing(kernels.state(), model.state()) == {}


def test_hand_over_there_and_back() -> None:
    model, kernels = both(MAPS)
    model.advance(15)
    kernels.advance(5)
    between = TorchBackend("cpu")
    between.load(kernels.worlds, kernels.state())
    between.advance(5)
    kernels.load(between.worlds, between.state())
    kernels.advance(5)
    assert differing(kernels.state(), model.state()) == {}


def test_parameters_and_maps_change_on_the_way() -> None:
    model, kernels = both("awkward")
    for backend in (model, kernels):
        backend.advance(3)
        backend.set_params([World((Params(sensor_angle=-7),), attraction=-2.5, seed=77, number=9)])
        backend.advance(3)
        backend.edit("walls", (slice(3, 9), slice(0, 4)), True)
        backend.advance(3)
        backend.edit("food", (slice(0, 5), slice(5, 20)), 0.7)
        backend.edit("trail", (slice(9, 14), slice(5, 20)), 3.3)
        backend.advance(3)
    assert differing(kernels.state(), model.state()) == {}


def test_warm_up_changes_nothing() -> None:
    model, kernels = both(MAPS)
    kernels.warm_up()
    assert differing(kernels.state(), model.state()) == {}
    model.advance(3)
    kernels.advance(2)
    kernels.warm_up()
    kernels.advance(1)
    assert differing(kernels.state(), model.state()) == {}


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interrupt_leaves_the_world_between_two_steps(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, kernels = both(MAPS)
    kernels.advance(2)
    launch, launches = kernels._launch, []

    def interrupted(*args, **kwargs) -> None:
        launch(*args, **kwargs)
        launches.append(args[0])
        if len(launches) == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(kernels, "_launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kernels.advance(5)
    assert kernels.step == 2
    kernels.advance(3)
    model.advance(5)
    assert differing(kernels.state(), model.state()) == {}


def test_no_step_changes_nothing() -> None:
    _, kernels = both(MAPS)
    before: State = kernels.state()
    kernels.advance(0)
    assert differing(kernels.state(), before) == {}


def test_a_kernel_that_cannot_start_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    _, kernels = both("awkward")
    monkeypatch.setattr(kernels, "_launch", lambda *args, **kwargs: (_ for _ in ()).throw(FileNotFoundError(2, "No such file", "ptxas")))
    with pytest.raises(UsageError, match=r"Triton fails on this machine \(FileNotFoundError .*ptxas.*\): use the compile or torch backend"):
        kernels.warm_up()
    assert kernels.step == 0
