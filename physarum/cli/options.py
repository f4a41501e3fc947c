"""The options of a run: what they are called, what they mean, and how the command line layers over a TOML file. No PyTorch here."""

import dataclasses
import re
import secrets
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from cyclopts import Group, Parameter

from physarum.errors import UsageError
from physarum.model.params import LARGEST_SEED, MOST_AGENTS, MOST_STEPS, Params, check_size, real, whole

MODEL = Group("Model", sort_key=1)
WORLD = Group("World", sort_key=2)
RUN = Group("Run", sort_key=3)
OUTPUT = Group("Output", sort_key=4)

MULTIPLES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


def _model_options() -> type:
    """An option for each parameter of a population, from the one list there is."""

    def annotation(field: "dataclasses.Field[Any]") -> Any:
        help_text = f"{field.metadata['meaning']} [{field.default:g}]"
        return Annotated[float | None, Parameter(help=help_text, group=MODEL)]

    made = dataclasses.make_dataclass("ModelOptions", [(f.name, annotation(f), None) for f in dataclasses.fields(Params)], frozen=True)
    made.__module__ = __name__  # or cyclopts takes it for a type of the standard library
    return made


ModelOptions = _model_options()


@Parameter(name="*")
@dataclass(frozen=True)
class WorldOptions:
    """Options of the world; None where not given."""

    attraction: Annotated[float | None, Parameter(help="to its own trail; negative repels [1]", group=WORLD)] = None
    size: Annotated[str | None, Parameter(help="WIDTHxHEIGHT in cells, 8 to 65536 a side [the picture's, else 512x512]", group=WORLD)] = (
        None
    )
    agents: Annotated[str | None, Parameter(help="how many, e.g. 50000, 50k, 1.5M [15 in 100 cells]", group=WORLD)] = None
    seed: Annotated[str | None, Parameter(help=f"0 to {LARGEST_SEED}, or random [0]", group=WORLD)] = None
    image: Annotated[str | None, Parameter(help="picture that is the trail at the start", group=WORLD)] = None
    image_strength: Annotated[float | None, Parameter(help="trail where the picture is white [10 deposits]", group=WORLD)] = None


@Parameter(name="*")
@dataclass(frozen=True)
class RunOptions:
    """Options of the run; None where not given."""

    steps: Annotated[str | None, Parameter(help="completed at the end; 0 shows the start [1000]", group=RUN)] = None
    backend: Annotated[str | None, Parameter(help="torch, compile, triton or auto [auto]", group=RUN)] = None
    device: Annotated[str | None, Parameter(help="cpu, cuda, cuda:1 and so on, or auto [auto]", group=RUN)] = None
    checkpoint: Annotated[str | None, Parameter(help="file for the state at the end, or where the run is stopped", group=RUN)] = None
    checkpoint_every: Annotated[str | None, Parameter(help="also write it every so many steps", group=RUN)] = None


@Parameter(name="*")
@dataclass(frozen=True)
class OutputOptions:
    """Options of the results; None where not given."""

    output: Annotated[
        tuple[str, ...] | None,
        Parameter(
            name=["--output", "-o"],
            help="file to write, .png, .mp4 or .npz; may be repeated [outputs/physarum-N.png]",
            group=OUTPUT,
            negative=(),
            consume_multiple=False,
        ),
    ] = None
    every: Annotated[str | None, Parameter(help="steps from frame to frame of a video [4]", group=OUTPUT)] = None
    fps: Annotated[str | None, Parameter(help="frames a second of a video [30]", group=OUTPUT)] = None
    colormap: Annotated[str | None, Parameter(help="one of matplotlib's [magma]", group=OUTPUT)] = None
    overwrite: Annotated[bool, Parameter(name=["--overwrite", "-y"], help="replace outputs that exist", group=OUTPUT, negative=())] = False


