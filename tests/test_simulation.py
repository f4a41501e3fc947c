"""The Python interface: what it takes, what it refuses, what it hands out."""

import dataclasses
import logging
import threading

import numpy as np
import pytest
import torch
from cases import AWKWARD, SIZE, blobs, differing, mapped_world, noise

import physarum
from physarum import Params, Simulation, UsageError, World
from physarum.backends import BACKENDS, choose
from physarum.backends.compile_backend import CompileBackend
from physarum.backends.memory import available_bytes
from physarum.model import chance


def test_the_defaults_are_those_of_jones() -> None:
    assert dataclasses.astuple(Params()) == (22.5, 45, 9, 1, 5, 1, 0.1)
    sim = Simulation(backend="torch")
    assert sim.size == (512, 512)
    assert sim.state().x.shape == (1, 1, 15 * 512 * 512 // 100)
    assert sim.worlds[0].seed == 0


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Params)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), True, "0.1", None, [0.1], 1e9, -1e9, np.array([0.1])])
def test_a_wrong_parameter_is_named_with_its_range(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{name} is .*: it must be a number from .* to ") as error:
        Params(**{name: value})
    assert isinstance(error.value, ValueError)
    assert "\n" not in str(error.value)


def test_numpy_and_torch_scalars_are_numbers() -> None:
    params = Params(decay_rate=np.float32(0.25), sensor_angle=np.int64(30), step_size=torch.tensor(0.5), diffusion=np.array(0.5))
    assert (params.decay_rate, params.sensor_angle, params.step_size, params.diffusion) == (0.25, 30, 0.5, 0.5)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"size": (7, 64)}, "width is 7: it must be a whole number from 8 to 65536"),
        ({"size": (64, 65537)}, "height is 65537"),
        ({"size": 64}, "size is 64: it must be a pair"),
        ({"agents": 0}, "agents is 0: it must be a whole number from 1 to"),
        ({"agents": 2.5}, "agents is 2.5"),
        ({"seed": -1}, "seed is -1: it must be a whole number from 0 to 4294967295"),
        ({"seed": 2**32}, "seed is 4294967296"),
        ({"seed": True}, "seed is True"),
        ({"backend": "tritn"}, "there is no backend 'tritn'"),
        ({"backend": "compiel"}, "did you mean compile"),
        ({"device": "gpu"}, "there is no device 'gpu'"),
        ({"device": "cpu:1"}, "there is no device 'cpu:1'"),
        ({"count": 701}, "count must be whole numbers from 0 to 700"),
        ({"count": [[1, 2]]}, "count must be a number, or 1 x 1 numbers"),
        ({"worlds": []}, "worlds must be a World or a Params"),
        ({"worlds": [World((Params(), Params())), World()]}, "same number of populations"),
        ({"worlds": Params(step_size=60)}, "step_size is 60: in a world of 61 x 83 cells it must be shorter than 60 cells"),
        ({"worlds": Params(sensor_distance=59.9999999)}, "sensor_distance is 60"),
        ({"worlds": World(food=np.zeros((8, 8)))}, "food has the shape"),
    ],
)
def test_a_wrong_request_is_one_sentence(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        Simulation(**({"worlds": Params(), "size": SIZE, "agents": 700, "backend": "torch"} | arguments))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"trail": np.full((8, 8), np.nan)}, "trail holds values that are not numbers from 0 to 1e"),
        ({"trail": np.full((8, 8), -1.0)}, "trail holds"),
        ({"light": np.full((8, 8), np.inf)}, "light holds"),
        ({"food": np.zeros(8)}, "food has the shape"),
        ({"food": "picture.png"}, "food is no array of numbers"),
        ({"attraction": [[1, 2]]}, "attraction must be 1 rows of 1 numbers"),
        ({"attraction": [[float("nan")]]}, "attraction is nan"),
        ({"attraction": 1001}, "attraction is 1001"),
        ({"populations": ()}, "populations must be"),
        ({"populations": ({},)}, "populations must be"),
    ],
)
def test_a_wrong_world_is_one_sentence(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        World(**arguments)
    assert sentence in str(error.value)


def test_maps_come_in_any_layout() -> None:
    food = noise(1, 83, 61)
    plain, foreign = (World((AWKWARD,), food=f) for f in (food, np.asfortranarray(food.astype(">f8"))))
    runs = [Simulation(w, SIZE, 200, backend="torch") for w in (plain, foreign)]
    for sim in runs:
        sim.run(5)
    assert differing(runs[0].state(), runs[1].state()) == {}


def test_trail_is_a_view_and_state_a_copy() -> None:
    sim = Simulation(AWKWARD, SIZE, 200, backend="torch")
    state, trail = sim.state(), sim.trail
    sim.run(1)
    assert (state.trail == 0).all()
    assert state.step == 0
    assert sim.step == 1
    assert trail.shape == sim.trail.shape == (1, 1, 83, 61)
    sim.state().x.fill_(-1)
    assert (sim.state().x >= 0).all()
    one, other, copy = sim.trail, sim.trail, sim.state().trail
    assert one.data_ptr() == other.data_ptr(), "nothing is copied"
    assert copy.data_ptr() != one.data_ptr()


def test_walls_hold_nothing_from_the_start() -> None:
    world = mapped_world()
    sim = Simulation(world, SIZE, 500, backend="torch")
    walls = world.walls.expand(2, -1, -1)
    assert (sim.trail[0][walls] == 0).all()
    assert (sim.trail[0][~walls] > 0).all()


def test_a_world_of_walls_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="walls leave so little room"):
        Simulation(World(walls=np.ones((83, 61), bool)), SIZE, 10, backend="torch")


