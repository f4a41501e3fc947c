"""Curves through times: a power with a constant, its special cases, their intervals, and which of them the data prefer.

Every curve has a part that grows, a x^b, and one that does not, c; neither is negative. For a given exponent b the best a and c follow from
linear equations, so b alone is searched ("variable projection": Golub and Pereyra, SIAM Journal on Numerical Analysis 10, 1973). Residuals
are relative, (y - curve) / y, because the noise of a time grows with the time. Dividing by y in place of the curve keeps a and c linear and
shifts them by about the square of that noise.

A host launches kernels while the device works, so what a step takes need not be a sum: there is also the larger of the two parts. It is
linear in a and c once it is known which points belong to which; every split is tried, and the curve that results is the one judged.

Intervals are those of the profile likelihood (Bates and Watts, Nonlinear Regression Analysis, 1988, chapter 6): with S the sum of squared
residuals, n points and p parameters, a value is in the 95 % interval if some curve with that value has

    S <= S_min (1 + t^2 / (n - p)),    t the 97.5 % quantile of Student's distribution with n - p degrees of freedom.

Models are compared by Akaike's criterion for few points (Hurvich and Tsai, Biometrika 76, 1989); k = p + 1, as the noise is a parameter:

    AICc = n ln(S / n) + 2 k + 2 k (k + 1) / (n - k - 1);    lower is better, and a difference of less than 2 says nothing.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

SMALLEST_EXPONENT, LARGEST_EXPONENT = 0.1, 4.0  # searched
SEARCHED = np.linspace(SMALLEST_EXPONENT, LARGEST_EXPONENT, 391)
FEWEST_POINTS = 6  # with less AICc is not defined for three parameters
TELLING = 2.0  # of AICc
FEWEST_ABOVE = 4  # points in which the part that grows is the larger one; fewer tell no exponent

Interval = tuple[float | None, float | None]  # None where it is open: the search ended before the interval did
OPEN: Interval = (None, None)


@dataclass(frozen=True)
class Model:
    """A family of curves.

    Attributes:
        formula: For people.
        parameters: How many are fitted.
        exponents: Those that are tried; one where it is given; none where nothing grows.
        larger: The curve is the larger of both parts in place of their sum: what a step takes where a host and a device work at once.
    """

    formula: str
    parameters: int
    exponents: Array
    larger: bool = False


MODELS = {
    "constant": Model("c", 1, np.array([])),
    "linear": Model("a x + c", 2, np.array([1.0])),
    "quadratic": Model("a x^2 + c", 2, np.array([2.0])),
    "power": Model("a x^b + c", 3, SEARCHED),
    "larger": Model("max(a x^b, c)", 3, SEARCHED, larger=True),
}


@dataclass(frozen=True)
class Fit:
    """The best curve of a model.

    Attributes:
        model: Its name in MODELS.
        a: Of a x^b, in units of y; 0 without a part that grows.
        b: The exponent; None without that part.
        c: The part that does not grow, in units of y.
        a_interval: 95 %, over the exponents searched; None where the model has no such parameter, as below.
        b_interval: Likewise.
        c_interval: Likewise.
        aicc: Akaike's criterion; compares fits of the same points with the same residuals.
        r2: The share of the variance of y that the curve explains.
        worst: The largest relative residual, 0.1 for 10 %.
    """

    model: str
    a: float
    b: float | None
    c: float
    a_interval: Interval | None
    b_interval: Interval | None
    c_interval: Interval
    aicc: float
    r2: float
    worst: float

    def at(self, x: ArrayLike) -> Array:
        """The curve."""
        return _curve(self.model, np.asarray(x, dtype=float), self.a, self.b, self.c)

    @property
    def crossing(self) -> float | None:
        """The x from which on the part that grows is the larger one, (c / a)^(1 / b); None where it never is."""
        return None if self.b is None or self.a == 0 else float((self.c / self.a) ** (1 / self.b))

    def figures(self) -> dict[str, Any]:
        """For a row of results."""
        return {**asdict(self), "formula": MODELS[self.model].formula, "crossing": self.crossing}


def fit_all(x: ArrayLike, y: ArrayLike, relative: bool = True) -> dict[str, Fit]:
    """Fit every model.

    Args:
        x: Positive, FEWEST_POINTS or more different values in any order.
        y: Positive.
        relative: Divide residuals by y.

    Returns:
        The fits by model, the lowest AICc first.

    Raises:
        ValueError: There are too few points.
    """
    found = sorted((fit(name, x, y, relative) for name in MODELS), key=lambda one: one.aicc)
    return {one.model: one for one in found}


def fit(name: str, x: ArrayLike, y: ArrayLike, relative: bool = True) -> Fit:
    """Fit one model, named as in MODELS; see fit_all."""
    order = np.argsort(x)
    points, values = np.asarray(x, dtype=float)[order], np.asarray(y, dtype=float)[order]
    if len(np.unique(points)) < FEWEST_POINTS:
        raise ValueError(f"{len(np.unique(points))} points are too few for a fit: it needs {FEWEST_POINTS}")
    return _fit(name, points, values, values if relative else np.ones_like(values))


def not_told_apart(fits: Mapping[str, Fit]) -> list[str]:
    """The models that the data allow: the best and those within TELLING of it, the best first."""
    ranked = sorted(fits.values(), key=lambda one: one.aicc)
    return [one.model for one in ranked if one.aicc - ranked[0].aicc < TELLING]


def contains(interval: Interval, value: float) -> bool:
    """Whether a value lies in an interval."""
    low, high = interval
    return (low is None or low <= value) and (high is None or value <= high)


def r_squared(y: Array, fitted: Array) -> float:
    """The share of the variance of y that a curve explains."""
    return float(1 - np.sum((y - fitted) ** 2) / np.sum((y - y.mean()) ** 2))


@functools.cache
def student_quantile(freedom: int, share: float = 0.975) -> float:
    """Of Student's distribution: with t = sqrt(freedom) tan(angle) its density is proportional to cos(angle)^(freedom - 1)."""
    angles = np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angles) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return float(math.sqrt(freedom) * math.tan(np.interp(2 * share - 1, below / below[-1], angles)))


