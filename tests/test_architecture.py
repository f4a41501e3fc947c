"""The layers hold: an import goes to the left of its own name alone, and light commands stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "physarum"

# From left to right; modules in one tuple are beside each other and do not know one another.
LAYERS = (
    ("errors", "labels"),
    ("files",),
    ("model",),
    ("backends",),
    ("checkpoint",),
    ("simulation",),
    ("profiling", "output"),
    ("runner",),
    ("analysis", "terrain", "sweep"),
    ("viewer", "cli"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
ENTRIES = {"__init__", "__main__"}  # the package's front doors


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_layers(path: Path) -> set[str]:
    """The layers that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {parts[1] for name in names if (parts := name.split("."))[0] == "physarum" and len(parts) > 1}
    return found - {"__version__"}


FILES = sorted(path for path in PACKAGE.rglob("*.py") if layer(path) not in ENTRIES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_to_the_left(path: Path) -> None:
    here = layer(path)
    assert here in RANK, f"{here} has no place in the layers"
    for other in imported_layers(path) - {here}:
        assert RANK[other] < RANK[here], f"{here} imports {other}"


def test_there_is_something_to_look_at() -> None:
    assert {"model", "backends", "output", "cli", "simulation", "runner"} <= {layer(path) for path in FILES}


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import physarum", ["torch", "triton", "matplotlib", "av"]),
        (
            "import physarum.cli; physarum.cli.call(['--help'])",
            ["torch", "triton", "matplotlib", "av"],
        ),
        (
            "import physarum.cli; physarum.cli.call(['run', '--help'])",
            ["torch", "triton", "matplotlib", "av"],
        ),
        ("import physarum; physarum.Simulation", ["triton", "matplotlib", "av"]),
    ],
)
def test_light_things_stay_light(code: str, absent: list[str]) -> None:
    check = f"{code}\nimport sys\nprint('LOADED', [m for m in {absent} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED []"