@pytest.mark.parametrize("backend", ["torch", "compile"])
def test_set_params_takes_effect_from_the_next_step(backend: str) -> None:
    sim, other = (Simulation(World((p,), seed=3), SIZE, 400, backend=backend) for p in (AWKWARD, Params()))
    other.set_params(World((AWKWARD,), seed=3))
    sim.run(20)
    other.run(20)
    assert differing(sim.state(), other.state()) == {}
    other.set_params(Params())
    assert (other.worlds[0].seed, other.worlds[0].populations) == (3, (Params(),)), "bare parameters change nothing else"
    with pytest.raises(UsageError, match="as many worlds and populations"):
        sim.set_params([AWKWARD, AWKWARD])
    with pytest.raises(UsageError, match="step_size is 60"):
        sim.set_params(Params(step_size=60))


@pytest.mark.parametrize("backend", ["torch", "compile"])
def test_edits_are_those_of_a_world_that_had_them(backend: str) -> None:
    walls, food = blobs(3, 83, 61), noise(2, 83, 61)
    start = Simulation(World((AWKWARD,), walls=walls), SIZE, 400, backend="torch").state()
    sim = Simulation.from_state(World((AWKWARD,)), start, backend)
    sim.edit("food", (slice(None), slice(None)), food)
    sim.edit("walls", (slice(0, 83), slice(0, 61)), walls)
    sim.edit("trail", (slice(10, 20), slice(5, 9)), 7.0)
    trail = start.trail.clone()
    trail[..., 10:20, 5:9] = 7.0
    trail[..., torch.from_numpy(walls)] = 0.0
    expected = Simulation.from_state(World((AWKWARD,), walls=walls, food=food), dataclasses.replace(start, trail=trail), "torch")
    for run in (sim, expected):
        run.run(20)
    assert differing(sim.state(), expected.state()) == {}
    sim.use("torch")
    assert (sim.worlds[0].food.squeeze(0).numpy() == food).all(), "the next backend gets the edits too"


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("smell", 1.0, "there is no map 'smell'"),
        ("trail", -1.0, "trail holds values"),
        ("light", float("nan"), "light holds values"),
        ("food", np.zeros((3, 3)), "do not fill that part of food"),
        ("walls", np.zeros((1, 0)), "do not fill that part of walls"),
    ],
)
def test_a_wrong_edit_changes_nothing(name: str, values: object, sentence: str) -> None:
    sim = Simulation(AWKWARD, SIZE, 100, backend="torch")
    before = sim.state()
    with pytest.raises(UsageError, match=sentence):
        sim.edit(name, (slice(0, 2), slice(0, 5)), values)
    assert differing(before, sim.state()) == {}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": torch.full((1, 1, 100), 61.0)}, "x in the state must be from 0 to less than 61"),
        ({"y": torch.full((1, 1, 100), float("nan"))}, "y in the state"),
        ({"id": torch.zeros(1, 1, 100, dtype=torch.int32)}, "id in the state must hold each agent's number once"),
        ({"trail": torch.full((1, 1, 83, 61), float("inf"))}, "trail in the state"),
        ({"heading": torch.zeros(1, 1, 100)}, "heading in the state must be a tensor of int16"),
        ({"heading": torch.zeros(1, 1, 99, dtype=torch.int16)}, "does not have the axes"),
        ({"count": torch.full((1, 1), 101)}, "count in the state must be from 0 to 100"),
        ({"step": -1}, "step is -1"),
        ({"trail": torch.zeros(1, 1, 83, 7)}, "width is 7"),
    ],
)
def test_a_wrong_state_is_one_sentence(change: dict[str, object], sentence: str) -> None:
    state = Simulation(AWKWARD, SIZE, 100, backend="torch").state()
    with pytest.raises(UsageError) as error:
        Simulation.from_state(AWKWARD, dataclasses.replace(state, **change), "torch")
    assert sentence in str(error.value)