@dataclass(frozen=True)
class _Solved:
    """The best a and c for each of some exponents; a is the growing part at the largest x.

    Attributes:
        a: Not negative, as c.
        c: Likewise.
        squares: S there.
        centre: a and c of the least S if they may be negative, (2, exponents).
        least: That S.
        spread: How far each can be from there while S grows by 1, (2, exponents).
    """

    a: Array
    c: Array
    squares: Array
    centre: Array
    least: Array
    spread: Array


def _solve(model: Model, u: Array, y: Array, scale: Array, exponents: Array) -> _Solved:
    """Solve the linear part of a model for each exponent.

    Args:
        model: With a part that grows.
        u: x over the largest x, growing.
        y: Values.
        scale: What residuals are divided by.
        exponents: To solve for.
    """
    growth = u ** exponents[:, None, None]  # (exponents, ways to split the points, points)
    if model.larger:  # a belongs to the points from the split on, c to those before; which split is best is seen below
        later = np.arange(len(u)) >= np.arange(1, len(u))[:, None]
        columns = growth * later / scale, np.broadcast_to(~later / scale, (len(exponents), *later.shape))
    else:
        columns = growth / scale, np.broadcast_to(1 / scale, growth.shape)
    target = y / scale
    (p, q), (pt, qt) = ((column**2).sum(-1) for column in columns), ((column * target).sum(-1) for column in columns)
    pq = (columns[0] * columns[1]).sum(-1)
    determinant = p * q - pq**2
    centre = np.stack([(q * pt - pq * qt) / determinant, (p * qt - pq * pt) / determinant])
    a = np.where(centre[0] < 0, 0, np.where(centre[1] < 0, pt / p, centre[0]))
    c = np.where(centre[1] < 0, 0, np.where(centre[0] < 0, qt / q, centre[1]))

    def squares(a: Array, c: Array) -> Array:
        growing, constant = a[..., None] * growth, c[..., None]
        curve = np.maximum(growing, constant) if model.larger else growing + constant
        return np.asarray((((y - curve) / scale) ** 2).sum(-1))

    found, least, spread = squares(a, c), squares(*centre), np.sqrt(np.stack([q, p]) / determinant)
    best = np.arange(len(exponents)), found.argmin(-1)
    return _Solved(a[best], c[best], found[best], centre[:, *best], least[best], spread[:, *best])


