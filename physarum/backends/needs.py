"""What a machine may lack, each in words that say how to get it; None where nothing."""

import importlib.metadata
import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

OLDEST_TRITON = (3, 4)
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


def lacking_triton() -> str | None:
    """Triton as a compiler, and what it builds its launchers with."""
    if importlib.util.find_spec("triton") is None:
        return "Triton, which is not installed (pip install triton)"
    with suppress(importlib.metadata.PackageNotFoundError):  # nightly builds of PyTorch bring it under another name
        version = importlib.metadata.version("triton")
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TRITON:
            return f"Triton {'.'.join(map(str, OLDEST_TRITON))} or newer: this is {version}"
    if os.environ.get("TRITON_INTERPRET", "").lower() in YES:
        return "Triton's compiler, which the environment variable TRITON_INTERPRET replaces by its slow interpreter: unset it"
    return lacking_compiler("C", ("gcc", "clang"), "CC") or lacking_headers()


def _can_write(folder: Path) -> bool:
    """Whether there is such a folder, or can be, that takes files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
