"""Softmax of the rows of a matrix, of any width from 1 to 65,536 and more, from five launches to one."""

import functools
import math
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from harness import Results
from torch import Tensor

from lab.ladder import OPTIONS, Implementation, check, climb, lacking_compile, lacking_triton, normal, run_compiled, worst_error
from lab.settings import Settings

# (rows, columns). 16384 x 16384 was published in Stanford's CS336 (2025), lecture 6, in float32; the others have as many elements as fit
# in 256 MiB of float32.
SHAPES = {
    "toy": ((64, 129),),
    "small": ((1 << 15, 128), (4096, 1024), (1024, 4097)),
    "full": ((1 << 19, 128), (1 << 16, 1000), (1 << 16, 1024), (1 << 14, 4097), (1 << 14, 1 << 14), (1 << 10, 1 << 16)),
}
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WIDTHS = (1, 2, 3, 127, 128, 129, 1000, 1024, 4097, 16384, 65536)  # that are checked before any figure
# In units of eps * (1 + |x - max|) of the result, eps being the type's: a rounded difference moves exp by as much, relatively. In float32
# exp, quotient and the sum of up to 65,536 numbers are wrong by two, two and four of them; in bfloat16 four operations round by half a one.
BOUNDS = {torch.float32: 8.0, torch.bfloat16: 2.0}

ELEMENTS = 1024  # a program at least, in several rows where they are short
ELEMENTS_A_WARP = 512
LONGEST_BLOCK = 4096  # elements of a row at once, where it is read in blocks
MOST_WARPS = 32


def by_operators(x: Tensor) -> Tensor:
    """As it is written, each operator a kernel: max, difference, exp, sum, quotient."""
    powers = (x - x.amax(1, keepdim=True)).exp()
    return powers / powers.sum(1, keepdim=True)


@triton.jit
def whole_rows_kernel(x, y, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """ROWS rows, each at once: read once, written once."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    there = (row < rows)[:, None] & (column < columns)[None, :]
    index = row[:, None] * columns + column[None, :]
    value = tl.load(x + index, mask=there, other=-float("inf")).to(tl.float32)
    power = tl.exp(value - tl.max(value, axis=1)[:, None])
    tl.store(y + index, power / tl.sum(power, axis=1)[:, None], mask=there)


@triton.jit
def finite(maximum):
    """What to subtract where the largest number so far is `maximum`: without one above -inf, 0, for -inf - -inf is NaN."""
    return tl.where(maximum == -float("inf"), 0.0, maximum)


@triton.jit
def blocks_kernel(x, y, columns, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """A row in blocks: read twice, written once.

    Each lane keeps the largest number that it has seen and the sum of the powers beside it, which shrinks when a larger one comes.
    """
    row = tl.program_id(0).to(tl.int64) * columns
    lane = tl.arange(0, BLOCK)
    maximum = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for block in range(BLOCKS):
        column = block * BLOCK + lane
        value = tl.load(x + row + column, mask=column < columns, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(maximum, value)
        total = total * tl.exp(maximum - finite(larger)) + tl.exp(value - finite(larger))
        maximum = larger
    largest = finite(tl.max(maximum, axis=0))
    total_of_row = tl.sum(total * tl.exp(maximum - largest), axis=0)
    for block in range(BLOCKS):
        column = block * BLOCK + lane
        value = tl.load(x + row + column, mask=column < columns, other=-float("inf")).to(tl.float32)
        tl.store(y + row + column, tl.exp(value - largest) / total_of_row, mask=column < columns)


def warps(elements: int) -> int:
    """Of a program that holds so many at once, a power of two."""
    return max(1, min(MOST_WARPS, elements // ELEMENTS_A_WARP))


def by_whole_rows(x: Tensor) -> Tensor:
    """In one kernel; beyond 32,768 columns a program has more than its registers hold."""
    rows, columns = x.shape
    y = torch.empty_like(x)
    block = triton.next_power_of_2(columns)
    rows_at_once = max(1, ELEMENTS // block)
    grid = (triton.cdiv(rows, rows_at_once),)
    whole_rows_kernel[grid](x, y, rows, columns, ROWS=rows_at_once, BLOCK=block, num_warps=warps(rows_at_once * block), **OPTIONS)
    return y


def by_blocks(x: Tensor) -> Tensor:
    """In one kernel that reads twice."""
    rows, columns = x.shape
    y = torch.empty_like(x)
    block = min(LONGEST_BLOCK, triton.next_power_of_2(columns))
    blocks_kernel[(rows,)](x, y, columns, BLOCKS=triton.cdiv(columns, block), BLOCK=block, num_warps=warps(block), **OPTIONS)
    return y


IMPLEMENTATIONS = {
    "operator by operator": Implementation(by_operators),
    "torch's softmax": Implementation(functools.partial(torch.softmax, dim=1)),
    "compiled": Implementation(functools.partial(run_compiled, by_operators), lacking_compile),
    "Triton, whole rows": Implementation(by_whole_rows, lacking_triton),
    "Triton, in blocks": Implementation(by_blocks, lacking_triton),
}


def error(got: Tensor, x: Tensor) -> float:
    """The largest error, in the units of BOUNDS; as GPUs do, results below the smallest normal number may be 0."""
    precise, limits = x.to(torch.float64), torch.finfo(x.dtype)
    below = precise - precise.amax(1, keepdim=True)
    exact = by_operators(precise)
    return worst_error(got, exact, limits.eps * (1 + below.abs()) * exact + limits.tiny)


def with_extremes(rows: int, columns: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Normal numbers, of which the first rows are replaced by such as overflow, or have no softmax, in parts or as a whole."""
    data = normal((rows, columns), device, dtype)
    column = torch.arange(columns, device=device)
    fills: tuple[tuple[Tensor, float], ...] = (
        (column >= 0, 1e4),
        (column >= 0, -1e4),
        (column % 3 > 0, -1e4),
        (column % 3 > 0, 1e38),
        (column >= columns // 2, -math.inf),
        (column < columns // 2, -math.inf),  # so that whole blocks at the start are -inf
        (column >= 0, -math.inf),
        (column == columns - 1, math.inf),
        (column == columns // 2, math.nan),
    )
    for row, (where, value) in enumerate(fills):
        data[row].masked_fill_(where, value)
    return data


def check_widths(device: torch.device, functions: dict[str, Callable[[Tensor], Tensor]]) -> None:
    """See that functions are right on every class of width, in both types.

    Raises:
        RunError: One is not.
    """
    for dtype in TYPES.values():
        for width in WIDTHS:
            data = with_extremes(11, width, device, dtype)
            for name, function in functions.items():
                check(f"softmax of {width} columns, {dtype}, {name}", function(data), data, error, BOUNDS[dtype])


def measure(settings: Settings, kept: Results) -> None:
    """Measure softmax; see `lab.ladder.climb`. What is compiled for one shape alone is checked at the shapes that are timed."""
    at_any_width = {name: one for name, one in IMPLEMENTATIONS.items() if name != "compiled"}
    check_widths(settings.device, {name: one.function for name, one in at_any_width.items() if not one.missing(settings)})
    for type_name, dtype in TYPES.items():
        for shape in SHAPES[settings.scale]:
            case = {"operator": "softmax", "size": "x".join(map(str, shape)), "type": type_name}
            make = functools.partial(with_extremes, *shape, settings.device, dtype)
            climb(settings, kept, case, IMPLEMENTATIONS, make, math.prod(shape) * dtype.itemsize, error, BOUNDS[dtype])
