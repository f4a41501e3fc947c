"""Slime moulds on a torus: one seed gives the same bits on every backend and device."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from physarum.errors import RunError, UsageError
    from physarum.model.params import Params
    from physarum.model.state import State
    from physarum.model.world import World
    from physarum.runner import Plan, Runner, run
    from physarum.simulation import Simulation

__version__ = "0.1.0"
__all__ = ["Params", "Plan", "RunError", "Runner", "Simulation", "State", "UsageError", "World", "__version__", "run"]

# Looked up on first use, so that `import physarum` and `physarum --help` do not wait for PyTorch.
_HOMES = {
    "Params": "physarum.model.params",
    "Plan": "physarum.runner",
    "RunError": "physarum.errors",
    "Runner": "physarum.runner",
    "Simulation": "physarum.simulation",
    "State": "physarum.model.state",
    "UsageError": "physarum.errors",
    "World": "physarum.model.world",
    "run": "physarum.runner",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
