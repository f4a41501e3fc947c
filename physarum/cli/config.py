"""TOML files of options."""

import tomllib
from pathlib import Path
from typing import Any

from physarum.cli.options import KEYS
from physarum.errors import UsageError, did_you_mean
from physarum.files import is_ordinary, shown

LARGEST = 1 << 14  # bytes; nobody writes more by hand


def read_config(name: str) -> dict[str, Any]:
    """The options in a TOML file, by their names with underscores; a relative `image` is relative to the file's folder.

    Raises:
        UsageError: The file is missing, no UTF-8 or no TOML, or has a key that is no option.
    """
    path = Path(name)
    if not is_ordinary(path):
        raise UsageError(f"there is no config {shown(path)}: it is missing or no ordinary file")
    if path.stat().st_size > LARGEST:
        raise UsageError(f"{shown(path)} is too large for a config: at most {LARGEST} bytes are read")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{shown(path)} cannot be read: {error.strerror}") from error
    try:
        found = tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{shown(path)} is not UTF-8 in line {line}: save it with the encoding UTF-8") from error
    except RecursionError as error:
        raise UsageError(f"{shown(path)} is nested too deeply for a config") from error
    except ValueError as error:  # tomllib.TOMLDecodeError, or a number of thousands of digits
        raise UsageError(f"{shown(path)} is not TOML: {shown(str(error))[:200]}") from error
    for key in found:
        if key not in KEYS:
            nearest = did_you_mean(key.lower().replace("-", "_"), KEYS)
            raise UsageError(f"{shown(path)} has the unknown key {key[:60]!r}{nearest}")
    if isinstance(found.get("image"), str):
        found["image"] = str(path.parent / found["image"])
    return found
