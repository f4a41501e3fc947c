"""What fast instructions would buy in the simulator's own step: products and sums contracted to FMA, approximate sines, reciprocal roots.

The kernels are those of the Triton backend, compiled in other ways. Their bits then differ; how many do is measured too, as the price. The
step has no square root and no division of floats. They would come with headings that are unit vectors, so a motor with such headings, in
which agents turn by a coin, is measured beside one with binary angles. What the machine code holds is told without a GPU.
"""

import inspect
import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from importlib.machinery import SourceFileLoader
from itertools import product
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl
import worlds
from harness import Results, Row, median_us, tell, timed
from torch import Tensor
from triton.language.extra import libdevice

from lab.settings import Settings
from physarum.backends.buffered_backend import SORT_EVERY
from physarum.backends.kernels import functions, launched
from physarum.backends.memory import check_memory
from physarum.backends.needs import lacking_triton
from physarum.backends.torch_backend import TorchBackend
from physarum.backends.triton_backend import AGENTS_A_PROGRAM, OPTIONS, TritonBackend
from physarum.errors import RunError, UsageError
from physarum.model import angles
from physarum.model.params import Params
from physarum.model.state import State
from physarum.model.world import World, as_worlds
from physarum.profiling import resources

SIZES = {"toy": (64, 48), "small": (1024, 1024), "full": (8192, 8192)}  # cells, with an agent each; Triton compiles the same for all
COMPARED_AFTER = (1, 64, 300)  # steps
STEPS_A_LAUNCH = (1, 64)  # of the motors: with one, memory is what takes the time; with 64, instructions
TURNS = 300  # after which the length of a unit vector is looked at
HEADINGS_A_PROGRAM = 1024
BYTES_SENSED_A_CELL = 4  # the trail, read once
OFFLINE = "9.0"  # the compute capability that is compiled for where there is no GPU: H100 and H200

RADIANS = tl.constexpr(2 * math.pi / angles.TURN)


@triton.jit
def libm(heading):
    """(cos, sin) of a binary angle by libdevice, CUDA's libm: within 2 units in the last place, by branches and an exact reduction."""
    angle = functions.wrap_heading(heading).to(tl.float32) * RADIANS
    return tl.cos(angle), tl.sin(angle)


@triton.jit
def approximate(heading):
    """(cos, sin) of a binary angle by an instruction each, cos.approx.ftz.f32 and sin.approx.ftz.f32, which want -pi to pi."""
    angle = functions.wrap_heading(heading).to(tl.float32) * RADIANS
    return libdevice.fast_cosf(angle), libdevice.fast_sinf(angle)


@triton.jit
def directions_kernel(cos, sin, DIRECTION: tl.constexpr, BLOCK: tl.constexpr):
    """The directions of all headings, from -32,768."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    heading_cos, heading_sin = DIRECTION(index - 32768)
    tl.store(cos + index, heading_cos)
    tl.store(sin + index, heading_sin)


@triton.jit
def nothing(square):  # noqa: ARG001
    """The factor that leaves a vector as it is."""
    return 1.0


@triton.jit
def rsqrt(square):
    """The factor that makes a vector of this squared length a unit vector, by the instruction rsqrt.approx.ftz.f32."""
    return tl.rsqrt(square)


@triton.jit
def root_and_division(square):
    """The same by a square root and a division that round as IEEE 754 asks."""
    return tl.div_rn(1.0, tl.sqrt_rn(square))


@triton.jit
def newton(square):
    """The same by Newton's step for 1 / sqrt from 1, which is enough for what is almost a unit vector; nothing but exact rounding."""
    return 1.5 - 0.5 * square


@triton.jit
def coin(agent, step):
    """-1 or 1."""
    return ((functions.draw(agent, functions.hash32(step.to(tl.uint32))) & 1) << 1).to(tl.int32) - 1


