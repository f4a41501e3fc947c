"""Files that exist whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from physarum.errors import RunError


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
    part = final.with_name(f"{final.name}.part")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(final)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RunError(f"cannot write {shown(final)}: {error.strerror or error}") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def shown(path: str | os.PathLike[str]) -> str:
    """The name of a file for a message: control characters and undecodable bytes escaped, so that any terminal can print it."""
    name = os.fspath(path)
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in name)
