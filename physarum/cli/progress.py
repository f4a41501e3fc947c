"""Progress on a terminal; nothing anywhere else."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(first: int, steps: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr from step `first` to `steps`; the block calls what it is given with the completed steps."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 (slow to import)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("steps", total=steps, completed=first)
        yield lambda step: bar.update(task, completed=step)
