"""What each Triton kernel takes of a GPU, found by compiling it for that GPU on any machine; no GPU is needed.

The backend itself does it, on PyTorch's device without memory and told to compile where it would launch. So the kernels, their arguments
and what Triton specialises them for (types, multiples of 16, ones, maps that are not there) are those of a run.
"""

import logging
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from typing import Any, NamedTuple

import torch

from physarum.backends.needs import lacking_triton
from physarum.backends.triton_backend import OPTIONS, TritonBackend
from physarum.errors import UsageError
from physarum.model.maps import Maps
from physarum.model.params import LARGEST_SIDE, Params
from physarum.model.state import State
from physarum.model.world import World

log = logging.getLogger("physarum")


class Limits(NamedTuple):
    """What a multiprocessor holds at once."""

    programs: int
    warps: int
    shared: int  # bytes


# By compute capability, as NVIDIA writes it; "Compute Capabilities" in the CUDA C++ Programming Guide. Triton begins at 8.0.
LIMITS = {
    "8.0": Limits(32, 64, 164 << 10),
    "8.6": Limits(16, 48, 100 << 10),
    "8.7": Limits(16, 48, 164 << 10),
    "8.9": Limits(24, 48, 100 << 10),
    "9.0": Limits(32, 64, 228 << 10),
    "10.0": Limits(32, 64, 228 << 10),
    "10.3": Limits(32, 64, 228 << 10),
    "11.0": Limits(24, 48, 228 << 10),
    "12.0": Limits(24, 48, 100 << 10),
    "12.1": Limits(24, 48, 100 << 10),
}
CAPABILITIES = ("8.0", "8.6", "9.0", "10.0")  # A100, RTX 30, H100 and H200, B200

# The same for all of these; cuda_occupancy.h of CUDA 13, which Triton's wheel has too.
WARP = 32  # threads
PARTITIONS = 4  # of a multiprocessor, each with registers for its own warps
REGISTERS_A_PARTITION = 16_384
REGISTERS_AT_ONCE = 256  # a warp's registers are a multiple of it
SHARED_AT_ONCE = 128  # a program's bytes of shared memory are a multiple of it
SHARED_RESERVED = 1024  # bytes that the driver adds to those of each program


class Variant(NamedTuple):
    """A world to compile the kernels for."""

    size: tuple[int, int]  # (width, height) in cells
    slots: int
    full: bool  # two populations, of which one has an empty slot, and every map


VARIANTS = {
    "plain": Variant((1024, 1024), 2**20, full=False),
    "every map": Variant((500, 333), 50_001, full=True),  # no side is a multiple of 16
    "largest": Variant((LARGEST_SIDE, LARGEST_SIDE), 2**30, full=True),  # its cells are counted in int64
}


class Compiled(NamedTuple):
    """A kernel as a GPU would run it.

    Attributes:
        kernel: The stages that it does, as in traces: sense+motor, for instance.
        variant: A key of VARIANTS.
        capability: A key of LIMITS.
        code: Triton's CompiledKernel.
    """

    kernel: str
    variant: str
    capability: str
    code: Any


@dataclass(frozen=True)
class Resources:
    """What a kernel takes.

    Attributes:
        kernel: The stages that it does, as in traces: sense+motor, for instance.
        variant: A key of VARIANTS.
        capability: A key of LIMITS.
        registers: 32-bit registers a thread.
        stack: Bytes a thread; above 0 it spills registers to memory.
        local: Bytes a thread of memory of its own besides the stack; 0 too, unless it spills.
        shared: Bytes of shared memory a program.
        fused: Instructions that multiply and add without rounding between; above 0 the bits differ from those of other backends.
        occupancy: Share of the warps for which a multiprocessor has room that can be there at once, 0 to 1.
    """

    kernel: str
    variant: str
    capability: str
    registers: int
    stack: int
    local: int
    shared: int
    fused: int
    occupancy: float


def resources(capabilities: Sequence[str] = CAPABILITIES) -> list[Resources]:
    """Compile every kernel for every variant and tell what each takes; about half a second a kernel, on two cores.

    Args:
        capabilities: Compute capabilities, such as "9.0".

    Raises:
        UsageError: A capability is not in LIMITS, or the Triton that is here, if any, cannot compile for it.
    """
    with ThreadPoolExecutor() as pool:  # one kernel is read while the next is compiled
        return list(pool.map(read, compile_kernels(capabilities)))


def compile_kernels(capabilities: Sequence[str] = CAPABILITIES) -> Iterator[Compiled]:
    """Compile every kernel for every variant, one after the other; see `resources`."""
    lacks = lacking_triton()
    if lacks:
        raise UsageError(f"compiling the kernels needs {lacks}")
    for capability in capabilities:
        if capability not in LIMITS:
            raise UsageError(f"the compute capability {capability!r} is not known: it must be one of {', '.join(LIMITS)}")
    for capability in dict.fromkeys(capabilities):
        log.info("compiling for the compute capability %s…", capability)
        for name, variant in VARIANTS.items():
            for kernel, code in _compile(variant, capability).items():
                yield Compiled(kernel, name, capability, code)


