"""From trail to colour: exposure from counts, thresholds that invert the documented curve, frames with the same bits everywhere."""

import dataclasses
import hashlib
import math

import matplotlib
import numpy as np
import pytest
import torch
from cases import AWKWARD, noise

from physarum import Params, Simulation, UsageError, World
from physarum.output.colour import colour_table
from physarum.output.frame import Renderer
from physarum.output.tone import LEVELS, WHITE, expected_mean, exposure, levels, thresholds

SIZE = (64, 48)
DENSITY = 300 / (64 * 48)


def simulation(params: Params, steps: int, agents: int = 300) -> Simulation:
    sim = Simulation(World((params,), seed=7), SIZE, agents, backend="torch")
    sim.run(steps)
    return sim


# Exposure


@pytest.mark.parametrize("steps", [0, 1, 40])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"decay_rate": 0.0},
        {"decay_rate": 1.0},
        {"decay_rate": 0.999},
        {"decay_rate": 1e-3},
        {"decay_rate": 1e-17},
        {"decay_rate": 5e-324},
        {"diffusion": 0.0},
        {"diffusion": 1.0, "decay_rate": 0.5},
        {"deposit_amount": 0.0},
        {"deposit_amount": 1e6},
    ],
)
def test_the_expected_mean_is_the_mean_of_a_real_run(changes: dict[str, float], steps: int) -> None:
    params = dataclasses.replace(AWKWARD, **changes)
    measured = simulation(params, steps).trail.double().mean().item()
    assert expected_mean(params.deposit_amount, DENSITY, params.decay_rate, steps) == pytest.approx(measured, rel=1e-3)


def test_the_expected_mean_tends_to_the_documented_equilibrium() -> None:
    assert expected_mean(5, 0.15, 0.1, 10**6) == pytest.approx(5 * 0.15 * 0.9 / 0.1)
    assert expected_mean(5, 0.15, 0.1, 2**62) == pytest.approx(6.75)
    assert expected_mean(5, 0.15, 0.0, 2**62) == pytest.approx(0.75 * 2**62)


def test_the_expected_mean_grows_without_a_jump_from_no_decay() -> None:
    for decay in (0.0, 5e-324, 1e-300, 1e-18, 1e-17, 1e-16, 1e-15, 1e-12, 1e-9):
        assert expected_mean(5, 0.15, decay, 1000) == pytest.approx(750, rel=1e-5)


def test_exposure_is_the_mean_at_the_end_or_that_of_a_picture_where_agents_leave_none() -> None:
    jones = (Params(),), (0.15,)
    assert exposure(*jones, 1000) == exposure(*jones, 1000, 50.0) == expected_mean(5, 0.15, 0.1, 1000)
    for params, steps in ((Params(deposit_amount=0), 1000), (Params(decay_rate=1), 1000), (Params(), 0)):
        assert exposure((params,), (0.15,), steps, 80.0) * WHITE == 80.0
        assert exposure((params,), (0.15,), steps) == 1.0


def test_exposure_adds_up_the_populations_as_a_frame_does() -> None:
    populations = (AWKWARD, Params(), Params(deposit_amount=0))
    sim = Simulation(World(populations, seed=7), SIZE, 300, backend="torch", count=[[300, 100, 7]])
    sim.run(30)
    measured = sim.trail[0].double().sum(0).mean().item()
    assert exposure(populations, sim.agents_per_cell, 30) == pytest.approx(measured, rel=1e-3)


# The curve


@pytest.mark.parametrize("mean", [2.0**-30, 1e-3, 0.7, 1.0, 4.3, 1e6, 1e20])
def test_thresholds_rise_and_invert_the_documented_curve(mean: float) -> None:
    found = thresholds(mean)
    assert found.shape == (LEVELS - 1,)
    assert found.dtype == torch.float32
    assert (found[1:] > found[:-1]).all()
    brightness = np.arcsinh(found.double().numpy() / mean) / math.asinh(WHITE)
    np.testing.assert_allclose(brightness * 255, np.arange(255) + 0.5, rtol=3e-7)


def test_each_level_begins_exactly_at_its_threshold() -> None:
    steps = thresholds(4.3)
    below = torch.nextafter(steps, torch.tensor(0.0))
    assert levels(steps, steps).tolist() == list(range(1, 256))
    assert levels(below, steps).tolist() == list(range(255))
    assert levels(steps.view(5, 51), steps).dtype == torch.int32
    assert levels(steps.view(5, 51), steps).shape == (5, 51)


@pytest.mark.parametrize("mean", [1e-300, 5e-324, 1e-45, 1e-40, 2.0**-40, 1.0, 1e6, 1e30])
def test_nothing_is_black_and_what_is_far_above_white_is_white(mean: float) -> None:
    found = levels(torch.tensor([0.0, 2.0**-40 if mean >= 1 else 0.0, 1e30 * WHITE]), thresholds(mean))
    assert found.tolist() == [0, 0, 255]


def test_white_begins_at_white_and_the_mean_is_a_middling_tone() -> None:
    mean = 3.0
    at = levels(torch.tensor([mean, mean * WHITE * 0.98, mean * WHITE, 1e30]), thresholds(mean))
    assert 60 < at[0] < 190
    assert at[1] < 255
    assert at[2] == at[3] == 255


