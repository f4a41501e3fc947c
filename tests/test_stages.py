"""Each stage alone: what it must do whatever the parameters are."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from cases import AWKWARD, SIZE, blobs, noise
from hypothesis import given, settings
from hypothesis import strategies as st

from physarum import Params, Simulation, World
from physarum.model.angles import TURN, binary_angle, direction, wrap_heading
from physarum.model.chance import hash32
from physarum.model.constants import Constants
from physarum.model.maps import Maps
from physarum.model.stages import (
    FAINTEST,
    STRONGEST,
    Agents,
    Keys,
    Senses,
    count_in_cells,
    decay,
    deposit,
    diffuse,
    motor,
    scent,
    sense,
    turn,
)
from physarum.model.torus import cell_of, wrap
from physarum.model.world import as_worlds

WIDTH, HEIGHT = SIZE

# left, ahead, right in every order, ties included, and which way to turn: -1 left, 0 straight, 1 right, None by the coin.
ORDERINGS = {
    (1, 3, 2): 0, (2, 3, 1): 0, (1, 2, 1): 0,
    (2, 1, 3): None, (3, 1, 2): None, (2, 1, 2): None,
    (1, 2, 3): 1, (1, 1, 2): 1, (1, 2, 2): 1,
    (3, 2, 1): -1, (2, 1, 1): -1, (2, 2, 1): -1,
    (1, 1, 1): 0,
}  # fmt: skip


def constants(params: Params = AWKWARD) -> Constants:
    return Constants.of(as_worlds(params))


def agents(x: float, y: float, degrees: float = 0.0) -> Agents:
    def one(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((1, 1, 1), value, dtype=dtype)

    heading = wrap_heading(one(binary_angle(degrees), torch.int32))
    return Agents(one(x, torch.float32), one(y, torch.float32), heading, one(0, torch.int32), None)


def test_the_orderings_are_all() -> None:
    ranked = {tuple(sorted({*v}).index(i) for i in v) for v in itertools.product(range(3), repeat=3)}
    assert len(ORDERINGS) == len(ranked) == 13
    assert {tuple(sorted({*v}).index(i) for i in v) for v in ORDERINGS} == ranked


@pytest.mark.parametrize("coin", [-1, 1])
@pytest.mark.parametrize(("order", "expected"), ORDERINGS.items())
def test_turn(order: tuple[int, int, int], expected: int | None, coin: int) -> None:
    left, ahead, right = (torch.tensor([[[float(v)]]]) for v in order)
    turned = turn(Senses(left, ahead, right), torch.tensor([[[coin]]], dtype=torch.int32))
    assert turned.item() == (coin if expected is None else expected)


def test_direction_is_within_1e_7_of_libm() -> None:
    heading = torch.arange(-(TURN // 2), TURN // 2, dtype=torch.int32)
    exact = heading.numpy() / TURN * 2 * math.pi
    cos, sin = direction(heading)
    assert np.abs(cos.numpy() - np.cos(exact)).max() < 1e-7
    assert np.abs(sin.numpy() - np.sin(exact)).max() < 1e-7


def test_direction_looks_at_the_low_16_bits_alone() -> None:
    heading = torch.arange(-(TURN // 2), TURN // 2, 97, dtype=torch.int32)
    for turns in (-3, -1, 1, 2):
        for a, b in zip(direction(heading), direction(heading + turns * TURN), strict=True):
            assert (a == b).all()


def test_headings_grow_clockwise_on_the_screen() -> None:
    right, down = direction(torch.tensor([binary_angle(0), binary_angle(90)], dtype=torch.int32))
    assert (right.tolist(), down.tolist()) == ([1, 0], [0, 1])


@pytest.mark.parametrize(
    ("degrees", "angle"),
    [(0, 0), (22.5, 4096), (-22.5, 61440), (360, 0), (-360, 0), (180, 32768), (0.5 * 360 / TURN, 0), (1.5 * 360 / TURN, 2), (359.999, 0)],
)
def test_binary_angles(degrees: float, angle: int) -> None:
    assert binary_angle(degrees) == angle


def test_hash32_is_a_bijection_on_a_sample_of_neighbours() -> None:
    values = torch.arange(-500_000, 500_000, dtype=torch.int32)
    assert hash32(values).unique().numel() == values.numel()


def test_sense_looks_left_ahead_and_right() -> None:
    trail = torch.zeros(1, 1, HEIGHT, WIDTH)
    trail[0, 0, 40, 29], trail[0, 0, 31, 20], trail[0, 0, 49, 20] = 2.0, 1.0, 3.0
    senses = sense(agents(20.5, 40.5), trail, constants(Params(sensor_angle=90)), Maps())
    assert [s.item() for s in senses] == [1.0, 2.0, 3.0], "left is up on the screen for an agent that goes right"


def test_sense_crosses_the_seams() -> None:
    trail = torch.zeros(1, 1, HEIGHT, WIDTH)
    trail[0, 0, 0, 8], trail[0, 0, HEIGHT - 9, WIDTH - 1], trail[0, 0, 9, WIDTH - 1] = 2.0, 1.0, 3.0
    senses = sense(agents(WIDTH - 0.5, 0.0), trail, constants(Params(sensor_angle=90)), Maps())
    assert [s.item() for s in senses] == [1.0, 2.0, 3.0]


def test_scent_is_the_trail_itself_where_nothing_is_computed() -> None:
    trail = torch.rand(1, 1, 8, 8)
    assert scent(trail, None, None) is trail


def test_scent_weighs_the_trails_of_all_populations() -> None:
    trail = torch.stack([torch.full((8, 8), 2.0), torch.full((8, 8), 10.0)])[None]
    world = World((Params(), Params()), attraction=[[1, -0.5], [0.25, 3]])
    smell = scent(trail, Constants.of(as_worlds(world)).attraction, torch.full((1, 2, 8, 8), 100.0))
    assert smell[0, :, 0, 0].tolist() == [2 - 5 + 100, 0.5 + 30 + 100]


def test_an_agent_that_meets_a_wall_stays_and_does_not_deposit() -> None:
    walls = torch.zeros(1, 1, HEIGHT, WIDTH, dtype=torch.bool)
    walls[..., 21] = True
    zero = torch.zeros(1, 1, 1)
    key = torch.full((1, 1, 1), 12345, dtype=torch.int32)
    before = agents(20.5, 40.5)
    after, deposits = motor(
        before, Senses(zero, zero, zero), zero.new_zeros(walls.shape), constants(Params()), Maps(walls=walls), Keys(key, key)
    )
    assert (after.x.item(), after.y.item()) == (20.5, 40.5)
    assert after.heading.item() == wrap_heading(hash32(key)).item()
    assert deposits is not None
    assert not deposits.item()


def test_agents_of_one_cell_all_count() -> None:
    sim = Simulation(Params(sensor_distance=3, deposit_amount=1, diffusion=0, decay_rate=0), (8, 8), 100_000, backend="torch")
    sim.run(1)
    assert sim.trail.sum(dtype=torch.float64) == 100_000


@pytest.mark.parametrize("count", [1, 2, 31, 33, 1023, 1025])
@pytest.mark.parametrize("size", [(8, 8), (9, 8), SIZE, (8, 1024)])
@pytest.mark.parametrize("backend", ["torch"])
def test_deposit_conserves_counts(count: int, size: tuple[int, int], backend: str) -> None:
    sim = Simulation(Params(sensor_distance=3, deposit_amount=1, diffusion=0, decay_rate=0), size, count, backend=backend)
    sim.run(1)
    assert sim.trail.sum(dtype=torch.float64) == count


def test_deposit_adds_food_after_the_agents() -> None:
    trail, food = (torch.from_numpy(noise(i, 1, 1, HEIGHT, WIDTH, high=high)) for i, high in ((1, 1.0), (2, 3.0)))
    spread = Simulation(AWKWARD, SIZE, 3000, backend="torch").state()
    many = Agents(spread.x, spread.y, spread.heading.to(torch.int32), spread.id, None)
    count = torch.zeros(HEIGHT, WIDTH)
    for x, y in zip(spread.x.flatten().int().tolist(), spread.y.flatten().int().tolist(), strict=True):
        count[y, x] += 1
    assert (count_in_cells(many, None, trail) == count).all()
    after = deposit(many, None, trail, constants(), Maps(food=food))
    assert (after == (trail + np.float32(3.3) * count) + food).all()
    assert not (after == (trail + food) + np.float32(3.3) * count).all(), "the order shows in the last bits"


def test_diffuse_conserves_the_sum_within_rounding() -> None:
    trail = torch.from_numpy(noise(1, 1, 1, HEIGHT, WIDTH, high=50))
    for share in (0.0, 0.37, 1.0):
        spread = diffuse(trail, constants(Params(diffusion=share)))
        assert spread.sum(dtype=torch.float64).item() == pytest.approx(trail.sum(dtype=torch.float64).item(), rel=1e-6)
    assert (diffuse(trail, constants(Params(diffusion=0))) == trail).all()


def test_diffuse_spreads_to_nine_cells_across_the_seams() -> None:
    trail = torch.zeros(1, 1, HEIGHT, WIDTH)
    trail[0, 0, 0, 0] = 9.0
    spread = diffuse(trail, constants(Params(diffusion=1)))
    rows, columns = (i.sort()[0].unique().tolist() for i in (spread > 0.99).nonzero(as_tuple=True)[2:])
    assert (rows, columns) == ([0, 1, HEIGHT - 1], [0, 1, WIDTH - 1])
    assert (spread > 0).sum() == 9


def test_decay_scales_and_keeps_the_trail_in_float32s_normal_range() -> None:
    trail = torch.tensor([[[[8.0, FAINTEST, 3e38, 0.0]]]])
    assert decay(trail, constants(Params(decay_rate=0.25)), Maps()).flatten().tolist() == [6.0, 0.0, STRONGEST, 0.0]
    walls = torch.tensor([[[[True, False, True, False]]]])
    assert decay(trail, constants(Params(decay_rate=0)), Maps(walls=walls)).flatten().tolist() == [0.0, FAINTEST, 0.0, 0.0]


@given(st.floats(-61, 122, width=32, exclude_max=True))
def test_wrapped_positions_are_inside(x: float) -> None:
    assert 0 <= wrap(torch.tensor([x]), 61).item() < 61


coordinate = st.floats(0, 65_536, width=32, exclude_max=True)


@given(x=coordinate, y=coordinate, heading=st.integers(-(TURN // 2), TURN // 2 - 1), reach=st.floats(0, 65_535, width=32, exclude_max=True))
def test_cells_are_inside_however_large_the_world(x: float, y: float, heading: int, reach: float) -> None:
    cos, sin = direction(torch.tensor([heading], dtype=torch.int32))
    side = 65_536
    cell = cell_of(torch.tensor([x]) + reach * cos, torch.tensor([y]) + reach * sin, side, side)
    assert 0 <= cell.item() < side * side


angle = st.floats(-360, 360)
reach = st.floats(0, 6.99)
share = st.floats(0, 1)


@settings(max_examples=60, deadline=None)
@given(
    params=st.builds(
        Params,
        sensor_angle=angle,
        rotation_angle=angle,
        sensor_distance=reach,
        step_size=reach,
        deposit_amount=st.floats(0, 1e6),
        diffusion=share,
        decay_rate=share,
    ),
    attraction=st.floats(-1000, 1000),
    walled=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_whatever_the_parameters_agents_stay_inside_and_trail_stays_finite(
    params: Params, attraction: float, walled: bool, seed: int
) -> None:
    walls = blobs(1, 8, 31) if walled else None
    world = World((params,), attraction=attraction, walls=walls, seed=seed)
    sim = Simulation(world, (31, 8), 50, backend="torch")
    sim.run(12)
    state = sim.state()
    assert ((state.x >= 0) & (state.x < 31) & (state.y >= 0) & (state.y < 8)).all()
    assert ((state.trail >= 0) & (state.trail <= STRONGEST)).all()
    if walls is not None:
        assert not walls[state.y.long(), state.x.long()].any()
        assert (state.trail[0, 0].numpy()[walls] == 0).all()


def test_a_distance_too_short_to_be_told_from_none_is_none() -> None:
    """Its sums could be denormal numbers, which GPUs floor to another cell than processors do."""
    world = World((dataclasses.replace(AWKWARD, sensor_distance=2.0**-65, step_size=5e-20),))
    constants = Constants.of([world])
    assert (constants.sensor_distance.item(), constants.step_size.item()) == (0, 0)
    world = World((dataclasses.replace(AWKWARD, sensor_distance=2.0**-64, step_size=6e-20),))
    constants = Constants.of([world])
    assert (constants.sensor_distance.item(), constants.step_size.item()) == (2.0**-64, np.float32(6e-20))
