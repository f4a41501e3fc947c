"""The step of the published experiment, written anew from its description, in PyTorch and in Triton; each defect of the first can be cured.

The experiment is ut21's "The G in GPU is for Graphics damnit!" (2025). Its numbers: sensors 5 cells away, pi/4 to either side, which is
the angle of a turn too; a step of 1 cell; a deposit of 1; a fifth of each cell comes from the mean of 3 x 3; a hundredth of the trail is
lost. Positions are (y, x) in cells, float32; a heading is in radians. With all defects cured this is the textbook model in floating point:
sensors interpolate, and the first of equal sensors wins in the order ahead, left, right. That is still not the model of this project.
"""

import math
from collections.abc import Collection
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (as PyTorch's own pages call it)
import triton
import triton.language as tl
from torch import Tensor

from physarum.model.angles import TURN
from physarum.model.params import Params
from physarum.model.state import State

DISTANCE = 5.0  # cells from an agent to its sensors
SPREAD = math.pi / 4  # radians between the sensor ahead and each side sensor, and of a turn
STEP = 1.0  # cells
DEPOSIT = 1.0
DIFFUSION = 0.2
DECAY = 0.01
BLOCK = 256  # agents a program of the Triton kernels; the publication does not give its own
OPTIONS = {"enable_fp_fusion": True}  # the default of Triton 3.4, with which it was published

# The same numbers for this project's model.
PARAMS = Params(
    sensor_angle=45,
    rotation_angle=45,
    sensor_distance=DISTANCE,
    step_size=STEP,
    deposit_amount=DEPOSIT,
    diffusion=DIFFUSION,
    decay_rate=DECAY,
)

# What is wrong with the published PyTorch step, in the order in which a step comes to it; the first five change the pattern.
DEFECTS = {
    "axis-swap": "sensors lie at (cos, sin) of the heading in (y, x) while moves go to (sin, cos)",
    "sensor-scramble": "sensor points (agents, 3) are viewed as (3, agents), not transposed, so agents steer by what others sense",
    "seam": "sensors interpolate on a sheet with nothing around it, not on a torus, so those within the last row or column read too little",
    "lost-deposits": "agents that deposit in one cell in the same step add 1 together, not 1 each",
    "leaking-edges": "the mean of 3 x 3 takes cells beyond the edge for empty, so trail that spreads over an edge is lost",
    "host-tensors": "the size of the world is made into a tensor on the host and copied to the device twice a step",
    "field-repeat": "the field is copied three times a step, once for each sensor",
}
PATTERN_DEFECTS = ("axis-swap", "sensor-scramble", "seam", "lost-deposits", "leaking-edges")


class Model(Protocol):
    """What is timed and drawn; the backends of this project are such models too."""

    def advance(self, steps: int) -> None:
        """Run some steps."""

    def trail(self) -> Tensor:
        """The trail on the device: (1, 1, height, width)."""


class _Published:
    """Where a run of the published experiment stands: an empty field, and agents in whole cells, as published."""

    def __init__(self, start: State) -> None:
        width, height = start.size
        self.device = start.x.device
        self.field = torch.zeros(1, 1, height, width, device=self.device)
        self.positions = torch.stack((start.y[0, 0].floor(), start.x[0, 0].floor()), dim=1)
        self.angles = start.heading[0, 0].to(torch.float32) * (2 * math.pi / TURN)
        self.mean_of_nine = torch.full((1, 1, 3, 3), 1 / 9, device=self.device)

    def advance(self, steps: int) -> None:
        """Run some steps."""
        with torch.cuda.device_of(self.field):  # where Triton launches; nothing on a CPU
            for _ in range(steps):
                self.step()

    def trail(self) -> Tensor:
        """The trail: (1, 1, height, width)."""
        return self.field

    def step(self) -> None:
        """One step."""
        raise NotImplementedError


class PublishedTorch(_Published):
    """The published step in PyTorch operators.

    Args:
        start: One world with one population; its trail is ignored.
        defects: Names in `DEFECTS`; the others are cured.
    """

    def __init__(self, start: State, defects: Collection[str] = tuple(DEFECTS)) -> None:
        super().__init__(start)
        self.defects = frozenset(defects)
        self.sides_made_once = torch.tensor(self.field.shape[2:], device=self.device)
        self.deposit_made_once = torch.tensor(DEPOSIT, device=self.device)

    def step(self) -> None:
        """Sense, steer, move, deposit, diffuse and decay."""
        self.steer(self.choices())
        self.move()
        self.deposit()
        self.diffuse_and_decay()

    def choices(self) -> Tensor:
        """Which sensor each agent follows: 0 ahead, 1 left (heading + SPREAD), 2 right; int64 (agents,)."""
        ahead, left, right = self.sense()
        return torch.stack((ahead, left, right)).argmax(0)

    def sense(self) -> Tensor:
        """What the sensors ahead, left and right read: (3, agents)."""
        rays = torch.stack([self.ray(angle) for angle in (self.angles, self.angles + SPREAD, self.angles - SPREAD)], dim=1)
        return self.sample((self.positions[:, None] + rays) % self.sides())

    def ray(self, angle: Tensor) -> Tensor:
        """From agents to the sensors at an angle: (agents, 2), cells."""
        along = (angle.cos(), angle.sin()) if "axis-swap" in self.defects else (angle.sin(), angle.cos())
        return torch.stack(along, dim=1) * DISTANCE

    def sample(self, points: Tensor) -> Tensor:
        """The trail at points (agents, 3, 2) between cells: (3, agents)."""
        height, width = self.field.shape[2:]
        if "seam" in self.defects:
            field, last_row, last_column = self.field, height - 1, width - 1
        else:  # the first row and column once more at the end, between which and the last the seam is interpolated
            field, last_row, last_column = F.pad(self.field, (0, 1, 0, 1), mode="circular"), height, width
        y, x = points[..., 0] / last_row * 2 - 1, points[..., 1] / last_column * 2 - 1
        grid = torch.stack((x, y), dim=-1)  # -1 and 1 are the first and last row or column
        agents = len(grid)
        grid = grid.view(3, agents, 2) if "sensor-scramble" in self.defects else grid.transpose(0, 1)
        if "field-repeat" in self.defects:
            return F.grid_sample(field.repeat(3, 1, 1, 1), grid[:, :, None], align_corners=True).view(3, agents)
        return F.grid_sample(field, grid[None], align_corners=True).view(3, agents)

    def steer(self, choices: Tensor) -> None:
        """Turn to the sensor that was chosen."""
        left, right = self.angles + SPREAD, self.angles - SPREAD
        self.angles = torch.where(choices == 1, left, torch.where(choices == 2, right, self.angles))

    def move(self) -> None:
        """Go a step ahead on the torus."""
        moves = torch.stack((self.angles.sin() * STEP, self.angles.cos() * STEP), dim=1)
        self.positions = (self.positions + moves) % self.sides()

    def deposit(self) -> None:
        """Add to the cells where agents stand; a remainder may round up to the side itself, hence the clamps."""
        height, width = self.field.shape[2:]
        row, column = self.positions[:, 0].long().clamp(0, height - 1), self.positions[:, 1].long().clamp(0, width - 1)
        cells = self.field[0, 0]
        if "lost-deposits" in self.defects:
            cells[row, column] += DEPOSIT
        else:
            cells.index_put_((row, column), self.deposit_made_once, accumulate=True)

    def diffuse_and_decay(self) -> None:
        """Mix each cell with the mean around it, then fade."""
        if "leaking-edges" in self.defects:
            mean = F.conv2d(self.field, self.mean_of_nine, padding=1)
        else:
            mean = F.conv2d(F.pad(self.field, (1, 1, 1, 1), mode="circular"), self.mean_of_nine)
        self.field = (self.field * (1 - DIFFUSION) + mean * DIFFUSION) * (1 - DECAY)

    def sides(self) -> Tensor:
        """(height, width) as a tensor on the device."""
        return torch.tensor(self.field.shape[2:], device=self.device) if "host-tensors" in self.defects else self.sides_made_once


class PublishedTriton(_Published):
    """The published step in two Triton kernels, and PyTorch operators that spread and fade. Needs an NVIDIA GPU, or Triton's interpreter.

    It is another model than the one in PyTorch: sensors read the nearest cell, two equal sides are no reason to turn, deposits add up.
    Edges leak here too, and sensors beyond the first row or column read that one, see `nearest`.
    """

    def step(self) -> None:
        """Sense, steer and move; deposit; diffuse and decay."""
        height, width = self.field.shape[2:]
        agents = len(self.angles)
        programs = (triton.cdiv(agents, BLOCK),)
        positions, angles = torch.empty_like(self.positions), torch.empty_like(self.angles)
        sense_steer_move_kernel[programs](
            self.positions, self.angles, self.field, positions, angles, agents, height, width,
            DISTANCE=DISTANCE, SPREAD=SPREAD, STEP=STEP, BLOCK=BLOCK, **OPTIONS,
        )  # fmt: skip
        deposit_kernel[programs](positions, self.field, agents, height, width, DEPOSIT=DEPOSIT, BLOCK=BLOCK, **OPTIONS)
        mean = F.conv2d(self.field, self.mean_of_nine, padding=1)
        self.field = (self.field * (1 - DIFFUSION) + mean * DIFFUSION) * (1 - DECAY)
        self.positions, self.angles = positions, angles


@triton.jit
def cell_at(y, x, height, width):
    """The flat cell of a point, cut to the field."""
    row = tl.minimum(tl.maximum(y.to(tl.int32), 0), height - 1)
    column = tl.minimum(tl.maximum(x.to(tl.int32), 0), width - 1)
    return row * width + column


@triton.jit
def nearest(field, y, x, angle, height, width, there, DISTANCE: tl.constexpr):  # noqa: N803
    """What a sensor reads. `%` is C's fmod here: a negative coordinate stays negative, and then is cut to 0 instead of wrapping."""
    y = (y + DISTANCE * tl.sin(angle)) % height
    x = (x + DISTANCE * tl.cos(angle)) % width
    return tl.load(field + cell_at(y, x, height, width), mask=there, other=0.0)


@triton.jit
def sense_steer_move_kernel(
    positions, angles, field, new_positions, new_angles, agents, height, width,
    DISTANCE: tl.constexpr, SPREAD: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Move BLOCK agents, into new buffers. The parameters are constants of the compilation, as published."""
    agent = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = agent < agents
    y = tl.load(positions + 2 * agent, mask=there, other=0.0)
    x = tl.load(positions + 2 * agent + 1, mask=there, other=0.0)
    angle = tl.load(angles + agent, mask=there, other=0.0)

    ahead = nearest(field, y, x, angle, height, width, there, DISTANCE)
    left = nearest(field, y, x, angle + SPREAD, height, width, there, DISTANCE)
    right = nearest(field, y, x, angle - SPREAD, height, width, there, DISTANCE)
    turned_right = tl.where((right > ahead) & (right > left), angle - SPREAD, angle)
    angle = tl.where((left > ahead) & (left > right), angle + SPREAD, turned_right)

    y += STEP * tl.sin(angle)
    x += STEP * tl.cos(angle)
    tl.store(new_positions + 2 * agent, y - tl.floor(y / height) * height, mask=there)
    tl.store(new_positions + 2 * agent + 1, x - tl.floor(x / width) * width, mask=there)
    tl.store(new_angles + agent, angle, mask=there)


@triton.jit
def deposit_kernel(positions, field, agents, height, width, DEPOSIT: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Add the deposits of BLOCK agents, one atomic addition each."""
    agent = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = agent < agents
    y = tl.load(positions + 2 * agent, mask=there, other=0.0)
    x = tl.load(positions + 2 * agent + 1, mask=there, other=0.0)
    tl.atomic_add(field + cell_at(y, x, height, width), DEPOSIT, mask=there)
