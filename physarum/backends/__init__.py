"""Who advances a world. All backends give the same bits; they differ in speed, in what they need and in how long they take to start."""

from dataclasses import dataclass

import torch

from physarum.backends.compile_backend import CompileBackend
from physarum.backends.torch_backend import TorchBackend
from physarum.backends.triton_backend import TritonBackend
from physarum.errors import UsageError, did_you_mean

BACKENDS: dict[str, type[TorchBackend]] = {"torch": TorchBackend, "compile": CompileBackend, "triton": TritonBackend}

# Seconds that an eager step takes: a step, an agent, a cell; and what the faster backends, the fastest first, take to start with an
# empty cache. Measured on two CPU cores (torch 2.13) and on one H200 (torch 2.11).
EAGER_SECONDS = {"cpu": (9e-4, 1.35e-7, 1.2e-8), "cuda": (3e-3, 6e-10, 1.8e-10)}
STARTING_SECONDS = {"cpu": {"compile": 25.0}, "cuda": {"triton": 3.0, "compile": 20.0}}


@dataclass(frozen=True)
class Choice:
    """A backend and a device; `why` is a sentence for the user where `auto` chose, else None."""

    backend: str
    device: torch.device
    why: str | None


def choose(backend: str, device: str, agents: int, cells: int, steps: int) -> Choice:
    """Resolve what was asked for to what there is.

    Args:
        backend: A name in BACKENDS, or "auto".
        device: "cpu", "cuda", "cuda:1" and so on, or "auto".
        agents: In all worlds and populations.
        cells: In all worlds and populations.
        steps: How many are to be run, as far as known.

    Raises:
        UsageError: The backend or device does not exist or is missing here; only "auto" ever chooses another.
    """
    place = choose_device(device)
    if backend != "auto":
        if backend not in BACKENDS:
            raise UsageError(f"there is no backend {backend!r}{did_you_mean(backend, BACKENDS)}: choose {', '.join(BACKENDS)} or auto")
        lacks = BACKENDS[backend].missing(place)
        if lacks:
            raise UsageError(f"the backend {backend} needs {lacks}")
        return Choice(backend, place, None)
    a_step, an_agent, a_cell = EAGER_SECONDS[place.type]
    eager = steps * (a_step + an_agent * agents + a_cell * cells)
    faster = ""
    for name, starting in STARTING_SECONDS[place.type].items():
        if eager < starting:
            why = f"eager PyTorch takes about {max(1, round(eager))} s, compiling could take {starting:.0f} s"
            return Choice("torch", place, f"backend torch on {place}: {faster}{why}")
        lacks = BACKENDS[name].missing(place)
        if lacks is None:
            start = f"compiling… (about {starting:.0f} s the first time, less later)"
            return Choice(name, place, f"backend {name} on {place}: {faster}{start}")
        faster = faster or f"faster with {lacks}; "
    return Choice("torch", place, f"backend torch on {place}: {faster.removesuffix('; ')}")


def choose_device(device: str) -> torch.device:
    """The device asked for; "auto" is the first GPU, or the CPU.

    Raises:
        UsageError: There is no such device here.
    """
    if device == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    kind, _, index = device.partition(":")
    if kind not in EAGER_SECONDS or (index and (kind == "cpu" or not index.isdecimal())):
        raise UsageError(f"there is no device {device!r}: choose cpu, cuda, cuda:1 and so on, or auto")
    if kind == "cpu":
        return torch.device("cpu")
    if torch.version.cuda is None:
        raise UsageError(f"the device {device} needs a PyTorch that was built for CUDA; this is {torch.__version__}")
    if not torch.cuda.is_available():
        raise UsageError(
            f"the device {device} is not to be had: no NVIDIA GPU is visible, or its driver is too old for CUDA {torch.version.cuda}"
        )
    number = int(index or 0)
    if number >= torch.cuda.device_count():
        raise UsageError(f"there is no device {device}: this machine shows {torch.cuda.device_count()}, counted from 0")
    return torch.device("cuda", number)
