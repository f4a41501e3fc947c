"""The functions of the model as Triton device functions, each under the name it has in `physarum.model`, with the same rounding.

Kernels must be launched with `enable_fp_fusion=False`, or products and sums contract to FMA and every bit after them differs.
"""

import triton
import triton.language as tl

from physarum.model import angles, chance, stages

S0, S1, S2, S3 = (tl.constexpr(v) for v in angles.SIN)
C0, C1, C2, C3, C4 = (tl.constexpr(v) for v in angles.COS)
M0, M1 = (tl.constexpr(v) for v in chance.MULTIPLIERS)
FAINTEST = tl.constexpr(stages.FAINTEST)
STRONGEST = tl.constexpr(stages.STRONGEST)
ONE_TURN = tl.constexpr(1 / angles.TURN)


@triton.jit
def wrap_heading(heading):
    """An int32 binary angle brought to -32,768 .. 32,767."""
    return (heading << 16) >> 16


@triton.jit
def direction(heading):
    """(cos, sin) of an int32 binary angle, of which only the low 16 bits count."""
    quarter = (heading + 8192) >> 14
    r = (heading - (quarter << 14)).to(tl.float32) * ONE_TURN
    t = r * r
    s = (((S3 * t + S2) * t + S1) * t + S0) * r
    c = (((C4 * t + C3) * t + C2) * t + C1) * t + C0
    odd = (quarter & 1) != 0
    cos = tl.where(odd, s, c)
    sin = tl.where(odd, c, s)
    return tl.where(((quarter + 1) & 2) != 0, -cos, cos), tl.where((quarter & 2) != 0, -sin, sin)


@triton.jit
def hash32(v):
    """Mix the 32 bits of a uint32."""
    v = (v ^ (v >> 16)) * M0
    v = (v ^ (v >> 15)) * M1
    return v ^ (v >> 16)


@triton.jit
def key(world_key, step, purpose):
    """What the draws of a step are keyed with; world_key is hash32(hash32(seed) + number)."""
    return hash32(hash32(world_key + step) + purpose)


@triton.jit
def draw(identity, key):
    """An agent's draw: uint32."""
    return hash32(identity.to(tl.uint32, bitcast=True) ^ key)


@triton.jit
def wrap(position, side):
    """Bring float32 coordinates from -side .. 2 * side to 0 .. side."""
    side = side.to(tl.float32)
    position = tl.where(position < 0, position + side, position)
    return tl.where(position < side, position, position - side)


@triton.jit
def wrap_cell(cell, side):
    """Bring int32 columns or rows from -side .. 2 * side - 1 to 0 .. side - 1."""
    cell = tl.where(cell < 0, cell + side, cell)
    return tl.where(cell < side, cell, cell - side)


@triton.jit
def cell_of(x, y, width, height, INDEX: tl.constexpr):
    """The flat cell under a point; INDEX is the type that counts the cells of a world."""
    column = wrap_cell(tl.floor(x).to(tl.int32), width)
    row = wrap_cell(tl.floor(y).to(tl.int32), height)
    return row.to(INDEX) * width + column


@triton.jit
def scent(trail, attraction, light, cell, cells, there, POPULATIONS: tl.constexpr):
    """What a population smells in a cell.

    `trail` points to the trail of the world's first population, `attraction` to the population's row, `light` to its light, or is None.
    """
    smell = tl.load(attraction) * tl.load(trail + cell, mask=there, other=0.0)
    for q in tl.static_range(1, POPULATIONS):
        smell = smell + tl.load(attraction + q) * tl.load(trail + q * cells + cell, mask=there, other=0.0)
    if light is not None:
        smell = smell + tl.load(light + cell, mask=there, other=0.0)
    return smell


@triton.jit
def sense(
    x, y, heading, sensor_distance, trail, attraction, light, cells, width, height, there, POPULATIONS: tl.constexpr, INDEX: tl.constexpr
):
    """Read the scent at `sensor_distance` in one direction."""
    cos, sin = direction(heading)
    cell = cell_of(x + sensor_distance * cos, y + sensor_distance * sin, width, height, INDEX)
    return scent(trail, attraction, light, cell, cells, there, POPULATIONS)


@triton.jit
def turn(left, ahead, right, coin):
    """Which way to turn: -1 left, 0 straight, 1 right."""
    side = (left < right).to(tl.int32) - (right < left).to(tl.int32)
    side = tl.where((ahead < left) & (ahead < right), coin, side)
    return tl.where((ahead > left) & (ahead > right), 0, side)


@triton.jit
def motor(x, y, heading, left, ahead, right, coin, rotation_angle, step_size, width, height):
    """Turn and move, as if there were no walls."""
    heading = wrap_heading(heading + turn(left, ahead, right, coin) * rotation_angle)
    cos, sin = direction(heading)
    return wrap(x + step_size * cos, width), wrap(y + step_size * sin, height), heading


@triton.jit
def deposit(trail, count, food, deposit_amount, cell, inside):
    """The trail in a cell after its agents have deposited and food, unless None, has been added."""
    deposited = tl.load(trail + cell, mask=inside) + deposit_amount * tl.load(count + cell, mask=inside).to(tl.float32)
    if food is not None:
        deposited = deposited + tl.load(food + cell, mask=inside)
    return deposited


@triton.jit
def diffuse(centre, up, middle, down, keep, share):
    """Mix a cell with the mean of nine, given their sums by row."""
    return centre * keep + ((up + middle) + down) * share


@triton.jit
def decay(trail, remain):
    """Lose the share `decay_rate`, between the faintest and the strongest trail there is."""
    trail = trail * remain
    trail = tl.where(trail < FAINTEST, 0.0, trail)
    return tl.where(trail > STRONGEST, STRONGEST, trail)
