"""scripts/check_exact finds one wrong bit, and its committed sums are those of the model."""

import dataclasses
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from cases import differing

from physarum import State, UsageError
from physarum.backends.torch_backend import TorchBackend
from physarum.model.start import random_start

SCRIPT = Path(__file__).parent.parent / "scripts" / "check_exact"
CPU = torch.device("cpu")


def loaded() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("check_exact", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_exact", loader))
    sys.modules["check_exact"] = module  # where its dataclass looks for it
    loader.exec_module(module)
    return module


check_exact = loaded()
TOY = check_exact.Case(check_exact.alone(3), (37, 29), 200, steps=20, noisy=True, computed_by=("torch",))


class Flawed(TorchBackend):
    """The model but for one bit."""

    def state(self) -> State:
        state = super().state()
        state.trail.view(torch.int32)[0, 0, 28, 36] ^= 1 << 12
        return state


class Failing(TorchBackend):
    def advance(self, steps: int, labelled: bool = False) -> None:
        raise RuntimeError("an illegal\nmemory access")


@pytest.fixture
def toy_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toy case, two implementations that are wrong, and the file of the toy's sums."""
    sums = tmp_path / "sums.json"
    monkeypatch.setitem(check_exact.CASES, "toy", TOY)
    for name, backend in (("flawed", Flawed), ("failing", Failing)):
        monkeypatch.setitem(check_exact.IMPLEMENTATIONS, name, check_exact.Implementation(backend, labelled=False))
    assert check_exact.main(["--compute", "--cases", "toy", "--sums", str(sums)]) == 0
    return sums


def check_toy(sums: Path, implementations: str, *words: str) -> int:
    return check_exact.main(
        ["--cases", "toy", "--device", "cpu", "--implementations", implementations, "--sums", str(sums), "--commit", "toy", *words]
    )


@pytest.mark.parametrize(("size", "rows"), [((61, 83), 1), ((61, 83), 16), ((83, 61), 60), ((61, 83), 83), ((61, 83), None), ((13, 11), 3)])
@pytest.mark.parametrize("noisy", [False, True])
def test_a_run_in_bands_has_the_bits_of_the_model(size: tuple[int, int], rows: int | None, noisy: bool) -> None:
    case = dataclasses.replace(TOY, size=size, agents=300, steps=60, noisy=noisy)
    expected, _ = check_exact.advanced(case, check_exact.IMPLEMENTATIONS["torch"], CPU)
    start, banded = check_exact.start(case, "cpu"), check_exact.run_in_bands(case, rows)
    assert differing(banded, expected) == {}
    assert differing(banded, dataclasses.replace(start, step=60)).keys() == {"x", "y", "heading", "trail"}
    width, height = size
    for ended, began, side in ((banded.x, start.x, width), (banded.y, start.y, height)):
        assert ((ended - began).abs() > side / 2).any(), "agents crossed the seams"


def test_the_case_beyond_needs_64_bits_and_has_agents_there() -> None:
    case = check_exact.CASES["beyond"]
    width, height = case.size
    assert 2**31 < width * height < 2**32, "a cell's number is its noise"
    assert len(case.worlds) == len(case.worlds[0].populations) == 1
    y = random_start(case.worlds, (8, height), case.agents).y  # where agents stand along y has nothing to do with the width
    assert (y * width >= 2**31).sum() > 200
    assert (y < 1).any()
    assert (y >= height - 1).any()


def test_bits_are_counted_by_hand() -> None:
    a = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    b = torch.tensor([[-0.0, 1.0], [2.0, -3.0]])
    assert check_exact.differing_bits(a, a) == 0
    assert check_exact.differing_bits(a, b) == 2
    assert check_exact.differing_bits(torch.tensor([1.0]), torch.tensor([2.0])) == 8  # 3F800000 and 40000000
    assert check_exact.differing_bits(torch.tensor([0, 5], dtype=torch.int32), torch.tensor([-1, 6], dtype=torch.int32)) == 34
    assert check_exact.differing_bits(torch.tensor([-1], dtype=torch.int16), torch.tensor([1], dtype=torch.int16)) == 15
    assert check_exact.ones(torch.arange(256).to(torch.uint8)).tolist() == [n.bit_count() for n in range(256)]


def test_pieces_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.arange(1001, dtype=torch.float32)
    b = a.clone()
    b[[0, 7, 8, 1000]] *= -1
    whole = check_exact.sum_of(a)
    monkeypatch.setattr(check_exact, "PIECE", 32)
    assert check_exact.sum_of(a) == whole
    assert check_exact.differing_bits(a, b) == 4
    start = check_exact.start(TOY, "cpu")
    assert torch.equal(start.trail.view(-1), 8 * check_exact.noise(0, 0, 37 * 29))


def test_equal_bits_pass(toy_sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "folder" / "results.json"
    assert check_toy(toy_sums, "torch,torch", "--json", str(results)) == 0
    assert "no bit differs" in capsys.readouterr().err
    content = json.loads(results.read_text())
    assert content["commit"] == "toy"
    assert content["torch"] == torch.__version__
    case = content["cases"]["toy"]
    assert {key: case[key] for key in TOY.described()} == {"size": [37, 29], "agents": 200, "worlds": 1, "populations": 1, "steps": 20}
    row = case["implementations"]["torch"]
    assert (row["differing_bits"], row["sums_equal"]) == (0, True)
    assert row["seconds"] > 0


def test_one_wrong_bit_fails(toy_sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.json"
    assert check_toy(toy_sums, "torch,flawed", "--json", str(results)) == 1
    out, err = capsys.readouterr()
    assert [line.split()[:4] for line in out.splitlines()[1:]] == [["toy", "torch", "0", "equal"], ["toy", "flawed", "1", "DIFFER"]]
    assert "toy: flawed does not have the committed sums of trail" in err
    assert "1 of 2 runs differ or fail" in err
    rows = json.loads(results.read_text())["cases"]["toy"]["implementations"]
    assert [(row["differing_bits"], row["sums_equal"]) for row in rows.values()] == [(0, True), (1, False)]


def test_a_wrong_first_one_fails_and_the_sums_say_who_is_right(toy_sums: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_toy(toy_sums, "flawed,torch") == 1
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[:4] for line in lines] == [["toy", "flawed", "0", "DIFFER"], ["toy", "torch", "1", "equal"]]


def test_one_that_fails_does_not_keep_the_others_from_being_compared(toy_sums: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_toy(toy_sums, "failing,torch") == 1
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines[0].split(maxsplit=2)[2] == "failed: RuntimeError: an illegal memory access"
    assert lines[1].split()[1:4] == ["torch", "0", "equal"]


def test_what_does_not_fit_is_said_and_nothing_is_no_success(
    toy_sums: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args) -> None:
        raise UsageError("the run needs too much")

    monkeypatch.setattr(check_exact, "check_memory", refuse)
    assert check_toy(toy_sums, "torch") == 2
    out, err = capsys.readouterr()
    assert "skipped: the run needs too much" in out
    assert "nothing was checked" in err


def test_sums_are_not_written_where_those_who_compute_them_disagree(
    toy_sums: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = toy_sums.read_text()
    monkeypatch.setitem(check_exact.CASES, "toy", dataclasses.replace(TOY, computed_by=("torch", "flawed")))
    assert check_exact.main(["--compute", "--cases", "toy", "--sums", str(toy_sums)]) == 1
    assert "toy has no sums: flawed" in capsys.readouterr().err
    assert toy_sums.read_text() == before


UNINSTALLED = """
import runpy, sys
script, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_path(script, run_name="__main__")
except SystemExit as end:
    print("CODE", end.code, [m for m in ("cyclopts", "rich", "safetensors", "matplotlib", "av") if m in sys.modules])
"""


def test_committed_sums_are_those_of_the_model_uninstalled_too() -> None:
    """Without site, Python does not see the installed package, but the folder of torch and numpy that it is told of."""
    command = [sys.executable, "-S", "-c", UNINSTALLED, str(SCRIPT), "--cases", "small", "--implementations", "torch", "--device", "cpu"]
    environment = os.environ | {"PYTHONPATH": str(Path(torch.__file__).parent.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1].split()[:4] == ["small", "torch", "0", "equal"]
    assert done.stdout.splitlines()[-1] == "CODE 0 []"


def test_every_case_has_committed_sums() -> None:
    known = json.loads(check_exact.SUMS.read_text())
    assert list(known) == list(check_exact.CASES)
    for name, case in check_exact.CASES.items():
        assert {key: known[name][key] for key in case.described()} == case.described()
        assert list(known[name]["sums"]) == list(check_exact.ARRAYS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--cases", "small,big"], "there is no 'big': choose from small, worlds, odd, millions, beyond"),
        (["--implementations", "numpy"], "there is no 'numpy': choose from torch, compile, compile-by-stage, triton, triton-labelled"),
        (["--device", "tpu"], "there is no device 'tpu'"),
        (["--device", "cpu", "--cases", "small", "--implementations", "triton"], "triton needs an NVIDIA GPU"),
        (["--device", "cpu", "--cases", "small", "--sums", "/nowhere"], "/nowhere has no sums of the case small as it is now"),
        (["--compute", "--device", "cpu"], "--device does not go with --compute"),
    ],
)
def test_bad_arguments_are_a_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        check_exact.main(words)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]
