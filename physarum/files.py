"""Files that exist whole or not at all."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from physarum.errors import RunError


def part_of(path: Path) -> Path:
    """Where a file is written until it is whole: beside it, under a name that nothing has and no other process takes."""
    names = (path.with_name(f"{path.name}.{os.getpid()}-{i}.part") for i in itertools.count())
    return next(name for name in names if not name.exists())


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary name beside `path`; when the block ends well, flush that file to disk and rename it to `path`.

    If the block raises, the temporary file is removed and whatever stood at `path` before is untouched.

    Args:
        path: The final name; its folder is made if missing.

    Yields:
        The name to write to, in the same folder, so that the rename is atomic.

    Raises:
        RunError: The file cannot be written, with the operating system's reason.
    """
    final = Path(path)
    part = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        part = part_of(final)
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(final)
    except BaseException as error:
        with suppress(OSError):
            if part:
                part.unlink()
        if isinstance(error, OSError):
            raise RunError(f"cannot write {shown(final)}: {error.strerror or error}") from error
        raise


def is_ordinary(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a file that can be read to its end: no folder, pipe or device, and no impossible name."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def next_free(path: Path, companions: Callable[[Path], Iterable[Path]] = lambda path: (path,)) -> Path:
    """This path, or the first of name-2, name-3 and so on that does not exist; name-7 counts on with name-8.

    Args:
        path: Wanted.
        companions: The files that come with a path, itself among them; none of them may exist.
    """
    stem, number = path.stem, 1
    head, dash, tail = stem.rpartition("-")
    if dash and tail.isdecimal() and not tail.startswith("0"):  # 2026-01-05 is a date
        stem, number = head, int(tail)
    while any(companion.exists() for companion in companions(path)):
        number += 1
        path = path.with_name(f"{stem}-{number}{path.suffix}")
    return path


def shown(path: str | os.PathLike[str]) -> str:
    """The name of a file for a message: control characters and undecodable bytes escaped, so that any terminal can print it."""
    name = os.fspath(path)
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in name)
