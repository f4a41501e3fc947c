"""The kernels that are launched, three a step: sense + motor, deposit, diffuse + decay.

Arguments come in groups: parameters, state in, state out, sizes, and constants of the compilation in capitals. Agents are (fields, slots),
maps and trails (fields, height, width), a field being a population of a world. A map that no world has is None.
`table` holds a row a field: its parameters in the order of the columns below, all float32 (binary angles are exact in it), so that no
parameter is compiled into a kernel. `world_keys` and `clock`, the number of the step, are uint32 bits in int32.
"""

import triton
import triton.language as tl

from physarum.backends.kernels.functions import cell_of, decay, deposit, diffuse, draw, key, motor, sense
from physarum.model import chance

# The columns of the table: the fields of `Constants` but for attraction, in their order.
SENSOR_ANGLE, ROTATION_ANGLE, SENSOR_DISTANCE, STEP_SIZE, DEPOSIT_AMOUNT, KEEP, SHARE, REMAIN = (tl.constexpr(i) for i in range(8))
WIDTH_OF_TABLE = tl.constexpr(8)

COIN = tl.constexpr(chance.COIN)
WALL_HEADING = tl.constexpr(chance.WALL_HEADING)

CELLS_IN_INT32 = 2**31  # of a world; the cells of a larger one are counted in int64


def index_type(cells: int):
    """The type in which the cells of a world are counted."""
    return tl.int32 if cells <= CELLS_IN_INT32 else tl.int64


