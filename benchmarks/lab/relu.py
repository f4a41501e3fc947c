"""ReLU from 1 KB to 1 GB: below some size a launch is what takes the time, then the L2 cache, then memory."""

import functools
import math

import torch
import triton
import triton.language as tl
from harness import Results
from torch import Tensor

from lab.ladder import OPTIONS, Implementation, climb, lacking_compile, lacking_triton, normal, run_compiled, worst_error
from lab.settings import Settings

BYTES = {"toy": (1 << 10, 1 << 12), "small": tuple(4**i for i in range(5, 14)), "full": tuple(4**i for i in range(5, 16))}  # of the input
EXTREMES = (0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, math.inf, -math.inf, math.nan)
BOUND = 0.0  # nothing is rounded

BLOCK = 1024  # elements a program


def by_torch(x: Tensor) -> Tensor:
    """One kernel already: nothing is left to fuse, so what differs is the launch."""
    return torch.relu(x)


@triton.jit
def relu_kernel(x, y, n, BLOCK: tl.constexpr):
    """BLOCK elements; NaN stays NaN, as in torch."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = index < n
    value = tl.load(x + index, mask=there)
    tl.store(y + index, tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=there)


def by_triton(x: Tensor) -> Tensor:
    """In one kernel."""
    y = torch.empty_like(x)
    relu_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK, **OPTIONS)
    return y


IMPLEMENTATIONS = {
    "torch's relu": Implementation(by_torch),
    "compiled": Implementation(functools.partial(run_compiled, by_torch), lacking_compile),
    "Triton": Implementation(by_triton, lacking_triton),
}


def error(got: Tensor, x: Tensor) -> float:
    """0 where all elements are right, else more."""
    exact = torch.relu(x.to(torch.float64))
    return worst_error(got, exact, torch.ones_like(exact))


def with_extremes(size: int, device: torch.device) -> Tensor:
    """Normal numbers of so many bytes, of which the first are replaced by extreme ones."""
    data = normal((size // 4,), device)
    data[: len(EXTREMES)] = torch.tensor(EXTREMES, device=device)
    return data


def measure(settings: Settings, kept: Results) -> None:
    """Measure ReLU; see `lab.ladder.climb`."""
    for size in BYTES[settings.scale]:
        case = {"operator": "relu", "input_bytes": size}
        make = functools.partial(with_extremes, size, settings.device)
        climb(settings, kept, case, IMPLEMENTATIONS, make, size, error, BOUND)
