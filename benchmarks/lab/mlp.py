"""A multilayer perceptron forward and backward, by depth, width, batch and steps, eagerly and compiled: here matrix products take the time.

What is fused are the GELUs between them.
"""

import copy
import functools
import itertools
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from harness import Results, Work, median_us, tell, timed
from torch import Tensor, nn

from lab.ladder import compiled, lacking_compile, lacking_memory, normal
from lab.settings import Settings
from physarum.errors import RunError


@dataclass(frozen=True)
class Shape:
    """Of a perceptron and of what is done with it.

    Attributes:
        depth: Layers, each a product and a GELU.
        width: Numbers that go into and come out of each layer.
        batch: Rows of them.
        steps: Forward and backward, one after the other.
    """

    depth: int = 4
    width: int = 256
    batch: int = 256
    steps: int = 2


def varied(base: Shape, factors: tuple[int, ...]) -> tuple[Shape, ...]:
    """A shape, and those in which one of its numbers is larger by a factor."""
    larger = (replace(base, **{name: factor * number}) for (name, number), factor in itertools.product(asdict(base).items(), factors))
    return (base, *larger)


# The last was published in Stanford's CS336 (2025), lecture 6, in float32 (its batch, 1024, is inferred from its time there).
SHAPES = {
    "toy": (Shape(2, 16, 8, 2),),
    "small": varied(Shape(2, 128, 128, 2), (2,)),
    "full": (*varied(Shape(), (2, 8)), Shape(64, 2048, 1024, 2)),
}
# In units of 2^-23 a layer: by how much the norm of a gradient is off, relatively, which each layer adds to, forward and backward.
BOUND = 16.0


class Perceptron(nn.Module):
    """Layers of equal width. Weights are such that numbers keep their size from layer to layer, however many there are."""

    def __init__(self, depth: int, width: int, device: torch.device) -> None:
        super().__init__()
        layers = [nn.Linear(width, width, device=device) for _ in range(depth)]
        self.layers = nn.ModuleList(layers)
        for layer, weight in zip(layers, normal((depth, width, width), device), strict=True):
            layer.weight.data.copy_(weight * (2 / width) ** 0.5)
            layer.bias.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """The mean of what comes out."""
        for layer in self.layers:
            x = nn.functional.gelu(layer(x), approximate="tanh")
        return x.mean()


def train(model: nn.Module, loss: Work, steps: int) -> None:
    """Forward and backward so many times, without a step of an optimizer.

    The backward pass stays on this thread, so that its launches are counted with the others.
    """
    with torch.autograd.set_multithreading_enabled(False):
        for _ in range(steps):
            model.zero_grad(set_to_none=True)
            loss().backward()


def gradients(model: nn.Module) -> list[Tensor]:
    """Of all parameters, in float64."""
    return [p.grad.to(torch.float64) for p in model.parameters() if p.grad is not None]


def error(got: list[Tensor], exact: list[Tensor]) -> float:
    """The largest relative error of a gradient's norm, in units of 2^-23 a layer; two gradients are a layer's."""
    errors = torch.stack([(a - b).norm() / b.norm() for a, b in zip(got, exact, strict=True)])
    return float(errors.nan_to_num(nan=torch.inf).max()) / torch.finfo(torch.float32).eps / (len(exact) / 2)


def lacking(settings: Settings, shape: Shape) -> str | None:
    """Why a shape cannot be measured; None where it can."""
    weights, activations = shape.depth * shape.width**2, shape.depth * shape.batch * shape.width
    # Weights and gradients, and what backward needs of each layer; twice as float32, once as float64.
    return lacking_memory(settings, (2 * 4 + 8) * (2 * weights + 2 * activations))


def measure(settings: Settings, kept: Results) -> None:
    """Measure perceptrons, all of them in turns.

    Args:
        settings: Where and how large.
        kept: Where the rows go.

    Raises:
        RunError: A gradient is wrong.
    """
    works: dict[str, Work] = {}
    rows: dict[str, tuple[Shape, str, float]] = {}
    for shape in SHAPES[settings.scale]:
        tell(f"mlp, {', '.join(f'{name} {value}' for name, value in asdict(shape).items())}")
        for name, (work, wrong) in checked(settings, kept, shape).items():
            works[f"{name}, {shape}"] = work
            rows[f"{name}, {shape}"] = (shape, name, wrong)
    for key, figures in timed(works, settings.device, settings.trials).items():
        shape, name, wrong = rows[key]
        # Each layer multiplies three times, but the first, to whose input nothing goes back.
        operations = 2 * shape.batch * shape.width**2 * (3 * shape.depth - 1) * shape.steps
        rate = operations / (median_us(figures) * 1e-6)
        kept.add(case_of(shape, name), works[key], **figures, flop_per_s=rate, error=wrong, error_bound=BOUND)


def case_of(shape: Shape, name: str) -> dict[str, Any]:
    """What tells a row from others."""
    return {"operator": "mlp", **asdict(shape), "implementation": name}


def checked(settings: Settings, kept: Results, shape: Shape) -> dict[str, tuple[Work, float]]:
    """What to time of a shape, by implementation, with the error of its gradients; what cannot be measured is kept as a row."""
    too_large = lacking(settings, shape)
    lacks = {"eager": too_large, "compiled": too_large or lacking_compile(settings)}
    for name, why in lacks.items():
        if why:
            kept.not_run(case_of(shape, name), why)
    if too_large:
        return {}
    model = Perceptron(shape.depth, shape.width, settings.device)
    x = normal((shape.batch, shape.width), settings.device)
    precise = copy.deepcopy(model).to(torch.float64)
    train(precise, functools.partial(precise, x.to(torch.float64)), 1)
    exact = gradients(precise)
    found: dict[str, tuple[Work, float]] = {}
    for name in (name for name, why in lacks.items() if not why):
        loss = functools.partial(compiled(model) if name == "compiled" else model, x)
        work = functools.partial(train, model, loss, shape.steps)
        work()
        wrong = error(gradients(model), exact)
        if not wrong <= BOUND:
            raise RunError(f"no figures: {shape}, {name} is wrong by {wrong:.3g} units of rounding, where {BOUND:g} are allowed")
        found[name] = (work, wrong)
    return found
