"""A slow, plain NumPy implementation of the model, written from its specification alone, for tests that compare bit by bit.

One world at a time. P populations, N slots (agents) each. Positions are in cells, x to the right and y down; maps are row-major
[y, x]. Angles are degrees outside and binary angles inside: 65,536 to the turn, 0 along +x, growing towards +y.
Every operation on agents and trail is a float32 operation, rounded on its own.
"""

from dataclasses import dataclass, replace

import numpy as np

START_X, START_Y, START_HEADING = 1, 2, 3  # purposes of a draw
COIN, WALL_HEADING = 16, 17
REPEATS = 64  # of a random start that lands in a wall

SIN = [np.float32(value) for value in (6.2831854820251465, -41.341644287109375, 81.58898162841797, -75.24411010742188)]
COS = [np.float32(value) for value in (1, -19.739208221435547, 64.93939208984375, -85.45242309570312, 59.5572624206543)]
SMALLEST, LARGEST = np.float32(2.0**-40), np.float32(1e30)  # trail


@dataclass
class World:
    """What does not change during a run."""

    width: int  # cells
    height: int  # cells
    populations: list[dict[str, float]]  # float64, named as in the specification; angles in degrees
    attraction: np.ndarray | None = None  # (P, P) float64; None is the identity
    food: np.ndarray | None = None  # (P, height, width) float32, trail per step
    walls: np.ndarray | None = None  # (P, height, width) bool, True is wall
    light: np.ndarray | None = None  # (P, height, width) float32, scent
    seed: int = 0
    number: int = 0


@dataclass
class State:
    """What changes. A slot with id = p * N + i lives if i < count[p], wherever it stands in the array; the dead keep their values."""

    x: np.ndarray  # (P, N) float32, cells, 0 <= x < width
    y: np.ndarray  # (P, N) float32, cells, 0 <= y < height
    heading: np.ndarray  # (P, N) int16, binary angle
    id: np.ndarray  # (P, N) int32
    trail: np.ndarray  # (P, height, width) float32
    count: np.ndarray  # (P,) int, slots that live
    step: int = 0  # completed steps


def hash32(v: int | np.ndarray) -> np.ndarray:
    """Scrambled bits of v modulo 2^32, as uint32 of the same shape. Computed in uint64, where no product overflows."""
    low = 0xFFFFFFFF
    v = np.asarray(v).astype(np.uint64) & low
    v = v ^ (v >> 16)
    v = (v * 0x7FEB352D) & low
    v = v ^ (v >> 15)
    v = (v * 0x846CA68B) & low
    v = v ^ (v >> 16)
    return v.astype(np.uint32)


def key(seed: int, world: int, step: int, purpose: int) -> int:
    """The uint32 key of all draws with one purpose in one step of one world."""
    result = int(hash32(seed))
    for part in (world, step, purpose):
        result = int(hash32(result + part))
    return result


def draw(world: World, step: int, purpose: int, id: np.ndarray) -> np.ndarray:
    """One uint32 per agent, of the shape of `id`."""
    return hash32(id.astype(np.uint32) ^ np.uint32(key(world.seed, world.number, step, purpose)))


def binary_angle(degrees: float) -> int:
    """The nearest binary angle, ties to even, from 0 to 65,535."""
    return int(np.rint(np.float64(degrees) / 360 * 65536)) % 65536


