"""The command line: parse, call, say what happened, exit with the right code."""

import logging
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from physarum import __version__
from physarum.cli.kernels import kernels
from physarum.cli.run import resume, run, say
from physarum.cli.trace import trace
from physarum.errors import RunError, UsageError

app = App(
    name="physarum",
    help="Slime moulds on a torus. One seed gives the same bits on every backend and device.",
    version=__version__,
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # or it ends the program by itself
)
app.command(run)
app.command(resume)
app.command(trace)
app.command(kernels)


def main() -> None:
    """Entry point of `physarum`; exits with 0 (done), 1 (failed), 2 (usage), 130 (Ctrl-C) or 143 (SIGTERM)."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("physarum: %(message)s"))
    logging.getLogger("physarum").addHandler(handler)
    logging.getLogger("physarum").setLevel(logging.INFO)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns where a home folder cannot be written, which we do not need
    if sys.stdout is None:
        say("cannot print the results: stdout is closed")
        sys.exit(1)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # no name of a file may end a run
    try:
        code = call(sys.argv[1:])
        sys.stdout.flush()
    except SystemExit:  # rich, which prints the help, ends the program where the reader has left
        code = _unprinted(BrokenPipeError())
    except OSError as error:
        if error.filename is not None:
            raise
        code = _unprinted(error)
    sys.exit(code)


def call(words: Sequence[str]) -> int:
    """Carry out a command line; the exit code."""
    try:
        return app(words, exit_on_error=False, print_error=False) or 0
    except (CycloptsError, UsageError) as error:
        say(_sentence(error))
        return 2
    except RunError as error:
        say(_sentence(error))
        return 1
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError":  # PyTorch's, which may not be imported here
            raise
        say("the memory is not enough: try a smaller --size or fewer --agents")
        return 1
    except KeyboardInterrupt:
        return 130


def _unprinted(error: OSError) -> int:
    """The exit code where stdout takes no more: a reader that left, as `head` does, is no fault, a full disk is."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what the interpreter flushes at its end
    if isinstance(error, BrokenPipeError):
        return 0
    say(f"cannot print the results: {error.strerror}")
    return 1


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())
