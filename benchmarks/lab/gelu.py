"""GELU in its tanh form, x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), from nine launches to one.

Whether each product is a kernel of its own, each of which moves all the numbers through memory, or all of them are one.
"""

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl
from harness import Results
from torch import Tensor

from lab.ladder import OPTIONS, Implementation, climb, lacking_compile, lacking_triton, normal, run_compiled, worst_error
from lab.settings import Settings

# Both sides of a square of float32; on 16384 x 16384 the launches and times of Stanford's CS336 (2025), lecture 6, were published.
SIDES = {"toy": (64,), "small": (2048,), "full": (1024, 16384)}

ROOT = math.sqrt(2 / math.pi)
CUBIC = 0.044715
# Beyond float32's cube, where tanh is 1 long since, in the tails, and what has no value: -inf * (1 - 1) is NaN.
EXTREMES = (0.0, -0.0, 1e-30, -1e-30, 3.0, -3.0, -5.5, 9.0, -9.0, 44.0, -44.0, 1e4, -1e4, 3e38, -3e38, math.inf, -math.inf, math.nan)
# In units of 2^-23 * |x|: 1 + tanh cancels for negative x, so an error of it is one of x, not of the result. Its argument is rounded
# five times, which tanh weakens to less than half; tanh, the sum and the products are rounded, too, each by one unit at most.
BOUND = 4.0

BLOCK = 1024  # elements a program, eight a thread: two loads of 16 bytes
ROOT_TL, CUBIC_TL = tl.constexpr(ROOT), tl.constexpr(CUBIC)


def by_operators(x: Tensor) -> Tensor:
    """As it is written, each operator a kernel: six products, two sums, tanh."""
    return 0.5 * x * (1 + torch.tanh(ROOT * (x + CUBIC * x * x * x)))


@triton.jit
def gelu_kernel(x, y, n, BLOCK: tl.constexpr):
    """BLOCK elements.

    (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)), in which an exp that overflows gives the right limit; in (exp(2 u) - 1) / (exp(2 u) + 1) it
    gives NaN.
    """
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = index < n
    value = tl.load(x + index, mask=there)
    u = ROOT_TL * (value + CUBIC_TL * value * value * value)
    tl.store(y + index, value / (1.0 + tl.exp(-2.0 * u)), mask=there)


def by_triton(x: Tensor) -> Tensor:
    """In one kernel."""
    y = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK, **OPTIONS)
    return y


# All literals are floats: one double among them, and the arithmetic is float64's, which takes longer than the memory does.
CUDA = f"""
__device__ float gelu_of(float x) {{
    float u = {ROOT:.9g}f * (x + {CUBIC}f * x * x * x);
    return x / (1.0f + expf(-2.0f * u));
}}

// Four elements a thread, in a load and a store of 16 bytes; the last thread does what is left over.
extern "C" __global__ void gelu_cuda(const float* x, float* y, int n) {{
    int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i + 3 < n) {{
        float4 v = *reinterpret_cast<const float4*>(x + i);
        *reinterpret_cast<float4*>(y + i) = make_float4(gelu_of(v.x), gelu_of(v.y), gelu_of(v.z), gelu_of(v.w));
    }} else {{
        for (; i < n; ++i) y[i] = gelu_of(x[i]);
    }}
}}
"""
THREADS = 256  # of a block


@functools.cache
def cuda_kernel() -> Any:
    """The kernel, compiled by NVRTC; or, in words, why there is none."""
    if not hasattr(torch.cuda, "_compile_kernel"):
        return f"a PyTorch that compiles CUDA C++ at run time: this is {torch.__version__}"
    try:
        return torch.cuda._compile_kernel(CUDA, "gelu_cuda")
    except (OSError, RuntimeError) as error:
        return f"NVRTC and CUDA's headers: {' '.join(str(error).split())[:200]}"


def by_cuda(x: Tensor) -> Tensor:
    """In one kernel in CUDA C++, which counts elements in int32."""
    y = torch.empty_like(x)
    blocks = triton.cdiv(x.numel(), 4 * THREADS)
    cuda_kernel()(grid=(blocks, 1, 1), block=(THREADS, 1, 1), args=[x, y, x.numel()])
    return y


def lacking_cuda(settings: Settings) -> str | None:
    """Why CUDA C++ cannot be measured; None where it can."""
    if settings.device.type != "cuda":
        return "it needs an NVIDIA GPU"
    made = cuda_kernel()
    return f"it needs {made}" if isinstance(made, str) else None


IMPLEMENTATIONS = {
    "operator by operator": Implementation(by_operators),
    "torch's gelu": Implementation(functools.partial(torch.nn.functional.gelu, approximate="tanh")),
    "compiled": Implementation(functools.partial(run_compiled, by_operators), lacking_compile),
    "Triton": Implementation(by_triton, lacking_triton),
    "CUDA C++": Implementation(by_cuda, lacking_cuda),
}


def error(got: Tensor, x: Tensor) -> float:
    """The largest error, in units of 2^-23 * |x|; as GPUs do, results below the smallest normal number may be 0."""
    precise, limits = x.to(torch.float64), torch.finfo(torch.float32)
    return worst_error(got, by_operators(precise), limits.eps * precise.abs() + limits.tiny)


def with_extremes(side: int, device: torch.device) -> Tensor:
    """Normal numbers, of which the first are replaced by extreme ones."""
    data = normal((side, side), device)
    data.view(-1)[: len(EXTREMES)] = torch.tensor(EXTREMES, device=device)
    return data


def measure(settings: Settings, kept: Results) -> None:
    """Measure GELU; see `lab.ladder.climb`."""
    for side in SIDES[settings.scale]:
        case = {"operator": "gelu", "size": f"{side}x{side}", "type": "float32"}
        make = functools.partial(with_extremes, side, settings.device)
        climb(settings, kept, case, IMPLEMENTATIONS, make, 4 * side * side, error, BOUND)