def test_a_run_that_does_not_fit_is_refused_with_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("physarum.backends.memory.available_bytes", lambda device: 10**9)
    with pytest.raises(UsageError, match=r"needs about [\d.]+ GB on cpu, where 1\.0 GB are free: .* a world of (\d+)x(\d+) fits") as error:
        Simulation(size=(20_000, 10_000), backend="torch")
    width, height = (int(side) for side in str(error.value).split(" a world of ")[1].split()[0].split("x"))
    needed = BACKENDS["torch"].bytes_needed(1, 1, (width, height), 15 * width * height // 100)
    assert 0.95e9 < needed <= 1e9


def test_available_memory_is_plausible() -> None:
    available = available_bytes(torch.device("cpu"))
    assert available is not None
    assert 10**7 < available < 10**14


@pytest.mark.parametrize(("steps", "backend"), [(1, "torch"), (10**7, "compile")])
def test_auto_weighs_compiling_against_the_run(steps: int, backend: str) -> None:
    choice = choose("auto", "cpu", 10**4, 10**5, steps)
    assert choice.backend == backend
    assert choice.why is not None
    assert f"backend {backend} on cpu" in choice.why


def test_an_explicit_choice_is_silent() -> None:
    assert choose("torch", "cpu", 1, 1, 10**9).why is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said() -> None:
    with pytest.raises(UsageError, match="the device cuda"):
        Simulation(device="cuda")


def test_auto_without_a_plan_compiles_once_that_would_have_paid(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("physarum.backends.STARTING_SECONDS", {"cpu": {"compile": 0.08}})
    caplog.set_level(logging.INFO, "physarum")
    sim, eager = (Simulation(AWKWARD, SIZE, 500, backend=b, device="cpu") for b in ("auto", "torch"))
    sim.run(40)
    assert sim.backend == "torch"
    sim.run(80)
    assert sim.backend == "compile"
    assert "backend compile on cpu" in caplog.text
    sim.run(5)
    eager.run(125)
    assert differing(sim.state(), eager.state()) == {}


def test_simulations_run_in_threads() -> None:
    sims = [Simulation(World((AWKWARD,), seed=i), SIZE, 300, backend="torch") for i in range(4)]
    alone = [Simulation(World((AWKWARD,), seed=i), SIZE, 300, backend="torch") for i in range(4)]
    threads = [threading.Thread(target=sim.run, args=(60,)) for sim in sims]
    for thread in threads:
        thread.start()
    for thread, sim in zip(threads, alone, strict=True):
        sim.run(60)
        thread.join()
    for a, b in zip(sims, alone, strict=True):
        assert differing(a.state(), b.state()) == {}


@pytest.mark.parametrize("backend", ["torch", "compile"])
def test_a_profiler_sees_every_step_and_stage_by_name(backend: str) -> None:
    sim = Simulation(AWKWARD, SIZE, 300, backend=backend)
    sim.run(3, labelled=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        sim.run(2)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert {name: counts.get(name) for name in ("sense", "motor", "deposit", "diffuse", "decay")} == dict.fromkeys(
        ("sense", "motor", "deposit", "diffuse", "decay"), 2
    )
    assert counts.get("step 3") == counts.get("step 4") == 1


def test_two_seeds_and_two_numbers_differ_and_the_same_pair_shares_its_chance() -> None:
    worlds = [World(seed=1, number=4), World(seed=1, number=4), World(seed=1), World(seed=2, number=4)]
    x = Simulation(worlds, SIZE, 200, backend="torch").state().x[:, 0]
    assert (x[0] == x[1]).all()
    assert not (x[0] == x[2]).all()
    assert not (x[0] == x[3]).all()


def test_the_package_names_what_it_offers() -> None:
    for name in physarum.__all__:
        assert getattr(physarum, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Simulatoin'"):
        _ = physarum.Simulatoin


def test_auto_warms_up_once_not_at_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("physarum.backends.STARTING_SECONDS", {"cpu": {"compile": 0.01}})
    sim = Simulation(AWKWARD, SIZE, 500, device="cpu")
    computed = []
    compute = CompileBackend._compute
    monkeypatch.setattr(CompileBackend, "_compute", lambda self, keys: computed.append(self.step) or compute(self, keys))
    for _ in range(50):
        sim.run(1)
    assert sim.backend == "compile"
    assert len(computed) - len(set(computed)) <= 1, "one step is computed twice at most"


def test_a_backend_that_takes_over_must_fit_beside_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = Simulation(AWKWARD, SIZE, 500, backend="torch", device="cpu")
    sim.run(3)
    monkeypatch.setattr("physarum.backends.memory.available_bytes", lambda device: 1000)
    with pytest.raises(UsageError, match="needs about"):
        sim.use("compile")
    assert (sim.backend, sim.step) == ("torch", 3)


def test_auto_is_no_backend_to_hand_over_to() -> None:
    with pytest.raises(UsageError, match="must be one of torch, compile, triton"):
        Simulation(AWKWARD, SIZE, 500, backend="torch", device="cpu").use("auto")


def test_agents_and_slots_are_told() -> None:
    sim = Simulation([Params(), Params()], SIZE, 500, backend="torch", device="cpu", count=[[500], [77]])
    assert (sim.slots, sim.agents) == (500, 577)


@pytest.mark.parametrize("batch", [1, 3, 4, 5])
def test_keys_begin_where_compiled_code_wants_them(batch: int) -> None:
    simulation = Simulation([World(seed=seed) for seed in range(batch)], (16, 16), 5, backend="torch", device="cpu")
    keys = simulation._backend._keys(range(7, 16))
    assert all(key.data_ptr() % 16 == 0 and key.shape == (batch, 1, 1) for pair in keys for key in pair)
    expected = chance.keys(range(batch), range(batch), range(7, 16), chance.COIN)
    assert all(torch.equal(pair.coin, key) for pair, key in zip(keys, expected, strict=True))
