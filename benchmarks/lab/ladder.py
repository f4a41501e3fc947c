"""What the ladders of gelu, softmax and relu share: implementations of one function of one tensor, their gate, their times."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from harness import Results, median_us, tell, timed
from torch import Tensor

from lab.settings import Settings
from physarum.backends.compile_backend import CompileBackend
from physarum.backends.memory import available_bytes
from physarum.backends.triton_backend import TritonBackend
from physarum.errors import RunError

GRAPHS = 64  # of a function, one for each shape; torch.compile's own limit is 8
CHECKED_AT_ONCE = 1 << 24  # elements, as float64 128 MiB an array
COLD_FROM = 1 << 20  # bytes; fewer are moved within a microsecond or so, wherever they lie
# Arrays of the size of the input that a case may hold at once: the input, what the eager operators hold, and what the allocator keeps.
ARRAYS = 8
OPTIONS: dict[str, Any] = {"enable_fp_fusion": True}  # of Triton's kernels: FMA, as in CUDA C++; Triton 3.10 will have another default

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Implementation:
    """One way to compute a function.

    Attributes:
        function: Returns a new tensor.
        missing: Why it cannot be measured, in words; None where it can.
    """

    function: Function
    missing: Callable[[Settings], str | None] = lambda _: None


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function through torch.compile with its own options, one graph for each shape."""
    torch._dynamo.config.recompile_limit = GRAPHS
    return torch.compile(function, dynamic=False, fullgraph=True)


def run_compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function through torch.compile, which is imported only then."""
    return compiled(function)(*arguments)


def lacking_compile(settings: Settings) -> str | None:
    """Why torch.compile cannot be measured; None where it can."""
    if settings.scale == "toy":
        return "at toy scale nothing is compiled"
    lacks = CompileBackend.missing(settings.device)
    return lacks and f"it needs {lacks}"


def lacking_triton(settings: Settings) -> str | None:
    """Why Triton cannot be measured; None where it can."""
    lacks = TritonBackend.missing(settings.device)
    return lacks and f"it needs {lacks}"


def lacking_memory(settings: Settings, needed: int) -> str | None:
    """Why so many bytes are not to be had; None where they are, or where that cannot be told."""
    free = available_bytes(settings.device)
    return f"it needs {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free" if free is not None and free < needed else None


def caches(device: torch.device, input_bytes: int) -> tuple[bool, ...]:
    """Whether L2 is emptied before each call: a GPU is timed both ways, unless the input is so small that a launch takes longer."""
    return (False, True) if device.type == "cuda" and input_bytes >= COLD_FROM else (False,)


def normal(shape: Sequence[int], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers, the same in each run on a kind of device."""
    generator = torch.Generator(device).manual_seed(1)
    return torch.randn(*shape, device=device, dtype=dtype, generator=generator)


def worst_error(got: Tensor, exact: Tensor, unit: Tensor) -> float:
    """The largest error of any element, in units that may differ by element.

    Args:
        got: What is judged.
        exact: The same in float64.
        unit: In float64; where it is not finite, only the exact value will do.

    Returns:
        0 where all are exact, NaN for NaN included; infinity where one is NaN or infinite and should not be, or the other way round.
    """
    got = got.to(torch.float64)
    errors = (got - exact).abs() / unit
    errors = errors.where(errors.isfinite(), torch.inf)
    return float(errors.masked_fill((got == exact) | (got.isnan() & exact.isnan()), 0.0).max())


def check(name: str, got: Tensor, data: Tensor, error: Callable[[Tensor, Tensor], float], bound: float) -> float:
    """The largest error of a result, some rows at a time.

    Args:
        name: What computed it.
        got: The result.
        data: What it was computed from, of the same shape, in one or two dimensions.
        error: Of some rows of the result and of the data, in units.
        bound: Units.

    Raises:
        RunError: The error is larger than the bound: no figures.
    """
    rows = max(1, CHECKED_AT_ONCE // max(1, data[0].numel()))
    worst = max(error(some, of) for some, of in zip(got.split(rows), data.split(rows), strict=True))
    if not worst <= bound:
        raise RunError(f"no figures: {name} is wrong by {worst:.3g} units of rounding, where {bound:g} are allowed")
    return worst


def climb(
    settings: Settings,
    kept: Results,
    case: Mapping[str, Any],
    implementations: Mapping[str, Implementation],
    make: Callable[[], Tensor],
    bytes_of_input: int,
    error: Callable[[Tensor, Tensor], float],
    bound: float,
) -> None:
    """Gate and time all implementations on one tensor, which each must read once and write once.

    Args:
        settings: Where, how often, and beside what roof.
        kept: Where the rows go.
        case: What tells these rows from others, but for the implementation and the state of the L2 cache.
        implementations: By name.
        make: Makes the tensor.
        bytes_of_input: Its size.
        error: See `check`.
        bound: See `check`.

    Raises:
        RunError: An implementation is wrong.
    """
    said = ", ".join(map(str, case.values()))
    tell(said)
    too_large = lacking_memory(settings, ARRAYS * bytes_of_input)
    lacks = {name: too_large or one.missing(settings) for name, one in implementations.items()}
    for name, why in lacks.items():
        if why:
            kept.not_run({**case, "implementation": name}, why)
    functions = {name: one.function for name, one in implementations.items() if not lacks[name]}
    if not functions:
        return
    data = make()
    errors = {name: check(f"{said}, {name}", function(data), data, error, bound) for name, function in functions.items()}
    works = {name: functools.partial(function, data) for name, function in functions.items()}
    moved = 2 * bytes_of_input
    for cold in caches(settings.device, bytes_of_input):
        for name, figures in timed(works, settings.device, settings.trials, cold=cold).items():
            rate = moved / (median_us(figures) * 1e-6)
            kept.add(
                {**case, "implementation": name, "l2": figures["l2"]},
                works[name],
                **figures,
                bytes=moved,
                bytes_per_s=rate,
                roof_share=rate / settings.bandwidth,
                error=errors[name],
                error_bound=bound,
            )