@triton.jit
def sense_motor_kernel(
    table, attraction, light, walls, world_keys, clock,
    x, y, heading, identity, last_id, trail,
    new_x, new_y, new_heading, deposits,
    slots, width, height, programs,
    POPULATIONS: tl.constexpr, BLOCK: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Sense, turn and move BLOCK agents of a field, each read once and written once; `programs` programs do a field.

    `deposits`, where it is not None, is told which agents deposit: those that live and were not stopped by a wall.
    """
    field = tl.program_id(0) // programs
    world = field // POPULATIONS
    slot = (tl.program_id(0) % programs) * BLOCK + tl.arange(0, BLOCK)
    there = slot < slots
    agent = field.to(tl.int64) * slots + slot
    cells = height.to(tl.int64) * width

    old_x = tl.load(x + agent, mask=there, other=0.0)
    old_y = tl.load(y + agent, mask=there, other=0.0)
    old_heading = tl.load(heading + agent, mask=there, other=0).to(tl.int32)
    who = tl.load(identity + agent, mask=there, other=0)

    row = table + field * WIDTH_OF_TABLE
    sensor_angle = tl.load(row + SENSOR_ANGLE).to(tl.int32)
    distance = tl.load(row + SENSOR_DISTANCE)
    world_trail = trail + world.to(tl.int64) * POPULATIONS * cells
    weights = attraction + field * POPULATIONS
    if light is not None:
        light += field.to(tl.int64) * cells
    left = sense(
        old_x, old_y, old_heading - sensor_angle, distance, world_trail, weights, light, cells, width, height, there, POPULATIONS, INDEX
    )
    ahead = sense(old_x, old_y, old_heading, distance, world_trail, weights, light, cells, width, height, there, POPULATIONS, INDEX)
    right = sense(
        old_x, old_y, old_heading + sensor_angle, distance, world_trail, weights, light, cells, width, height, there, POPULATIONS, INDEX
    )

    world_key = tl.load(world_keys + world).to(tl.uint32, bitcast=True)
    step = tl.load(clock).to(tl.uint32, bitcast=True)
    coin = ((draw(who, key(world_key, step, COIN)) & 1) << 1).to(tl.int32) - 1
    rotation_angle = tl.load(row + ROTATION_ANGLE).to(tl.int32)
    moved_x, moved_y, turned = motor(
        old_x, old_y, old_heading, left, ahead, right, coin, rotation_angle, tl.load(row + STEP_SIZE), width, height
    )

    depositing = there
    if walls is not None:
        walls += field.to(tl.int64) * cells
        blocked = tl.load(walls + cell_of(moved_x, moved_y, width, height, INDEX), mask=there, other=0) != 0
        moved_x = tl.where(blocked, old_x, moved_x)
        moved_y = tl.where(blocked, old_y, moved_y)
        random = draw(who, key(world_key, step, WALL_HEADING)).to(tl.int32, bitcast=True)
        turned = tl.where(blocked, random, turned)
        depositing = depositing & ~blocked
    if last_id is not None:
        lives = who <= tl.load(last_id + field)
        moved_x = tl.where(lives, moved_x, old_x)
        moved_y = tl.where(lives, moved_y, old_y)
        turned = tl.where(lives, turned, old_heading)
        depositing = depositing & lives
    tl.store(new_x + agent, moved_x, mask=there)
    tl.store(new_y + agent, moved_y, mask=there)
    tl.store(new_heading + agent, turned.to(tl.int16), mask=there)
    if deposits is not None:
        tl.store(deposits + agent, depositing.to(tl.int8), mask=there)


@triton.jit
def deposit_kernel(
    x, y, deposits,
    count,
    slots, width, height, programs,
    BLOCK: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Count BLOCK agents of a field in the cells where they stand. Integers, so that the order of adding cannot matter."""
    field = (tl.program_id(0) // programs).to(tl.int64)
    slot = (tl.program_id(0) % programs) * BLOCK + tl.arange(0, BLOCK)
    there = slot < slots
    agent = field * slots + slot
    cell = cell_of(tl.load(x + agent, mask=there, other=0.0), tl.load(y + agent, mask=there, other=0.0), width, height, INDEX)
    if deposits is not None:
        there = tl.load(deposits + agent, mask=there, other=0) != 0
    tl.atomic_add(count + field * (height.to(tl.int64) * width) + cell, 1, mask=there, sem="relaxed")


@triton.jit
def diffuse_decay_kernel(
    table, food, walls, clock,
    trail, count,
    new_trail, next_count,
    width, height, strips, bands,
    STRIP: tl.constexpr, BAND: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Add deposits and food, diffuse and decay STRIP columns and BAND rows of a field; clear the counts of the next step; wind the clock.

    A program walks down its rows and keeps the sums of three in registers, so that each is formed once a program.
    """
    program = tl.program_id(0)
    column = (program % strips) * STRIP + tl.arange(0, STRIP)
    first = (program // strips) % bands * BAND
    field = program // strips // bands
    inside = column < width
    left = tl.where(column == 0, width - 1, column - 1)
    right = tl.where(column == width - 1, 0, column + 1)

    start = field.to(tl.int64) * (height.to(tl.int64) * width)
    trail += start
    count += start
    new_trail += start
    next_count += start
    if food is not None:
        food += start
    if walls is not None:
        walls += start
    row = table + field * WIDTH_OF_TABLE
    deposit_amount = tl.load(row + DEPOSIT_AMOUNT)
    keep = tl.load(row + KEEP)
    share = tl.load(row + SHARE)
    remain = tl.load(row + REMAIN)

    up = tl.zeros((STRIP,), tl.float32)
    middle = up
    centre = up
    for j in tl.static_range(BAND + 2):
        y = first + j - 1
        y = tl.where(y < 0, y + height, y)
        y = tl.where(y < height, y, y - height)
        line = y.to(INDEX) * width
        below = deposit(trail, count, food, deposit_amount, line + column, inside)
        down = (deposit(trail, count, food, deposit_amount, line + left, inside) + below) + deposit(
            trail, count, food, deposit_amount, line + right, inside
        )
        if j >= 2:
            cell = (first + (j - 2)).to(INDEX) * width + column
            drawn = column < tl.where(first + (j - 2) < height, width, 0)
            decayed = decay(diffuse(centre, up, middle, down, keep, share), remain)
            if walls is not None:
                decayed = tl.where(tl.load(walls + cell, mask=drawn, other=0) != 0, 0.0, decayed)
            tl.store(new_trail + cell, decayed, mask=drawn)
            tl.store(next_count + cell, tl.zeros((STRIP,), tl.int32), mask=drawn)
        up = middle
        middle = down
        centre = below
    if program == 0:
        tl.store(clock, tl.load(clock) + 1)