def _curve(name: str, x: Array, a: float, b: float | None, c: float) -> Array:
    """The values of a curve."""
    growing = np.zeros_like(x) if b is None else a * x**b
    return np.maximum(growing, c) if MODELS[name].larger else growing + c


def _fit(name: str, x: Array, y: Array, scale: Array) -> Fit:
    """Fit one model to points in order of x."""
    model, largest = MODELS[name], x[-1]
    freedom = len(x) - model.parameters
    room = 1 + student_quantile(freedom) ** 2 / freedom
    if not len(model.exponents):
        weight = float(np.sum(scale**-2))
        level = float(np.sum(y / scale**2)) / weight
        squares = float(np.sum(((y - level) / scale) ** 2))
        reach = math.sqrt((room - 1) * squares / weight)
        return _described(name, x, y, squares, (0.0, None, level), (None, None, (max(0.0, level - reach), level + reach)))

    def solve(exponents: Array) -> _Solved:
        return _solve(model, x / largest, y, scale, exponents)

    tried = model.exponents
    solved = solve(tried)
    b_interval: Interval | None = None
    if len(tried) > 1:
        exponent = _lowest(solve, tried, solved.squares)
        limit = float(solve(np.array([exponent])).squares[0]) * room
        low, high = _ends(solve, tried, exponent, limit)
        b_interval = (None if low == tried[0] else low, None if high == tried[-1] else high)
        across = solve(exponents := np.unique(np.append(np.linspace(low, high, 201), exponent)))
    else:
        exponent, across, exponents = float(tried[0]), solved, tried
        limit = float(solved.squares[0]) * room
    # With b given, S grows as a quadratic form around the best a and c, so each can move by its spread times sqrt(limit - S).
    reaches = across.spread * np.sqrt(np.maximum(0, limit - across.least))
    lows, highs = np.maximum(0, across.centre - reaches), np.maximum(0, across.centre + reaches)
    units = largest**-exponents
    best = int(across.squares.argmin())
    return _described(
        name, x, y, float(across.squares[best]),
        (float(across.a[best] * units[best]), exponent, float(across.c[best])),
        ((float((lows[0] * units).min()), float((highs[0] * units).max())), b_interval, (float(lows[1].min()), float(highs[1].max()))),
    )  # fmt: skip


def _lowest(solve: Callable[[Array], _Solved], tried: Array, squares: Array) -> float:
    """The exponent with the least S, between the neighbours of the best that was tried."""
    best = int(squares.argmin())
    for _ in range(4):
        tried = np.linspace(tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)], 41)
        best = int(solve(tried).squares.argmin())
    return float(tried[best])


def _ends(solve: Callable[[Array], _Solved], tried: Array, exponent: float, limit: float) -> tuple[float, float]:
    """The lowest and the highest exponent with S not above a limit, among those tried or, by bisection, between two of them."""
    inside = np.append(tried[solve(tried).squares <= limit], exponent)
    ends = []
    for end, beyond in ((inside.min(), tried[tried < inside.min()][-1:]), (inside.max(), tried[tried > inside.max()][:1])):
        within, without = float(end), float(beyond[0]) if len(beyond) else float(end)
        for _ in range(20):
            middle = (within + without) / 2
            if solve(np.array([middle])).squares[0] <= limit:
                within = middle
            else:
                without = middle
        ends.append(within)
    return ends[0], ends[1]


def _described(
    name: str,
    x: Array,
    y: Array,
    squares: float,
    values: tuple[float, float | None, float],
    intervals: tuple[Interval | None, Interval | None, Interval],
) -> Fit:
    """A fit with its figures of merit."""
    n, k = len(x), MODELS[name].parameters + 1
    rounding = n * np.finfo(float).eps ** 2  # S of a curve through all points
    aicc = n * math.log(max(squares, rounding) / n) + 2 * k + 2 * k * (k + 1) / (n - k - 1)
    fitted = _curve(name, x, *values)
    return Fit(name, *values, *intervals, aicc=aicc, r2=r_squared(y, fitted), worst=float(np.abs(1 - fitted / y).max()))
