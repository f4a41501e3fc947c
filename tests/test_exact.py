"""One seed, one world, the same bits: every comparison here is of bits, without a tolerance."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from cases import AGENTS, AWKWARD, NARROW, SIZE, as_oracle, blobs, differing, differing_from_oracle, mapped_world, noise, oracle_start
from torch._dynamo.utils import counters

from physarum import Params, Simulation, State, World

STEPS = 220

WORLDS = {
    "defaults": (World((Params(),), seed=1), SIZE, AGENTS, None),
    "awkward": (World((AWKWARD,), seed=2), SIZE, AGENTS, None),
    "awkward, narrow": (World((NARROW,), seed=3), (8, 129), 333, None),
    "repelled": (World((AWKWARD,), attraction=-0.3, seed=4), SIZE, AGENTS, None),
    "two populations, every map, unequal counts": (mapped_world(), SIZE, AGENTS, [700, 433]),
}


@pytest.fixture(scope="module", params=WORLDS)
def run_of_oracle(request: pytest.FixtureRequest) -> tuple[str, oracle.State]:
    world, size, agents, count = WORLDS[request.param]
    start = oracle_start(world, size, agents, count)
    return request.param, oracle.run(as_oracle(world, size), start, STEPS)


def simulation(name: str, backend: str) -> Simulation:
    world, size, agents, count = WORLDS[name]
    return Simulation(world, size, agents, backend=backend, count=count)


@pytest.mark.parametrize("backend", ["torch", "compile"])
def test_equals_the_oracle(run_of_oracle: tuple[str, oracle.State], backend: str) -> None:
    name, expected = run_of_oracle
    torch._dynamo.reset()  # forget the graphs of other tests, and count from here
    counters.clear()
    sim = simulation(name, backend)
    sim.run(STEPS)
    assert differing_from_oracle(sim.state(), [expected]) == {}
    assert counters["stats"]["unique_graphs"] == (backend == "compile"), "compiled, or not, as asked"
    assert sim.state().trail.max() > 1, "a developed state"


@pytest.mark.parametrize("backend", ["torch", "compile"])
def test_labelled_steps_have_the_same_bits(backend: str) -> None:
    name = "two populations, every map, unequal counts"
    plain, labelled = simulation(name, backend), simulation(name, backend)
    plain.run(STEPS)
    labelled.run(STEPS, labelled=True)
    assert differing(plain.state(), labelled.state()) == {}


@pytest.mark.parametrize("name", WORLDS)
def test_random_start_equals_the_oracle(name: str) -> None:
    world, size, agents, count = WORLDS[name]
    assert differing_from_oracle(simulation(name, "torch").state(), [oracle_start(world, size, agents, count)]) == {}


def test_start_redraws_until_it_stands_outside_walls() -> None:
    walls = np.ones((83, 61), bool)
    walls[40, 7:11] = False  # 4 of 5,063 cells are free: most agents need many draws
    walls[::9] = False
    world = World((AWKWARD,), walls=walls, seed=9)
    state = Simulation(world, SIZE, 300).state()
    assert differing_from_oracle(state, [oracle_start(world, SIZE, 300)]) == {}
    assert not walls[state.y.long(), state.x.long()].any()


@pytest.mark.parametrize("backend", ["torch", "compile"])
def test_order_of_agents_does_not_matter(backend: str) -> None:
    name = "two populations, every map, unequal counts"
    world = WORLDS[name][0]
    straight = simulation(name, backend)
    start = straight.state()
    order = torch.stack([torch.randperm(AGENTS, generator=torch.Generator().manual_seed(i)) for i in range(2)])[None]
    shuffled = dataclasses.replace(start, **{n: getattr(start, n).gather(-1, order) for n in ("x", "y", "heading", "id")})
    mixed = Simulation.from_state(world, shuffled, backend)
    straight.run(STEPS)
    mixed.run(STEPS)
    assert differing(straight.state(), mixed.state()) == {}


@pytest.mark.parametrize("backend", ["torch", "compile"])
def test_batch_equals_its_worlds_alone(backend: str) -> None:
    width, height = SIZE
    worlds = [
        World((AWKWARD,), seed=1, number=0),
        World((Params(),), attraction=-0.5, seed=1, number=1, walls=blobs(1, height, width)),
        World((NARROW,), seed=7, number=0, food=noise(2, height, width, high=0.5), trail=noise(3, height, width, high=30)),
        World((dataclasses.replace(AWKWARD, rotation_angle=-90),), seed=7, number=3, light=noise(4, height, width)),
    ]
    counts = torch.tensor([[700], [400], [699], [1]])
    batch = Simulation(worlds, SIZE, AGENTS, backend=backend, count=counts)
    batch.run(STEPS)
    together = batch.state()
    for i, world in enumerate(worlds):
        alone = Simulation(world, SIZE, AGENTS, backend="torch", count=counts[i : i + 1])
        alone.run(STEPS)
        part = State(**{name: tensor[i : i + 1] for name, tensor in together.tensors().items()}, step=together.step)
        assert differing(part, alone.state()) == {}, f"world {i}"


@pytest.mark.parametrize("name", ["awkward", "two populations, every map, unequal counts"])
@pytest.mark.parametrize("backends", [("torch", "torch"), ("compile", "compile"), ("torch", "compile"), ("compile", "torch")])
def test_a_checkpoint_in_the_middle_changes_nothing(name: str, backends: tuple[str, str], tmp_path: Path) -> None:
    whole = simulation(name, backends[0])
    whole.run(200)
    first = simulation(name, backends[0])
    first.run(100)
    first.save(tmp_path / "half.safetensors")
    second = Simulation.load(tmp_path / "half.safetensors", backends[1])
    second.run(100)
    assert differing(whole.state(), second.state()) == {}


@pytest.mark.parametrize("backend", ["torch", "compile"])
def test_two_runs_of_100_steps_are_one_of_200(backend: str) -> None:
    whole, parts = (simulation("awkward", backend) for _ in range(2))
    whole.run(200)
    parts.run(100)
    parts.run(100)
    assert differing(whole.state(), parts.state()) == {}


def test_changing_backends_changes_nothing() -> None:
    whole, switched = simulation("awkward", "torch"), simulation("awkward", "torch")
    whole.run(STEPS)
    for backend in ("compile", "torch", "compile"):
        switched.run(60)
        switched.use(backend)
    switched.run(STEPS - 180)
    assert differing(whole.state(), switched.state()) == {}


@pytest.mark.parametrize("backend", ["torch", "compile"])
def test_agents_on_seams_and_corners(backend: str) -> None:
    """Positions on the seams, in the corners and one float32 step inside the far sides, with headings across them."""
    width, height = SIZE
    xs = np.array([0, np.nextafter(np.float32(width), np.float32(0)), 30.5, 1e-30, 59.999996], np.float32)
    ys = np.array([0, np.nextafter(np.float32(height), np.float32(0)), 41.5, 1e-30, 82.0], np.float32)
    headings = np.array([0, 8192, 16384, 16385, 24576, -32768, -24576, -16384, -8192, -1], np.int16)
    x, y, heading = (a.reshape(1, -1) for a in np.meshgrid(xs, ys, headings, indexing="ij"))
    agents = x.shape[1]
    for step_size in (0.83, 1e-3, 59.0):
        params = dataclasses.replace(AWKWARD, step_size=step_size, sensor_distance=59.9)
        world = World((params,), seed=11)
        ids = np.arange(agents, dtype=np.int32)[None]
        start = oracle.State(x, y, heading, ids, noise(5, 1, height, width, high=20), np.array([agents]))
        tensors = {name: torch.from_numpy(getattr(start, name)[None].copy()) for name in ("x", "y", "heading", "id", "trail")}
        state = State(**tensors, count=torch.tensor([[agents]]))
        sim = Simulation.from_state(world, state, backend)
        sim.run(60)
        assert differing_from_oracle(sim.state(), [oracle.run(as_oracle(world, SIZE), start, 60)]) == {}


def test_a_sum_that_rounds_up_to_the_side_becomes_zero() -> None:
    """Heading 16,385 has the cosine -9.6e-5; float32(-9.6e-8) + 61 is 61, which is not a position."""
    state = State(
        x=torch.zeros(1, 1, 1),
        y=torch.full((1, 1, 1), 40.5),
        heading=torch.full((1, 1, 1), 16385, dtype=torch.int16),
        id=torch.zeros(1, 1, 1, dtype=torch.int32),
        trail=torch.zeros(1, 1, 83, 61),
        count=torch.ones(1, 1, dtype=torch.int64),
    )
    sim = Simulation.from_state(World((Params(step_size=1e-3, diffusion=0, decay_rate=0),)), state, "torch")
    sim.run(1)
    assert sim.state().x.item() == 0
    assert sim.trail[0, 0, 40, 0] == 5


THREADS = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from cases import AGENTS, SIZE, mapped_world
from physarum import Simulation
from physarum.checkpoint import sha256
assert torch.get_num_threads() == int(sys.argv[3])
sim = Simulation(mapped_world(), SIZE, AGENTS * 40, backend=sys.argv[2])  # more agents than a thread takes at least
sim.run(200)
print(sha256(sim.state().tensors()))
"""


@pytest.mark.parametrize("backend", ["torch", "compile"])
def test_thread_counts_do_not_matter(backend: str) -> None:
    def run(threads: str) -> str:
        command = [sys.executable, "-c", THREADS, str(Path(__file__).parent), backend, threads]
        environment = os.environ | {"OMP_NUM_THREADS": threads}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert run("1") == run("2")
