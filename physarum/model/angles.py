"""Binary angles: a heading is an integer, 65,536 to the turn, 0 along +x, growing towards +y (clockwise on the screen).

Integers wrap by themselves and add exactly, so a heading never depends on rounding; its direction comes from two polynomials whose
every multiply and add rounds on its own, hence the same bits on every machine (libm's sine and cosine differ between machines).
"""

import torch
from torch import Tensor

TURN = 65_536

# Minimax polynomials of sin(2 pi r) / r and cos(2 pi r) in t = r * r for r in [-1/8, 1/8] turn; each coefficient is a float32.
SIN = (6.2831854820251465, -41.341644287109375, 81.58898162841797, -75.24411010742188)
COS = (1.0, -19.739208221435547, 64.93939208984375, -85.45242309570312, 59.5572624206543)


def binary_angle(degrees: float) -> int:
    """The nearest binary angle, ties to even, from 0 to 65,535."""
    return round(degrees / 360 * TURN) % TURN


def wrap_heading(heading: Tensor) -> Tensor:
    """An int32 binary angle brought to -32,768 .. 32,767, as int16 overflow would."""
    return (heading << 16) >> 16


def direction(heading: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vector of a heading, within 9e-8 of libm.

    Args:
        heading: int32 binary angle of any shape; only its low 16 bits count.

    Returns:
        (cos, sin), float32, of the same shape.
    """
    quarter = (heading + TURN // 8) >> 14
    r = (heading - (quarter << 14)).to(torch.float32) * (1 / TURN)
    t = r * r
    s = (((SIN[3] * t + SIN[2]) * t + SIN[1]) * t + SIN[0]) * r
    c = (((COS[4] * t + COS[3]) * t + COS[2]) * t + COS[1]) * t + COS[0]
    odd = (quarter & 1) != 0
    cos, sin = torch.where(odd, s, c), torch.where(odd, c, s)
    return torch.where(((quarter + 1) & 2) != 0, -cos, cos), torch.where((quarter & 2) != 0, -sin, sin)
