"""Ctrl-C and SIGTERM: the first asks the run to stop between two steps, the second ends the process at once."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SHOW_CURSOR = b"\x1b[?25h\n"  # the progress bar hides it


class StopFlag:
    """Whether a signal asked the run to stop, and which.

    Attributes:
        signal: Its number, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def is_set(self) -> bool:
        """Whether the run should stop."""
        return self.signal is not None

    def _raised(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the signature of a handler)
        if self.signal is not None:
            if os.isatty(2):
                os.write(2, SHOW_CURSOR)
            os._exit(128 + number)  # what is half-written does not bear a final name
        self.signal = number


@contextmanager
def stop_flag() -> Iterator[StopFlag]:
    """A flag that signals set while the block runs."""
    flag = StopFlag()
    before = {number: signal.signal(number, flag._raised) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