def test_levels_are_those_of_the_curve_rounded() -> None:
    mean = 1.7
    trail = torch.from_numpy(noise(1, 200, 100, high=16.0) ** 2)
    curve = 255 * np.clip(np.arcsinh(trail.double().numpy() / mean) / math.asinh(WHITE), 0, 1)
    certain = np.abs(curve % 1 - 0.5) > 1e-4  # from a threshold
    assert certain.mean() > 0.99
    assert (levels(trail, thresholds(mean)).numpy()[certain] == np.rint(curve)[certain]).all()


# Colour


@pytest.mark.parametrize("name", ["magma", "viridis", "bone", "gray", "twilight", "tab10", "magma_r", "hot"])
def test_a_colour_table_has_256_colours(name: str) -> None:
    table = colour_table(name)
    assert table.shape == (256, 3)
    assert table.dtype == np.uint8
    wanted = matplotlib.colormaps[name](np.linspace(0, 1, 256))[:, :3] * 255
    if name != "tab10":
        assert np.abs(table - wanted).max() <= 1


def test_every_colour_map_of_matplotlib_will_do() -> None:
    assert {colour_table(name).shape for name in matplotlib.colormaps} == {(256, 3)}


@pytest.mark.parametrize(("name", "near"), [("magmaa", "magma"), ("virdis", "viridis"), ("Bone", "bone"), ("magma-r", "magma_r")])
def test_an_unknown_colour_map_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UsageError) as error:
        colour_table(name)
    assert f"there is no colour map '{name}' (did you mean {near}?)" in str(error.value)


@pytest.mark.parametrize("name", ["", "xxxxxxxx", "a\nb", "magma\0"])
def test_an_absurd_colour_map_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(UsageError, match="there is no colour map") as error:
        Renderer(1.0, name)
    assert str(error.value).isprintable()


# Frames


def test_a_frame_gives_each_cell_the_colour_of_its_level_and_is_not_turned() -> None:
    trail = torch.zeros(1, 48, 64)
    trail[0, 3, 5], trail[0, 40, 60] = 1e9, 4.3
    frame = Renderer(4.3, "viridis").frame(trail)
    table = colour_table("viridis")
    assert frame.shape == (48, 64, 3)
    assert frame.dtype == np.uint8
    assert frame.flags.c_contiguous
    assert frame[3, 5].tolist() == table[255].tolist()
    assert frame[40, 60].tolist() == table[int(levels(torch.tensor([4.3]), thresholds(4.3)))].tolist()
    assert (frame != table[0]).any(-1).sum() == 2


def test_populations_are_added_up() -> None:
    parts = torch.from_numpy(noise(2, 3, 48, 64, high=9.0))
    renderer = Renderer(4.0)
    whole = renderer.frame(((parts[0] + parts[1]) + parts[2])[None])
    assert renderer.frame(parts).tobytes() == whole.tobytes()
    assert renderer.frame(parts[:1]).tobytes() != whole.tobytes()


def test_drawing_changes_neither_the_trail_nor_later_frames() -> None:
    trail = torch.from_numpy(noise(2, 2, 48, 64, high=9.0))
    before, renderer = trail.clone(), Renderer(4.0)
    first = renderer.frame(trail)
    first_bytes = first.tobytes()
    first[:] = 0
    assert (trail == before).all()
    assert renderer.frame(trail).tobytes() == Renderer(4.0).frame(trail).tobytes() == first_bytes


@pytest.mark.parametrize("deposit", [0.0, 5e-324, 1e-46, 1e-45, 1e-40, 1e-20])
@pytest.mark.parametrize("colormap", ["magma", "gray"])
def test_an_empty_trail_is_a_black_frame(deposit: float, colormap: str) -> None:
    params = Params(deposit_amount=deposit)
    sim = simulation(params, 5)
    assert (sim.trail == 0).all(), "what is under 2^-40 does not stay"
    frame = Renderer(exposure((params,), sim.agents_per_cell, 5), colormap).frame(sim.trail[0])
    assert (frame == colour_table(colormap)[0]).all()
    assert frame.max() <= 3, "magma's darkest is (0, 0, 3)"


FRAMES = {
    ("magma", 0): "a5da208b65d82805ec3836200187c5bdd2d8794b1c5300a53f973711ecae12b2",
    ("magma", 50): "e78970280e289eb9e6a13a8af270fab16aef585338a67f2291a3656cd0deeb33",
    ("bone", 50): "43ad92da59464150f61eff7f2925209f97c16374b9b767b8c5a63991424d912e",
}


@pytest.mark.parametrize(("colormap", "steps"), FRAMES)
def test_frames_of_a_run_are_the_same_on_every_machine(colormap: str, steps: int) -> None:
    sim = simulation(AWKWARD, steps)
    renderer = Renderer(exposure((AWKWARD,), sim.agents_per_cell, 50), colormap)
    assert hashlib.sha256(renderer.frame(sim.trail[0]).tobytes()).hexdigest() == FRAMES[colormap, steps]


def test_a_developed_frame_uses_the_whole_range() -> None:
    sim = simulation(Params(sensor_distance=5), 150, agents=460)
    frame = Renderer(exposure((Params(),), sim.agents_per_cell, 150), "gray").frame(sim.trail[0])[..., 0]
    assert frame.min() < 10
    assert frame.max() > 240
    assert len(np.unique(frame)) > 100
    assert (frame == 255).mean() < 0.05, "not burnt out"