@dataclass(frozen=True)
class Settings:
    """A run as it was asked for, every option resolved; manifests and checkpoints keep it.

    Attributes:
        params: Of the one population.
        attraction: To its own trail.
        size: (width, height) in cells, or None to follow the picture.
        agents: How many, or None for 15 in 100 cells.
        seed: Of the world.
        image: The picture, or None.
        image_strength: Trail where it is white, or None for ten deposits.
        steps: Completed at the end.
        every: Steps from frame to frame.
        fps: Frames a second.
        colormap: By name.
        backend: By name, or "auto".
        device: By name, or "auto".
    """

    params: Params = Params()  # noqa: RUF009 (immutable)
    attraction: float = 1.0
    size: tuple[int, int] | None = None
    agents: int | None = None
    seed: int = 0
    image: str | None = None
    image_strength: float | None = None
    steps: int = 1000
    every: int = 4
    fps: str = "30"
    colormap: str = "magma"
    backend: str = "auto"
    device: str = "auto"

    @property
    def white(self) -> float:
        """Trail where the picture is white: ten deposits, those of the defaults where agents leave none."""
        return 10 * (self.params.deposit_amount or Params().deposit_amount) if self.image_strength is None else self.image_strength

    def as_json(self) -> dict[str, Any]:
        """The settings in JSON's types, by the names of the options."""
        fields = dataclasses.asdict(self)
        return {**fields.pop("params"), **fields}

    def changed(self, given: dict[str, Any]) -> "Settings":
        """These settings with those in `given` over them, by the names of the options, in TOML's types or as typed on a command line.

        Raises:
            UsageError: A value is of no use.
        """
        names = [f.name for f in dataclasses.fields(Params)]
        params = dataclasses.replace(self.params, **{name: given[name] for name in names if name in given})
        rest = {name: READERS[name](name, value) for name, value in given.items() if name not in names}
        return dataclasses.replace(self, params=params, **rest)


def read_size(name: str, value: Any) -> tuple[int, int]:
    """A size such as 640x480, or a pair of numbers."""
    if isinstance(value, str):
        found = re.fullmatch(r"(\d{1,9})[xX](\d{1,9})", value, re.ASCII)
        if not found:
            raise UsageError(f"{name} is {value!r}: it must be WIDTHxHEIGHT, such as 640x480")
        value = [int(side) for side in found.groups()]
    return check_size(value)


def read_agents(name: str, value: Any) -> int:
    """A number of agents such as 50000, 50_000, 50k, 1.5M or 1e6."""
    if not isinstance(value, str):
        return whole(name, value, 1, MOST_AGENTS)
    found = re.fullmatch(r"(\d[\d_]{0,14}(?:\.\d{1,9})?(?:e\d{1,2})?)([kMG]?)", value, re.ASCII)
    number = Fraction(found[1].replace("_", "")) * MULTIPLES[found[2]] if found else Fraction(-1, 2)
    if number.denominator > 1:
        raise UsageError(f"{name} is {value!r}: it must be a whole number, such as 50000, 50k or 1.5M")
    return whole(name, int(number), 1, MOST_AGENTS)


def read_seed(name: str, value: Any) -> int:
    """A seed; "random" draws one."""
    if value == "random":
        return secrets.randbelow(LARGEST_SEED + 1)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,40}", value, re.ASCII):
        value = int(value)
    if isinstance(value, str):
        raise UsageError(f"{name} is {value!r}: it must be a whole number from 0 to {LARGEST_SEED}, or random")
    return whole(name, value, 0, LARGEST_SEED)


def read_fps(name: str, value: Any) -> str:
    """Frames a second, kept as they were written, so that 29.97 and 30000/1001 stay exact."""
    text = value if isinstance(value, str) else f"{real(name, value, 0, 1000):.10g}"
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?|\d{1,7}/[1-9]\d{0,6}", text, re.ASCII) or not 0 < Fraction(text) <= 1000:
        raise UsageError(f"{name} is {text!r}: it must be a number above 0, 1000 at most, such as 30, 29.97 or 30000/1001")
    return text


def read_text(name: str, value: Any) -> str:
    """A name."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise UsageError(f"{name} is {value!r}: it must be a name in quotes")
    return value


READERS: dict[str, Any] = {
    "attraction": lambda name, value: real(name, value, -1000, 1000),
    "size": read_size,
    "agents": read_agents,
    "seed": read_seed,
    "image": read_text,
    "image_strength": lambda name, value: real(name, value, 0, 1e9),
    "steps": lambda name, value: whole(name, value, 0, MOST_STEPS),
    "every": lambda name, value: whole(name, value, 1, MOST_STEPS),
    "fps": read_fps,
    "colormap": read_text,
    "backend": read_text,
    "device": read_text,
}

KEYS = (*(f.name for f in dataclasses.fields(Params)), *READERS)


def given_options(*groups: Any) -> dict[str, Any]:
    """What was given on the command line, by name."""
    values = {f.name: getattr(group, f.name) for group in groups for f in dataclasses.fields(group)}
    given = {name: value for name, value in values.items() if value is not None and name in KEYS}
    return {name: typed_count(name, value) if name in ("steps", "every") else value for name, value in given.items()}


def typed_count(name: str, text: str) -> int:
    """A number of steps as it was typed; the parser of the command line would cut 2.5 to 2."""
    if not re.fullmatch(r"-?\d{1,40}", text, re.ASCII):
        raise UsageError(f"{name} is {text!r}: it must be a whole number")
    return int(text)
