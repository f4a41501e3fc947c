"""The product of two square matrices by the size and the precision, and the kernel that PyTorch chooses for each."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from harness import Results, Row, median_us, tell, timed
from torch import Tensor

from lab.ladder import lacking_memory, normal
from lab.settings import Settings
from physarum.errors import RunError

SIZES = {"toy": (64,), "small": (128, 256, 512, 1024), "full": tuple(2**i for i in range(7, 15))}
OLDEST_WITH_TF32 = (8, 0)  # of the compute capabilities; bfloat16 begins there, too
CHECKED_ROWS = 64  # of the product; a tile of any kernel has no more


@dataclass(frozen=True)
class Precision:
    """How a product is computed.

    Attributes:
        dtype: Of the matrices and their product.
        eps: The distance from 1 to the next number, of what is multiplied.
        tf32: Whether float32 may be rounded to TF32, as tensor cores want it.
    """

    dtype: torch.dtype
    eps: float
    tf32: bool = False


PRECISIONS = {
    "float32": Precision(torch.float32, 2**-23),
    "tf32": Precision(torch.float32, 2**-10, tf32=True),
    "float16": Precision(torch.float16, 2**-10),
    "bfloat16": Precision(torch.bfloat16, 2**-7),
}
# In units of (eps / sqrt(n) + 2^-23) |row| |column|. These numbers are normal and independent, so that errors add like their squares: what
# is rounded before the product, or after it, changes it by about eps / sqrt(n) |row| |column|; its sums, in float32, by less than 2^-23.
BOUND = 8.0


def product(a: Tensor, b: Tensor, tf32: bool) -> Tensor:
    """a @ b, with float32 as it is or rounded to TF32, which is a switch of the process."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        return a @ b
    finally:
        torch.set_float32_matmul_precision("highest")


def error(got: Tensor, a: Tensor, b: Tensor, eps: float) -> float:
    """The largest error of the first rows of a product, in the units of BOUND; infinite where it is NaN."""
    first, b = a[:CHECKED_ROWS].to(torch.float64), b.to(torch.float64)
    unit = (eps / math.sqrt(len(b)) + torch.finfo(torch.float32).eps) * first.norm(dim=1, keepdim=True) * b.norm(dim=0)
    return float(((got[:CHECKED_ROWS].to(torch.float64) - first @ b).abs() / unit).nan_to_num(nan=torch.inf).max())


def lacking(settings: Settings, precision: Precision, size: int) -> str | None:
    """Why a product cannot be measured; None where it can."""
    on_gpu = settings.device.type == "cuda"
    if precision.tf32 and not on_gpu:
        return "it needs an NVIDIA GPU"
    if on_gpu and precision.eps != PRECISIONS["float32"].eps and torch.cuda.get_device_capability(settings.device) < OLDEST_WITH_TF32:
        return f"it needs a GPU of the compute capability {'.'.join(map(str, OLDEST_WITH_TF32))}"
    # Two matrices and the product of each precision (4 + 2 + 2 bytes, since float32 and TF32 have the same), one in float64 for the gate.
    return lacking_memory(settings, (3 * (4 + 2 + 2) + 8) * size**2)


def measure(settings: Settings, kept: Results) -> None:
    """Measure products.

    Args:
        settings: Where and how large.
        kept: Where the rows go.

    Raises:
        RunError: A product is wrong.
    """
    rows: list[Row] = []
    for size in SIZES[settings.scale]:
        tell(f"matmul, {size}")
        works: dict[str, Callable[[], Tensor]] = {}
        errors = {}
        for name, precision in PRECISIONS.items():
            why = lacking(settings, precision, size)
            if why:
                kept.not_run(case_of(name, size), why)
                continue
            a, b = (numbers.to(precision.dtype) for numbers in normal((2, size, size), settings.device))
            works[name] = functools.partial(product, a, b, precision.tf32)
            errors[name] = error(works[name](), a, b, precision.eps)
            if not errors[name] <= BOUND:
                raise RunError(f"no figures: the product of {size} in {name} is wrong by {errors[name]:.3g} units of rounding")
        for name, figures in timed(works, settings.device, settings.trials).items():
            rate = 2 * size**3 / (median_us(figures) * 1e-6)
            rows.append(kept.add(case_of(name, size), works[name], **figures, flop_per_s=rate, error=errors[name], error_bound=BOUND))
    for row in rows:
        of_its_kind = [one["flop_per_s"] for one in rows if one["case"]["precision"] == row["case"]["precision"]]
        row["share_of_best"] = row["flop_per_s"] / max(of_its_kind)


def case_of(precision: str, size: int) -> Row:
    """The case of a product; its matrices lie in L2 as far as they fit."""
    return {"operator": "matmul", "size": size, "precision": precision}
