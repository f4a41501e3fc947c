"""Which files a run writes, and whether it may."""

import os
from collections.abc import Iterable
from pathlib import Path

from physarum.errors import UsageError
from physarum.files import part_of, shown
from physarum.output.manifest import manifest_path
from physarum.output.video import partial_path

SUFFIXES = (".png", ".mp4", ".npz")


def check_outputs(
    outputs: Iterable[Path],
    checkpoint: Path | None = None,
    inputs: Iterable[Path] = (),
    resumed: Path | None = None,
    overwrite: bool = False,
) -> None:
    """See that each file can be written and is written over nothing that is wanted.

    Args:
        outputs: Results; the suffix says which. A manifest comes with each, and a partial file with a video.
        checkpoint: Where the state goes, or None.
        inputs: Files that the run reads.
        resumed: The checkpoint that the run goes on from, which only its own checkpoint may replace; None for a new run.
        overwrite: Whether files that exist may be replaced.

    Raises:
        UsageError: A suffix is unknown, no file can be there, a file exists and `overwrite` is false, or a name is needed twice.
    """
    outputs, inputs = tuple(outputs), (*inputs, *([resumed] if resumed else []))
    for path in outputs:
        if path.suffix.lower() not in SUFFIXES:
            raise UsageError(f"{shown(path)} has no suffix that says what to write: it must end in {', '.join(SUFFIXES)}")
    taken: set[str] = set()
    for target in (*outputs, *([checkpoint] if checkpoint else [])):
        lasting = (target,) if target == checkpoint else lasting_files(target)
        for path in lasting:
            renewed = path == checkpoint and resumed is not None and _same_file(path, resumed)
            check_free(path, () if renewed else inputs, overwrite or renewed)
            if os.path.realpath(path) in taken:
                raise UsageError(f"{shown(path)} is named twice: each output needs a file of its own, and one for its manifest")
        taken |= {os.path.realpath(path) for path in lasting}


def lasting_files(output: Path) -> tuple[Path, ...]:
    """What an output leaves: itself, its manifest, and a video's part where it is not finished."""
    return (output, manifest_path(output), *([partial_path(output)] if output.suffix.lower() == ".mp4" else []))


def check_free(path: Path, inputs: Iterable[Path] = (), overwrite: bool = False) -> None:
    """See that a file can be written at a name, over nothing that is wanted.

    Args:
        path: The name.
        inputs: Files that the run reads.
        overwrite: Whether a file that exists may be replaced.

    Raises:
        UsageError: No file can be there, an input is there, or a file exists and `overwrite` is false.
    """
    _check_place(path)
    if any(_same_file(path, other) for other in inputs):
        raise UsageError(f"{shown(path)} is an input of this run, which is never overwritten: name another output")
    if path.exists() and not overwrite:
        raise UsageError(f"{shown(path)} exists: add --overwrite to replace it")


def _check_place(path: Path) -> None:
    """Refuse a name at which no file can be made."""
    try:
        if path.is_dir():
            raise UsageError(f"{shown(path)} is a folder: name a file")
        part_of(path)  # raises where its longer name cannot be
        folder = next(p for p in path.absolute().parents if p.exists())
    except (OSError, ValueError) as error:
        raise UsageError(f"{shown(path)} cannot be written: {getattr(error, 'strerror', None) or error}") from error
    if not folder.is_dir():
        raise UsageError(f"{shown(path)} cannot be written: {shown(folder)} is no folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{shown(path)} cannot be written: this user may not write to {shown(folder)}")


def _same_file(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and path.samefile(other)
