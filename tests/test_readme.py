"""What the README says can be done, can be done."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import physarum.cli
from physarum.model.params import Params

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
COMMANDS = [line.split("#")[0].strip() for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]
PYTHON = [block for kind, block in BLOCKS if kind == "python"]
PHYSARUM = [command for command in COMMANDS if command.startswith("physarum")]
TOY = {"--size": "48x40", "--agents": "300", "--steps": "12", "--checkpoint-every": "5"}


def toy(command: str) -> list[str]:
    """The command with small numbers in the place of its own."""
    words = shlex.split(command)[1:]
    if "resume" in words:
        return ["16" if before == "--steps" else word for before, word in zip(["", *words], words, strict=False)]
    shrunk = [TOY.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    if words[0] == "trace":
        shrunk[words.index("torch,compile")] = "torch"
    if words[0] == "run" and "--help" not in words:
        shrunk += [word for option in ("--size", "--agents", "--steps") if option not in words for word in (option, TOY[option])]
    return shrunk


def test_commands_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(PHYSARUM) >= 6
    Image.fromarray((np.random.default_rng(1).random((60, 70, 3)) * 255).astype(np.uint8)).save(tmp_path / "photo.jpg")
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    monkeypatch.chdir(tmp_path)
    for command in PHYSARUM:
        assert physarum.cli.call(toy(command)) == 0, f"{command}: {capsys.readouterr().err}"
        for output in re.findall(r"-o (\S+)", command):
            assert (tmp_path / output).stat().st_size > 0
            assert (tmp_path / f"{output}.json").exists()
    assert (tmp_path / "run.safetensors").exists()


def test_python_runs_in_five_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = PYTHON[0]
    assert len([line for line in code.splitlines() if line]) <= 5
    monkeypatch.chdir(tmp_path)
    exec(code.replace("(512, 512)", "(64, 64)").replace("100_000", "500").replace("steps=200", "steps=8"), {})
    assert (tmp_path / "network.png").exists()
    assert (tmp_path / "network.mp4").exists()


def test_python_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    exec(PYTHON[1].replace("(256, 256)", "(64, 48), agents=300"), {})
    assert capsys.readouterr().out.endswith("us on the host\n")
    assert (tmp_path / "step.json.gz").exists()


def test_scripts_and_files_that_it_names_exist() -> None:
    scripts = [command for command in COMMANDS if command.startswith("scripts/")]
    assert {"scripts/demo", "scripts/test"} == set(scripts)
    for name in [*scripts, *re.findall(r"\]\(([^)#:]+)\)", README), "constraints.txt", "benchmarks/compare_backends.py"]:
        assert (ROOT / name).exists(), name


def test_the_layout_lists_what_there_is() -> None:
    (tree,) = [block for kind, block in BLOCKS if kind == "" and block.startswith("physarum/")]
    listed = set(re.findall(r"^  (\w+(?:/|\.py))", tree, re.MULTILINE))
    package = ROOT / "physarum"
    there = {f"{p.name}/" for p in package.iterdir() if (p / "__init__.py").exists()} | {p.name for p in package.glob("*.py")}
    assert listed == there - {"__init__.py", "__main__.py", "errors.py", "files.py", "labels.py"}


def test_every_parameter_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    physarum.cli.call(["run", "--help"])
    shown = capsys.readouterr().out
    for name in Params.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in shown
    for name in set(re.findall(r"(--[a-z-]+)", " ".join(c for c in PHYSARUM if "trace" not in c))) - {"--help"}:
        assert name in shown
