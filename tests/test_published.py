"""The published step: what its defects do, shown one by one; its Triton kernels against NumPy; and the script that measures them."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import harness
import numpy as np
import published
import published_model
import pytest
import torch
import triton
from PIL import Image
from published_model import DEFECTS, PATTERN_DEFECTS, PublishedTorch, PublishedTriton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from physarum import Simulation, State
from physarum.model.start import random_start

ROOT = Path(__file__).parent.parent
SIZE = (23, 17)
HEIGHT, WIDTH = 17, 23


def start_of(agents: int, size: tuple[int, int] = SIZE) -> State:
    return published.start_of(size, agents, torch.device("cpu"))


def standing(positions: list[tuple[float, float]], angle: float, defects: tuple[str, ...] = ()) -> PublishedTorch:
    """Agents at (y, x), all with one heading, on an empty field."""
    model = PublishedTorch(start_of(len(positions)), defects)
    model.positions = torch.tensor(positions)
    model.angles = torch.full((len(positions),), angle)
    return model


def noisy(agents: int, *defects: str) -> PublishedTorch:
    """Agents anywhere on a field where every cell differs."""
    model = PublishedTorch(start_of(agents), defects)
    model.field = torch.rand(1, 1, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(5))
    return model


def bilinear(field: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Between the four cells around a point, on a torus."""
    row, column = np.floor(y).astype(int), np.floor(x).astype(int)
    down, right = y - row, x - column
    height, width = field.shape

    def at(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        return field[i % height, j % width]

    above = at(row, column) * (1 - right) + at(row, column + 1) * right
    below = at(row + 1, column) * (1 - right) + at(row + 1, column + 1) * right
    return above * (1 - down) + below * down


def textbook_senses(model: PublishedTorch, ahead: float = published_model.DISTANCE) -> np.ndarray:
    """What the sensors ahead, left and right should read: (3, agents)."""
    y, x = model.positions.double().numpy().T
    rays = [model.angles.double().numpy() + turn for turn in (0, math.pi / 4, -math.pi / 4)]
    field = model.field[0, 0].double().numpy()
    return np.stack([bilinear(field, y + ahead * np.sin(ray), x + ahead * np.cos(ray)) for ray in rays])


def test_the_cured_step_is_the_textbook_model() -> None:
    model = noisy(50)
    senses = textbook_senses(model)
    assert torch.allclose(model.sense().double(), torch.from_numpy(senses), atol=1e-5)
    before, angles, field = model.positions.numpy().copy(), model.angles.numpy().copy(), model.field[0, 0].double().numpy()
    model.step()
    angles += np.array([0, 1, -1])[senses.argmax(0)] * np.float32(math.pi / 4)
    moved = (before + np.stack((np.sin(angles), np.cos(angles)), 1)) % (HEIGHT, WIDTH)
    assert np.abs(model.positions.numpy() - moved).max() < 1e-4
    np.add.at(field, tuple(model.positions.long().numpy().T), 1.0)
    mean = sum(np.roll(field, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) / 9
    assert np.abs(model.field[0, 0].numpy() - 0.99 * (0.8 * field + 0.2 * mean)).max() < 1e-5


def test_axis_swap_mirrors_sensors_about_the_diagonal() -> None:
    """Agents that head along x sense along y, where left and right are exchanged too."""
    swapped = standing([(8.0, 10.0)], 0.0, ("axis-swap",))
    swapped.field[0, 0, 13, 10] = 1  # 5 cells down, where y grows
    assert swapped.sense()[:, 0].tolist() == pytest.approx([1, 0, 0], abs=1e-4)
    model = noisy(50, "axis-swap")
    mirrored = noisy(50)
    mirrored.angles = math.pi / 2 - mirrored.angles
    assert torch.allclose(model.sense(), mirrored.sense()[[0, 2, 1]], atol=1e-5)


@pytest.mark.parametrize("agents", [7, 50])
def test_sensor_scramble_reads_what_others_sense(agents: int) -> None:
    """Slot [k, i] holds sensor (k * n + i) % 3 of agent (k * n + i) // 3."""
    own, scrambled = noisy(agents).sense(), noisy(agents, "sensor-scramble").sense()
    for k in range(3):
        for i in range(agents):
            assert scrambled[k, i] == own[(k * agents + i) % 3, (k * agents + i) // 3]
    assert not torch.equal(own, scrambled)


def test_seam_reads_nothing_beyond_the_last_row_and_column() -> None:
    """On a field of ones, a sensor between the last row and the first should read one."""
    along_x = [(8.0, x) for x in np.linspace(0, WIDTH - 0.125, 50).tolist()]
    published_reads, cured_reads = (standing(along_x, 0.0, defects) for defects in (("seam",), ()))
    published_reads.field.fill_(1)
    cured_reads.field.fill_(1)
    x = (published_reads.positions[:, 1] + 5) % WIDTH
    beyond = (x - (WIDTH - 1)).clamp(min=0)
    assert beyond.max() > 0.5
    assert torch.allclose(published_reads.sense()[0], 1 - beyond, atol=1e-4)
    assert torch.allclose(cured_reads.sense(), torch.ones(3, 50), atol=1e-5)


@pytest.mark.parametrize(("defects", "added"), [(("lost-deposits",), 1.0), ((), 5.0)])
def test_lost_deposits_add_one_for_all_in_a_cell(defects: tuple[str, ...], added: float) -> None:
    model = standing([(3.0, 4.0)] * 5, 0.0, defects)
    model.deposit()
    assert model.field[0, 0, 3, 4] == added
    assert model.field.sum() == added


@pytest.mark.parametrize("place", [(0, 0), (0, 9), (16, 22), (8, 0), (8, 9)])
def test_leaking_edges_lose_a_share_of_what_lies_there(place: tuple[int, int]) -> None:
    """A ninth of the share that spreads goes to each neighbour; those that would lie beyond the edge get nothing."""
    leaking, cured = standing([(8.0, 8.0)], 0.0, ("leaking-edges",)), standing([(8.0, 8.0)], 0.0)
    for model in (leaking, cured):
        model.field[0, 0][place] = 1
        model.diffuse_and_decay()
    beyond = 9 - (3 - (place[0] in (0, 16))) * (3 - (place[1] in (0, 22)))
    assert leaking.field.sum() == pytest.approx(0.99 * (1 - 0.2 * beyond / 9), abs=1e-6)
    assert cured.field.sum() == pytest.approx(0.99, abs=1e-6)


def test_of_equal_sensors_the_first_wins() -> None:
    assert standing([(8.0, 8.0)], 0.0).choices().tolist() == [0]
    sides = standing([(8.0, 8.0)], 0.0)
    sides.sense = lambda: torch.tensor([[0.0], [1.0], [1.0]])  # type: ignore[method-assign]
    assert sides.choices().tolist() == [1]


@pytest.mark.parametrize("name", [name for name in DEFECTS if name not in PATTERN_DEFECTS])
def test_two_defects_cost_time_alone(name: str) -> None:
    model, cured = PublishedTorch(start_of(300), (name,)), PublishedTorch(start_of(300), ())
    for one in (model, cured):
        one.advance(40)
    assert torch.equal(model.field, cured.field)
    assert torch.equal(model.positions, cured.positions)


@pytest.mark.parametrize("name", PATTERN_DEFECTS)
def test_five_defects_change_the_pattern(name: str) -> None:
    model, cured = PublishedTorch(start_of(300), (name,)), PublishedTorch(start_of(300), ())
    for one in (model, cured):
        one.advance(40)
    assert not torch.allclose(model.field, cured.field, atol=0.1)


def test_host_tensors_are_made_twice_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = torch.tensor
    models = PublishedTorch(start_of(20)), PublishedTorch(start_of(20), ())
    monkeypatch.setattr(torch, "tensor", lambda *args, **more: made.append(args) or real(*args, **more))
    for model, expected in zip(models, (2, 0), strict=True):
        made.clear()
        model.step()
        assert len(made) == expected


def test_the_start_is_the_same_for_all_and_has_a_seed() -> None:
    start = start_of(40)
    model, backend = PublishedTorch(start), Simulation.from_state(published.WORLDS, start, backend="torch", device="cpu")
    assert torch.equal(model.positions, torch.stack((backend.state().y[0, 0], backend.state().x[0, 0]), 1))
    assert torch.equal(model.positions, model.positions.floor())
    assert torch.allclose(model.angles, torch.deg2rad(backend.state().heading[0, 0] * (360 / 65536)))
    assert torch.equal(start_of(40).x, start.x)
    assert torch.equal(start.x, random_start(published.WORLDS, SIZE, 40).x.floor())


def test_the_cured_step_keeps_all_trail_and_follows_its_own_senses() -> None:
    model, as_published = (PublishedTorch(start_of(2000, (64, 64)), defects) for defects in ((), tuple(DEFECTS)))
    for one in (model, as_published):
        one.advance(60)
    full = published.expected_mean(1.0, 2000 / 4096, 0.01, 60)
    figures, found = (published.pattern_figures(one.trail()[0, 0], full) for one in (model, as_published))
    assert figures["mass"] == pytest.approx(1, abs=1e-4)
    assert found["mass"] < 0.95
    assert found["edge"] < 0.95 < figures["edge"]
    assert published.own_senses(model)["own_senses"] == 1
    own = published.own_senses(as_published)
    assert own["own_senses"] == pytest.approx(own["own_senses_by_chance"], abs=0.05)
    assert as_published.defects == set(DEFECTS), "as before"


def test_figures_of_patterns_that_are_known() -> None:
    even = published.pattern_figures(torch.full((8, 8), 3.0), 6.0)
    assert even == pytest.approx({"mass": 0.5, "entropy": 1, "edge": 1, "contrast": 0})
    one = torch.zeros(8, 8)
    one[4, 4] = 64
    assert published.pattern_figures(one, 1.0) == pytest.approx({"mass": 1, "entropy": 0, "edge": 0, "contrast": 8}, abs=1e-9)


PYTORCH, TRITON = published.PYTORCH, published.TRITON


@pytest.mark.parametrize(
    ("times", "nearest"),
    [
        ((1000, 9000, 350, 8400), "with drawing on the side of PyTorch alone, 25.7"),
        ((9000, 18000, 350, 9400), "without drawing, 25.7"),
        ((1000, 30000, 50, 1200), "with drawing on both sides, 25.0"),
    ],
)
def test_evidence_names_the_nearest_ratio(times: tuple[float, ...], nearest: str) -> None:
    said = published.evidence(dict(zip([(PYTORCH, False), (PYTORCH, True), (TRITON, False), (TRITON, True)], times, strict=True)))
    assert any(sentence.endswith(f"the nearest of these is that {nearest}.") for sentence in said)
    assert f"PyTorch takes {times[0] / times[2]:.2f} times as long as Triton without drawing." in said


def test_evidence_without_a_gpu_says_nothing_of_the_factor() -> None:
    said = published.evidence({(PYTORCH, False): 1000.0, (PYTORCH, True): 9000.0})
    assert said[0] == "Drawing makes a step of the published PyTorch version 9.0 times as long here."
    assert said[1].startswith("Nothing can be said here about the published factor of 25.5")


def test_the_script_measures_draws_and_keeps(tmp_path: Path) -> None:
    done = script(
        *("--size", "64x48", "--agents", "200", "--backends", "torch", "--device", "cpu", "--steps", "1", "--trials", "3"),
        *("--pattern-steps", "2", "--cure", "seam,axis-swap", "--json", str(tmp_path / "a.jsonl"), "--picture", str(tmp_path / "a.png")),
    )
    assert done.returncode == 0, done.stderr
    rows = harness.read_results(tmp_path / "a.jsonl").rows
    times = [row for row in rows if row["case"]["part"] == "times"]
    assert [row["case"]["model"] for row in times if row["status"] == "not run"] == [TRITON]
    assert {row["case"]["model"] for row in times} >= {PYTORCH, "all cured", "physarum, torch", *(f"{name} cured" for name in DEFECTS)}
    assert all(row["wall_us"]["median"] > 0 and row["operators"] > 10 for row in times if row["status"] == "measured")
    patterns = {row["case"]["model"]: row for row in rows if row["case"]["part"] == "patterns" and row["status"] == "measured"}
    assert patterns.keys() == {"all cured", *DEFECTS, "seam and axis-swap cured", PYTORCH, "physarum, torch"}
    for name in (*DEFECTS, "published, Triton was not run: it needs an NVIDIA GPU", "Nothing can be said here"):
        assert name in done.stdout
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] > 1000
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 50, "patterns in colour"


def script(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "published.py"), *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


# The Triton kernels, in a process of its own in which Triton's interpreter takes the place of a GPU where there is none.


def test_triton_kernels_equal_their_statement_in_numpy() -> None:
    gpu = torch.cuda.is_available()
    paths = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT / "tests"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": paths} | ({} if gpu else {"TRITON_INTERPRET": "1"})
    command = "import test_published; test_published.compare_kernels('%s')" % ("cuda" if gpu else "cpu")
    done = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {"steps": 30, "beyond the low edges": True, "several in a cell": True, "equal sides": True}


def compare_kernels(device: str) -> None:
    """Hold 30 steps of the kernels to NumPy, each from where the kernels stand, and print which cases were met."""
    start = start_of(300)
    on_device = {name: getattr(start, name).to(device) for name in ("x", "y", "heading")}
    model = PublishedTriton(dataclasses.replace(start, **on_device))
    beyond = several = ties = False
    for _ in range(30):
        field, positions, angles = (np.array(t.cpu()) for t in (model.field[0, 0], model.positions, model.angles))
        model.step()
        points = [positions + 5 * np.stack((np.sin(ray), np.cos(ray)), 1) for ray in (angles, angles + SPREAD, angles - SPREAD)]
        ahead, left, right = (field[cells_of(np.fmod(point, np.float32([HEIGHT, WIDTH])))] for point in points)
        turns = np.where((left > ahead) & (left > right), SPREAD, 0) - np.where((right > ahead) & (right > left), SPREAD, 0)
        turned = angles + turns.astype(np.float32)
        moved = (positions + np.stack((np.sin(turned), np.cos(turned)), 1)) % np.float32([HEIGHT, WIDTH])
        # A sensor at the border of two cells, and an agent at the seam, may round either way.
        borders = np.min([np.abs(point - point.round()).min(1) for point in (*points, moved)], 0) < 1e-4
        new_positions = model.positions.cpu().numpy()
        assert np.abs(new_positions - moved)[~borders].max() < 1e-4
        assert np.abs(model.angles.cpu().numpy() - turned)[~borders].max() < 1e-4
        assert borders.mean() < 0.1
        laid = field.astype(np.float64)
        np.add.at(laid, cells_of(new_positions), 1.0)
        sheet = np.pad(laid, 1)
        mean = sum(sheet[i : i + HEIGHT, j : j + WIDTH] for i in range(3) for j in range(3)) / 9
        # Convolutions on a GPU may round the weights to ten bits.
        assert np.allclose(model.field[0, 0].cpu().numpy(), 0.99 * (0.8 * laid + 0.2 * mean), rtol=1e-3)
        beyond |= bool((points[0] < -1).any())
        several |= bool(np.bincount(np.ravel_multi_index(cells_of(new_positions), (HEIGHT, WIDTH))).max() > 1)
        ties |= bool(((left == right) & (left > ahead)).any())
    print(json.dumps({"steps": 30, "beyond the low edges": beyond, "several in a cell": several, "equal sides": ties}))


SPREAD = np.float32(math.pi / 4)


def cells_of(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row and column, truncated towards 0 and cut to the field."""
    row, column = points.astype(np.int32).T
    return row.clip(0, HEIGHT - 1), column.clip(0, WIDTH - 1)


def test_remainders_keep_their_sign_in_compiled_triton_too() -> None:
    """The interpreter's `%` is fmod. A GPU's is too: code compiled for one rounds the quotients of its six remainders towards 0 (rzi)."""
    constants = {"DISTANCE": 5.0, "SPREAD": math.pi / 4, "STEP": 1.0, "BLOCK": 256}
    names = published_model.sense_steer_move_kernel.arg_names
    types = {name: "constexpr" if name in constants else "i32" if name in ("agents", "height", "width") else "*fp32" for name in names}
    source = ASTSource(published_model.sense_steer_move_kernel, types, constants)
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=published_model.OPTIONS).asm
    assert code["ttir"].count("arith.remf") == 6
    agents_a_thread = 256 // 128
    assert code["ptx"].count("cvt.rzi.f32.f32") == 6 * agents_a_thread
