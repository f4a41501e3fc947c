"""The manifest beside each result: all that made it."""

import importlib.metadata
import json
import os
import platform
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from physarum import __version__
from physarum.files import written_whole

LIBRARIES = ("torch", "triton", "numpy", "matplotlib", "imageio", "pillow", "av", "safetensors")


def manifest_path(output: str | PathLike[str]) -> Path:
    """Where the manifest of a result lies: `coral.mp4.json` for `coral.mp4`."""
    return Path(f"{os.fspath(output)}.json")


def versions(device: torch.device) -> dict[str, str]:
    """What the result was computed with."""
    found = {"physarum": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):  # Triton is there on Linux alone
            found[name] = importlib.metadata.version(name)
    if device.type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda)}
    return found


def write_manifest(output: str | PathLike[str], content: dict[str, Any]) -> Path:
    """Write the manifest of a result, whole or not at all; ASCII, so that any file name survives in it.

    Returns:
        Its path.

    Raises:
        RunError: The file cannot be written.
    """
    path = manifest_path(output)
    with written_whole(path) as part:
        part.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="ascii")
    return path