def occupancy(capability: str, registers: int, shared: int, warps: int) -> float:
    """The share of a multiprocessor's warps that can be there at once, 0 to 1, by the rules of cuda_occupancy.h.

    Args:
        capability: A key of LIMITS.
        registers: A thread.
        shared: Bytes a program, at launch.
        warps: A program.
    """
    limits = LIMITS[capability]
    by_registers = REGISTERS_A_PARTITION // _multiple(registers * WARP, REGISTERS_AT_ONCE) * PARTITIONS // warps
    by_shared = limits.shared // _multiple(shared + SHARED_RESERVED, SHARED_AT_ONCE)
    return min(limits.programs, limits.warps // warps, by_registers, by_shared) * warps / limits.warps


def _multiple(number: int, unit: int) -> int:
    """The least multiple of `unit` that is not less than `number`."""
    return -(-number // unit) * unit


class Compiler(TritonBackend):
    """The backend, holding a world of any size in no memory; `kernels` are those that it would have launched, by label."""

    def __init__(self, variant: Variant) -> None:
        super().__init__("meta")
        self.kernels: dict[str, Any] = {}
        populations, (width, height) = 1 + variant.full, variant.size
        agents = partial(torch.empty, 1, populations, variant.slots, device=self.device)
        trail = torch.empty(1, populations, height, width, device=self.device)
        count = torch.tensor([[variant.slots, variant.slots - 1][:populations]])
        state = State(agents(), agents(), agents(dtype=torch.int16), agents(dtype=torch.int32), trail, count)
        self.load([World((Params(),) * populations)], state)
        if variant.full:
            self._maps = Maps(torch.empty_like(trail), torch.empty_like(trail, dtype=torch.bool), torch.empty_like(trail))

    def _launch(self, label: str, labelled: bool, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:  # noqa: ARG002
        # The address of a tensor without memory is 0: a multiple of 16, as every address is at which PyTorch puts a tensor on a GPU.
        self.kernels[label] = kernel.warmup(*arguments, grid=(programs,), **constants, **OPTIONS)


class _Machine:
    """As much of a Triton driver as compiling asks for: the GPU that is not there."""

    def __init__(self, capability: str) -> None:
        from triton.backends.compiler import GPUTarget  # noqa: PLC0415

        self._target = GPUTarget("cuda", int(capability.replace(".", "")), WARP)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> Any:
        return self._target  # kernels are kept by device, and so apart from those of a real one, which is a number

    def get_current_stream(self, device: Any) -> int:  # noqa: ARG002
        return 0


@contextmanager
def compiling_for(capability: str) -> Iterator[None]:
    """Let Triton compile for a GPU whatever this machine has, and as before from then on."""
    from triton.runtime.driver import driver  # noqa: PLC0415

    before = dict(vars(driver))  # to ask for what is active would be to look for a GPU
    driver.set_active(_Machine(capability))
    try:
        yield
    finally:
        vars(driver).update(before)


def _compile(variant: Variant, capability: str) -> dict[str, Any]:
    """The kernels for one variant, by label."""
    backend = Compiler(variant)
    try:
        with compiling_for(capability), redirect_stdout(StringIO()):  # on which Triton prints a kernel that is refused
            backend.warm_up()
    except UsageError as error:
        raise UsageError(_sentence("compile", capability, error.__cause__)) from error
    return backend.kernels


def disassembled(code: Any, capability: str) -> str:
    """What a kernel takes and its instructions, as NVIDIA's cuobjdump writes them.

    Args:
        code: Triton's CompiledKernel.
        capability: That it was compiled for.

    Raises:
        UsageError: The tool that comes with Triton is missing, or does not know this capability.
    """
    from triton import knobs  # noqa: PLC0415

    try:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(code.asm["cubin"])
            file.flush()
            command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", "--dump-sass", file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        raise UsageError(_sentence("read", capability, getattr(error, "stderr", None) or error)) from error


def read(compiled: Compiled) -> Resources:
    """What a kernel takes, from its machine code; UsageError where that cannot be read."""
    dump = disassembled(compiled.code, compiled.capability)
    taken = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", dump)}
    shared = compiled.code.metadata.shared  # asked for at launch, so that the machine code does not have it
    return Resources(
        *compiled[:3],
        registers=taken["REG"],
        stack=taken["STACK"],
        local=taken["LOCAL"],
        shared=shared,
        fused=len(re.findall(r"\bFFMA", dump)),
        occupancy=occupancy(compiled.capability, taken["REG"], shared, compiled.code.metadata.num_warps),
    )


def _sentence(verb: str, capability: str, cause: Any) -> str:
    """What this Triton cannot do, on one line."""
    import triton  # noqa: PLC0415

    why = " ".join(str(cause).split())[:200]
    return f"Triton {triton.__version__} cannot {verb} a kernel for the compute capability {capability}: {why}"
