"""What a machine may lack, each in words that say how to get it; None where nothing."""

import importlib.metadata
import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import torch

OLDEST_TRITON = (3, 4)
# These pair float32 operations on GPUs of this compute capability and above, and their ptxas contracts the pairs to FMA even when told
# not to; seen in the machine code of our kernels.
FUSING_TRITONS = ((3, 5), (3, 6))
FUSED_FROM = (10, 0)
YES = ("1", "on", "true")  # as Triton reads a switch


def lacking_compiler(language: str, names: Sequence[str], variable: str) -> str | None:
    """A compiler: the one that the environment variable names, else one of `names`."""
    asked = os.environ.get(variable)
    sought = (asked,) if asked else names
    if any(shutil.which(name) for name in sought):
        return None
    return f"a {language} compiler: there is no {' or '.join(sought)} (on Debian and Ubuntu: apt install {names[0]})"


def lacking_headers() -> str | None:
    """The headers of this Python."""
    if Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return None
    return "Python.h, the headers of this Python (on Debian and Ubuntu: apt install python3-dev)"


def lacking_cache(variable: str, folder: str | None = None) -> str | None:
    """A folder to keep compiled kernels in: the one that the environment variable names, else `folder`, if any."""
    given = os.environ.get(variable)
    if given and not _can_write(Path(given)):
        return f"a folder to keep compiled kernels in: {variable} is {given}, which cannot be written"
    if not given and folder and not _can_write(Path(folder)):
        return f"a folder to keep compiled kernels in: {folder} cannot be written (set {variable} to one that can)"
    return None


def lacking_triton(device: torch.device | None = None) -> str | None:
    """A Triton that compiles, and compiles for `device` what it is told; None for any device."""
    if importlib.util.find_spec("triton") is None:
        return "Triton, which is not installed (pip install triton)"
    if os.environ.get("TRITON_INTERPRET", "").lower() in YES:
        return "Triton's compiler, which the environment variable TRITON_INTERPRET replaces by its slow interpreter: unset it"
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # nightly builds of PyTorch bring it under another name
        return None
    release = tuple(int(part) for part in version.split(".")[:2])
    if release < OLDEST_TRITON:
        return f"Triton {'.'.join(map(str, OLDEST_TRITON))} or newer: this is {version}"
    capability = (0, 0) if device is None else torch.cuda.get_device_capability(device)
    if release in FUSING_TRITONS and capability >= FUSED_FROM:
        return f"Triton 3.7 or newer: {version} rounds products and sums as one on this GPU, whatever it is told, so that bits would differ"
    return None


def lacking_build_tools() -> str | None:
    """What Triton builds its launchers with."""
    return lacking_compiler("C", ("gcc", "clang"), "CC") or lacking_headers()


def _can_write(folder: Path) -> bool:
    """Whether there is such a folder, or can be, that takes files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