def direction(heading: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine (float32) of int16 headings: a polynomial within an eighth of a turn of the nearest axis, then quarter turns."""
    h = np.asarray(heading, dtype=np.int16).astype(np.int32)
    quarter = (h + 8192) >> 14
    r = (h - (quarter << 14)).astype(np.float32) * np.float32(2.0**-16)
    t = r * r
    s = (((SIN[3] * t + SIN[2]) * t + SIN[1]) * t + SIN[0]) * r
    c = (((COS[4] * t + COS[3]) * t + COS[2]) * t + COS[1]) * t + COS[0]
    quarter = quarter & 3
    return np.choose(quarter, [c, -s, -c, s]), np.choose(quarter, [s, c, -s, -c])


def turned(heading: np.ndarray, angle: int | np.ndarray) -> np.ndarray:
    """int16 headings plus a binary angle, wrapped by overflow."""
    return (heading.astype(np.int32) + angle).astype(np.int16)


def wrapped(position: np.ndarray, side: int) -> np.ndarray:
    """float32 positions less than one side outside the torus, brought inside; a sum that rounds up to the side becomes 0."""
    period = np.float32(side)
    position = np.where(position < 0, position + period, position)
    return np.where(position >= period, position - period, position)


def cell_of(world: World, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row and column (int64) of the cell under a point, which may lie outside: floored, then wrapped as an integer."""
    row, column = np.floor(y).astype(np.int64), np.floor(x).astype(np.int64)
    return row % world.height, column % world.width


def living(state: State) -> np.ndarray:
    """Which slots live, (P, N) bool."""
    populations, agents = state.id.shape
    index = state.id - np.arange(populations)[:, None] * agents
    alive: np.ndarray = index < np.asarray(state.count)[:, None]
    return alive


def cleared(world: World, maps: np.ndarray) -> np.ndarray:
    """The maps (P, height, width) float32, 0 in walls."""
    return maps if world.walls is None else np.where(world.walls, np.float32(0), maps)


def in_wall(world: World, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which agents (P, N) stand in a wall of their population."""
    result = np.zeros(x.shape, dtype=bool)
    if world.walls is not None:
        for p in range(len(x)):
            result[p] = world.walls[p][cell_of(world, x[p], y[p])]
    return result


def random_start(world: World, agents: int, count: np.ndarray | None = None, trail: np.ndarray | None = None) -> State:
    """`agents` slots per population, of which the first `count` live (default all), outside walls; dead slots hold 0."""
    populations = len(world.populations)
    count = np.full(populations, agents) if count is None else np.asarray(count)
    trail = np.zeros((populations, world.height, world.width), dtype=np.float32) if trail is None else trail
    id = np.arange(populations * agents, dtype=np.int32).reshape(populations, agents)

    def position(repeat: int, purpose: int, side: int) -> np.ndarray:
        share = (draw(world, repeat, purpose, id) >> 8).astype(np.float32) * np.float32(2.0**-24)
        return wrapped(share * np.float32(side), side)

    zero = np.zeros(id.shape, dtype=np.float32)
    state = State(zero, zero, zero.astype(np.int16), id, cleared(world, trail), count)
    alive = living(state)
    pending = alive
    for repeat in range(1 + REPEATS):
        state.x = np.where(pending, position(repeat, START_X, world.width), state.x)
        state.y = np.where(pending, position(repeat, START_Y, world.height), state.y)
        pending = alive & in_wall(world, state.x, state.y)
    if pending.any():
        raise ValueError(f"{pending.sum()} agents found no place outside the walls")
    state.heading = np.where(alive, (draw(world, 0, START_HEADING, id) >> 16).astype(np.int16), state.heading)
    return state


def scent(world: World, trail: np.ndarray) -> np.ndarray:
    """What each population smells, (P, height, width) float32: the trails weighed by attraction, summed in order, plus light."""
    populations = len(trail)
    attraction = (np.eye(populations) if world.attraction is None else world.attraction).astype(np.float32)
    result = np.empty_like(trail)
    for p in range(populations):
        total = attraction[p, 0] * trail[0]
        for q in range(1, populations):
            total = total + attraction[p, q] * trail[q]
        result[p] = total if world.light is None else total + world.light[p]
    return result


def sense(world: World, state: State) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scent at the left, ahead and right sensors, each (P, N) float32."""
    smell = scent(world, state.trail)
    sensed = np.empty((3, *state.x.shape), dtype=np.float32)
    for p, population in enumerate(world.populations):
        angle, distance = binary_angle(population["sensor_angle"]), np.float32(population["sensor_distance"])
        for sensor, side in enumerate((-1, 0, 1)):
            cos, sin = direction(turned(state.heading[p], side * angle))
            sensed[sensor, p] = smell[p][cell_of(world, state.x[p] + distance * cos, state.y[p] + distance * sin)]
    return sensed[0], sensed[1], sensed[2]


def turn(left: np.ndarray, ahead: np.ndarray, right: np.ndarray, coin: np.ndarray) -> np.ndarray:
    """-1 to the left, 0 straight, 1 to the right, from the three scents and a coin (bool, True is right)."""
    straight = (ahead > left) & (ahead > right)
    random = (ahead < left) & (ahead < right)
    conditions = [straight, random & coin, random, left < right, right < left]
    return np.select(conditions, [0, 1, -1, 1, -1], default=0)


def motor(world: World, state: State, sensed: tuple[np.ndarray, np.ndarray, np.ndarray]) -> tuple[State, np.ndarray]:
    """Turn and move the living. Returns the state after it and which agents (P, N) deposit: the living whose move met no wall."""
    alive = living(state)
    turns = turn(*sensed, draw(world, state.step, COIN, state.id) % 2 == 1)
    x, y, heading = np.empty_like(state.x), np.empty_like(state.y), np.empty_like(state.heading)
    for p, population in enumerate(world.populations):
        distance = np.float32(population["step_size"])
        heading[p] = turned(state.heading[p], turns[p] * binary_angle(population["rotation_angle"]))
        cos, sin = direction(heading[p])
        x[p] = wrapped(state.x[p] + distance * cos, world.width)
        y[p] = wrapped(state.y[p] + distance * sin, world.height)
    blocked = in_wall(world, x, y)
    heading = np.where(blocked, draw(world, state.step, WALL_HEADING, state.id).astype(np.int16), heading)
    moves = alive & ~blocked
    moved = replace(
        state,
        x=np.where(moves, x, state.x),
        y=np.where(moves, y, state.y),
        heading=np.where(alive, heading, state.heading),
    )
    return moved, moves


def deposit(world: World, state: State, deposits: np.ndarray) -> np.ndarray:
    """The trail with what the agents marked in `deposits` (P, N) leave in their cells, and with the food."""
    trail = np.empty_like(state.trail)
    for p, population in enumerate(world.populations):
        agents = np.zeros((world.height, world.width), dtype=np.int32)
        np.add.at(agents, cell_of(world, state.x[p][deposits[p]], state.y[p][deposits[p]]), 1)
        trail[p] = state.trail[p] + np.float32(population["deposit_amount"]) * agents.astype(np.float32)
    return trail if world.food is None else trail + cleared(world, world.food)


def diffuse(world: World, trail: np.ndarray) -> np.ndarray:
    """Each cell (P, height, width) mixed with the mean of the 3 x 3 cells around it, on the torus."""
    rows = (np.roll(trail, 1, axis=2) + trail) + np.roll(trail, -1, axis=2)
    total = (np.roll(rows, 1, axis=1) + rows) + np.roll(rows, -1, axis=1)
    result = np.empty_like(trail)
    for p, population in enumerate(world.populations):
        diffusion = np.float64(population["diffusion"])
        result[p] = trail[p] * np.float32(1 - diffusion) + total[p] * np.float32(diffusion / 9)
    return result


def decay(world: World, trail: np.ndarray) -> np.ndarray:
    """The trail (P, height, width) less its loss of one step, within its limits, and 0 in walls."""
    result = np.empty_like(trail)
    for p, population in enumerate(world.populations):
        kept = trail[p] * np.float32(1 - np.float64(population["decay_rate"]))
        kept = np.where(kept < SMALLEST, np.float32(0), kept)
        result[p] = np.where(kept > LARGEST, LARGEST, kept)
    return cleared(world, result)


def step(world: World, state: State) -> State:
    """The state one step later; the argument does not change."""
    moved, deposits = motor(world, state, sense(world, state))
    trail = decay(world, diffuse(world, deposit(world, moved, deposits)))
    return replace(moved, trail=trail, step=state.step + 1)


def run(world: World, state: State, steps: int) -> State:
    """The state `steps` steps later."""
    for _ in range(steps):
        state = step(world, state)
    return state
