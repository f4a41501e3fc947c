"""What a caller may want to catch. Every message is one sentence: what was given, the rule, what is allowed."""

from collections.abc import Iterable
from difflib import get_close_matches


class UsageError(ValueError):
    """The input cannot be used: a parameter, a file or a request. The command line exits with 2."""


class RunError(RuntimeError):
    """A run that was asked for rightly could not be finished: disk full, encoder failed. The command line exits with 1."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The nearest of some names, for the end of a clause; empty where none is near."""
    near = get_close_matches(name, list(names), 1)
    return f" (did you mean {near[0]}?)" if near else ""