@triton.jit(do_not_specialize=["step"])
def angle_motor_kernel(x, y, heading, rotation, step, width, height, agents, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Turn by a coin and move one cell, STEPS times; headings are binary angles."""
    agent = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = agent < agents
    now_x = tl.load(x + agent, mask=there, other=0.0)
    now_y = tl.load(y + agent, mask=there, other=0.0)
    now_heading = tl.load(heading + agent, mask=there, other=0).to(tl.int32)
    for i in range(STEPS):
        now_heading = functions.wrap_heading(now_heading + coin(agent, step + i) * rotation)
        cos, sin = functions.direction(now_heading)
        now_x = functions.wrap(now_x + cos, width)
        now_y = functions.wrap(now_y + sin, height)
    tl.store(x + agent, now_x, mask=there)
    tl.store(y + agent, now_y, mask=there)
    tl.store(heading + agent, now_heading.to(tl.int16), mask=there)


@triton.jit(do_not_specialize=["step"])
def vector_motor_kernel(
    x, y, cos, sin, rotation_cos, rotation_sin, step, width, height, agents,
    FACTOR: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same where headings are unit vectors: rotated by constants, then multiplied by FACTOR of their squared length."""
    agent = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = agent < agents
    now_x = tl.load(x + agent, mask=there, other=0.0)
    now_y = tl.load(y + agent, mask=there, other=0.0)
    now_cos = tl.load(cos + agent, mask=there, other=1.0)
    now_sin = tl.load(sin + agent, mask=there, other=0.0)
    for i in range(STEPS):
        turn_sin = coin(agent, step + i).to(tl.float32) * rotation_sin
        turned_cos = now_cos * rotation_cos - now_sin * turn_sin
        turned_sin = now_sin * rotation_cos + now_cos * turn_sin
        factor = FACTOR(turned_cos * turned_cos + turned_sin * turned_sin)
        now_cos = turned_cos * factor
        now_sin = turned_sin * factor
        now_x = functions.wrap(now_x + now_cos, width)
        now_y = functions.wrap(now_y + now_sin, height)
    tl.store(x + agent, now_x, mask=there)
    tl.store(y + agent, now_y, mask=there)
    tl.store(cos + agent, now_cos, mask=there)
    tl.store(sin + agent, now_sin, mask=there)


class Variant:
    """The kernels of the step, compiled in another way.

    Args:
        direction: The device function that takes the place of `functions.direction`.
        fused: Whether products and sums may contract to FMA.
    """

    def __init__(self, direction: Any, fused: bool = False) -> None:
        self.direction = direction
        self.kernels = kernels_with(direction)
        self.options = {**OPTIONS, "enable_fp_fusion": fused}

    def of(self, kernel: Any) -> Any:
        """The variant's own kernel of the same name."""
        return getattr(self.kernels, kernel.fn.__name__)

    def launch(self, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        """Launch the variant's kernel in place of one of the backend's."""
        self.of(kernel)[(programs,)](*arguments, **constants, **self.options)


def kernels_with(direction: Any) -> ModuleType:
    """A copy of `physarum.backends.kernels.launched` that calls another function for the direction of a heading.

    Triton looks up what a kernel calls among the globals of its module, when it first compiles it. So both modules of kernels are loaded
    once more, under other names, and the simulator's own stay as they are.
    """
    copied_functions, copied = loaded_again(functions), loaded_again(launched)
    vars(copied_functions)["direction"] = direction
    vars(copied).update({name: vars(copied_functions)[name] for name in ("sense", "motor")})  # its callers
    return copied


def loaded_again(module: ModuleType) -> ModuleType:
    """A module from the same source that shares nothing with the first."""
    loader = SourceFileLoader(f"{module.__name__}_again", inspect.getfile(module))
    made = ModuleType(loader.name)
    loader.exec_module(made)
    return made


PLAIN = "polynomial"  # as the backend compiles it, so that all bits must agree
VARIANTS = {
    PLAIN: Variant(functions.direction),
    "polynomial with FMA": Variant(functions.direction, fused=True),
    "libm": Variant(libm),
    "approximate": Variant(approximate),
    "approximate with FMA": Variant(approximate, fused=True),
}


class VariantBackend(TritonBackend):
    """The Triton backend with the kernels of a variant. It keeps the last launches: what `Variant.launch` takes, by label."""

    def __init__(self, device: torch.device, variant: Variant) -> None:
        super().__init__(device)
        self.variant = variant
        self.launches: dict[str, tuple[Any, ...]] = {}

    def _launch(self, label: str, labelled: bool, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:  # noqa: ARG002
        self.launches[label] = (kernel, programs, arguments, constants)
        self.variant.launch(kernel, programs, *arguments, **constants)


class Compiler(resources.Compiler):
    """Compiles one kernel of a variant, given by the stages that it does, such as sense+motor; the GPU need not be there."""

    def __init__(self, variant: Variant, kernel: str) -> None:
        super().__init__(resources.VARIANTS["plain"])
        self.variant = variant
        self.kernel = kernel

    def compiled(self) -> Any:
        """The kernel."""
        self.warm_up()
        return self.kernels[self.kernel]

    def _launch(self, label: str, labelled: bool, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:  # noqa: ARG002
        if label == self.kernel:
            self.kernels[label] = self.variant.of(kernel).warmup(*arguments, grid=(programs,), **constants, **self.variant.options)


class Motor:
    """Agents that turn by a coin and move.

    Args:
        factor: The device function that keeps unit vectors at length 1; None for binary angles.
        size: (width, height) in cells, with an agent each.
        device: Where they are.
    """

    def __init__(self, factor: Any, size: tuple[int, int], device: torch.device | str) -> None:
        width, height = size
        agents = width * height
        index = torch.arange(agents, device=device)
        x, y = (index % width).to(torch.float32), (index // width).to(torch.float32)
        heading = index.to(torch.int16)
        turn = angles.binary_angle(Params().rotation_angle)
        self.programs = -(-agents // AGENTS_A_PROGRAM)
        self.constants = {"BLOCK": AGENTS_A_PROGRAM, **OPTIONS}
        self.heading: tuple[Tensor, ...]
        self.rotation: tuple[float, ...]
        if factor is None:
            self.kernel, self.heading, self.rotation = angle_motor_kernel, (heading,), (turn,)
        else:
            radians, turned = heading.to(torch.float64) * RADIANS.value, turn * RADIANS.value
            self.heading = (radians.cos().to(torch.float32), radians.sin().to(torch.float32))
            self.kernel, self.rotation = vector_motor_kernel, (math.cos(turned), math.sin(turned))
            self.constants["FACTOR"] = factor
        self.place = (x, y)
        self.sizes = (width, height, agents)
        self.bytes = 2 * agents * sum(t.element_size() for t in (*self.place, *self.heading))

    def arguments(self, step: int) -> tuple[Any, ...]:
        """What the kernel takes."""
        return (*self.place, *self.heading, *self.rotation, step, *self.sizes)

    def advance(self, step: int = 0, steps: int = 1) -> None:
        """Do some steps, from the one with this number, in one launch."""
        self.kernel[(self.programs,)](*self.arguments(step), STEPS=steps, **self.constants)

    def compiled(self) -> Any:
        """The kernel that does a step a launch, compiled and not launched."""
        return self.kernel.warmup(*self.arguments(0), grid=(self.programs,), STEPS=1, **self.constants)

    def length_error(self) -> float:
        """By how much the length of a direction differs from 1 at most."""
        cos, sin = self.heading if len(self.heading) == 2 else angles.direction(self.heading[0].to(torch.int32))
        return float((torch.hypot(cos.to(torch.float64), sin.to(torch.float64)) - 1).abs().max())


MOTORS = {
    "binary angle": None,
    "unit vector not renormalised": nothing,
    "unit vector by rsqrt": rsqrt,
    "unit vector by square root and division": root_and_division,
    "unit vector by Newton step": newton,
}


def measure(settings: Settings, kept: Results) -> None:
    """Measure all of it.

    Args:
        settings: Where and how large.
        kept: Where the rows go. Without a GPU those of machine code have figures, and the others the reason why they have none.

    Raises:
        RunError: Bits differ where none may: from the eager model, or between the backend and its own kernels loaded again.
    """
    device, size = settings.device, SIZES[settings.scale]
    measure_machine_code(device, kept)
    lacks = lacking(device, size)
    if lacks:
        for row in cases_on_a_gpu(size):
            kept.not_run(row, lacks)
        return
    tell("step: the gate, then which bits differ")
    worlds.gate(["triton"], device, size, math.prod(size))
    measure_directions(device, kept)
    backends, start = measure_differing(device, size, kept)
    tell("step: times")
    time_step(settings, backends, start, kept)
    time_motors(settings, size, kept)


def lacking(device: torch.device, size: tuple[int, int]) -> str | None:
    """Why nothing but machine code can be measured; None where all can."""
    lacks = TritonBackend.missing(device)
    if lacks:
        return f"it needs {lacks}"
    try:  # the variants are timed in turns, hence stand side by side
        check_memory(TritonBackend, device, as_worlds([World()] * len(VARIANTS)), size, math.prod(size))
    except UsageError as error:
        return str(error)
    return None


def case(part: str, implementation: str, size: tuple[int, int] | None = None, **more: Any) -> Row:
    """What tells a row from the others; there is an agent a cell."""
    sized = {"size": f"{size[0]}x{size[1]}", "agents": math.prod(size)} if size else {}
    return {"operator": "step", "part": part, "implementation": implementation, **sized, **more}


def cases_on_a_gpu(size: tuple[int, int]) -> list[Row]:
    """The cases of all rows but those of machine code."""
    return [
        *(case("direction", name) for name in VARIANTS),
        *(case("differing bits", name, size, steps=steps) for name in VARIANTS for steps in COMPARED_AFTER),
        *(case(part, name, size) for part in ("sense+motor", "whole step") for name in VARIANTS),
        *(case("motor", name, size, steps_a_launch=steps) for steps in STEPS_A_LAUNCH for name in MOTORS),
        *(case("length of directions", name, size, steps=TURNS) for name in MOTORS),
    ]


def measure_machine_code(device: torch.device, kept: Results) -> None:
    """What the kernels of each variant and each motor are compiled to: on any machine, for its own GPU or for `OFFLINE`."""
    capability = ".".join(map(str, torch.cuda.get_device_capability(device))) if device.type == "cuda" else OFFLINE
    fields = [(PLAIN, "diffuse+decay"), (f"{PLAIN} with FMA", "diffuse+decay")]  # in which there are no directions
    for name, kernel in [*product(VARIANTS, ["sense+motor"]), *fields, *product(MOTORS, ["motor"])]:
        row = case("machine code", name, kernel=kernel, capability=capability)
        try:
            kept.add(row, None, **machine_code(name, kernel, capability))
        except UsageError as error:
            kept.not_run(row, str(error))


def machine_code(name: str, kernel: str, capability: str) -> Row:
    """What a kernel takes and which instructions it holds.

    Args:
        name: Of the variant or the motor.
        kernel: "sense+motor", "deposit", "diffuse+decay" or "motor".
        capability: A compute capability, such as "9.0".

    Returns:
        32-bit `registers` a thread; bytes of `stack` a thread; `instructions`, counted where they stand, also in branches that are
        seldom taken; how many of them are `fused` multiply-adds of float32, which libm, square roots and divisions are made of even where
        nothing else may contract; and how many are `special`, by function: SIN, COS, RSQ for 1 / sqrt, and RCP for 1 / x, which the
        division of integers takes, too. A thread has two agents, or four columns.

    Raises:
        UsageError: Triton or its tools cannot tell.
    """
    lacks = lacking_triton()
    if lacks:
        raise UsageError(f"compiling needs {lacks}")
    with resources.compiling_for(capability):
        source = Motor(MOTORS[name], SIZES["toy"], "meta") if kernel == "motor" else Compiler(VARIANTS[name], kernel)
        code = source.compiled()
    dump = resources.disassembled(code, capability)
    taken = {word: int(number) for word, number in re.findall(r"\b(REG|STACK):(\d+)", dump)}
    # A line is /*0120*/ [@predicate] NAME.KIND operands; NOPs behind the end fill it up to a multiple of 128 bytes.
    instructions = [found for found in re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?\w+\s+)?([\w.]+)", dump, re.MULTILINE) if found != "NOP"]
    return {
        "registers": taken["REG"],
        "stack": taken["STACK"],
        "instructions": len(instructions),
        "fused": sum(found.startswith("FFMA") for found in instructions),
        "special": dict(Counter(found.split(".")[1] for found in instructions if found.startswith("MUFU"))),
    }


def measure_directions(device: torch.device, kept: Results) -> None:
    """How far each variant's directions are from those of float64, over all headings."""
    for name, variant in VARIANTS.items():
        kept.add(case("direction", name), greatest_error=direction_error(variant, device))


def direction_error(variant: Variant, device: torch.device) -> float:
    """The greatest error of a cosine or sine of all 65,536 headings against float64."""
    cos, sin = (torch.empty(angles.TURN, device=device) for _ in range(2))
    programs = angles.TURN // HEADINGS_A_PROGRAM
    directions_kernel[(programs,)](cos, sin, DIRECTION=variant.direction, BLOCK=HEADINGS_A_PROGRAM, **variant.options)
    angle = torch.arange(-angles.TURN // 2, angles.TURN // 2, dtype=torch.float64, device=device) * RADIANS.value
    return max(float((found - exact).abs().max()) for found, exact in ((cos, angle.cos()), (sin, angle.sin())))


def measure_differing(device: torch.device, size: tuple[int, int], kept: Results) -> tuple[dict[str, VariantBackend], State]:
    """How many agents and cells each variant changes, from the developed pattern on.

    Returns:
        A backend a variant, after the last of `COMPARED_AFTER` steps, and the pattern that all began with.

    Raises:
        RunError: The plain variant changes any.
    """
    start = worlds.developed("triton", device, size, math.prod(size))
    plain = worlds.loaded("triton", device, worlds.PATTERN, start)
    expected = {steps: advanced(plain, start.step + steps) for steps in COMPARED_AFTER}
    backends = {}
    for name, variant in VARIANTS.items():
        backends[name] = VariantBackend(device, variant)
        backends[name].load(worlds.PATTERN, start)
        for steps, reference in expected.items():
            agents, cells = differing(advanced(backends[name], start.step + steps), reference)
            if name == PLAIN and agents + cells:
                raise RunError(f"no figures: the kernels loaded again change {agents} agents and {cells} cells in {steps} steps")
            kept.add(case("differing bits", name, size, steps=steps), agents_differing=agents, cells_differing=cells)
    return backends, start


def advanced(backend: TorchBackend, step: int) -> State:
    """The state of a backend once it has done so many steps."""
    backend.advance(step - backend.step)
    return backend.state()


def differing(a: State, b: State) -> tuple[int, int]:
    """How many agents and how many cells are not the same in two states."""
    agents = (a.x != b.x) | (a.y != b.y) | (a.heading != b.heading)
    return int(agents.sum()), int((a.trail != b.trail).sum())


def time_step(settings: Settings, backends: Mapping[str, VariantBackend], start: State, kept: Results) -> None:
    """Time sense + motor alone, for all variants on the same agents, just sorted; and whole steps, a sort in each trial."""
    agents, cells = start.x.numel(), start.trail.numel()
    sorting = VariantBackend(settings.device, VARIANTS[PLAIN])
    sorting.load(worlds.PATTERN, start)
    sorting.advance(1)
    kernel, programs, arguments, constants = sorting.launches["sense+motor"]
    alone = {name: partial(variant.launch, kernel, programs, *arguments, **constants) for name, variant in VARIANTS.items()}
    whole = {name: partial(backend.advance, 1) for name, backend in backends.items()}
    parts = (
        ("sense+motor", alone, None, worlds.BYTES_AN_AGENT * agents + BYTES_SENSED_A_CELL * cells),
        ("whole step", whole, SORT_EVERY, worlds.bytes_a_step(agents, cells)),
    )
    for part, works, calls, moved in parts:
        for name, figures in timed(works, settings.device, settings.trials, calls).items():
            kept.add(case(part, name, start.size), works[name], **figures, **throughput(moved, figures, settings))


def time_motors(settings: Settings, size: tuple[int, int], kept: Results) -> None:
    """Time the motors, and see how long their directions are after `TURNS` steps."""
    for steps in STEPS_A_LAUNCH:
        motors = {name: Motor(factor, size, settings.device) for name, factor in MOTORS.items()}
        works = {name: partial(motor.advance, steps=steps) for name, motor in motors.items()}
        for name, figures in timed(works, settings.device, settings.trials).items():
            rates = throughput(motors[name].bytes, figures, settings)
            kept.add(case("motor", name, size, steps_a_launch=steps), works[name], **figures, **rates)
    for name, factor in MOTORS.items():
        motor = Motor(factor, size, settings.device)
        for step in range(TURNS):
            motor.advance(step)
        kept.add(case("length of directions", name, size, steps=TURNS), greatest_error=motor.length_error())


def throughput(moved: int, figures: Row, settings: Settings) -> Row:
    """The bytes that a call must move at least, the bytes a second that makes, and the share of a copy's."""
    rate = moved / (median_us(figures) * 1e-6)
    return {"bytes": moved, "bytes_per_s": rate, "roof_share": rate / settings.bandwidth}
