"""What a caller may want to catch. Every message is one sentence: what was given, the rule, what is allowed."""


class UsageError(ValueError):
    """The input cannot be used: a parameter, a file or a request. The command line exits with 2."""


class RunError(RuntimeError):
    """A run that was asked for rightly could not be finished: disk full, encoder failed. The command line exits with 1."""
