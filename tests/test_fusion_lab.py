"""The lab: its gates refuse what is wrong, its kernels are right in Triton's interpreter and compile for an H200, a toy run is whole."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fusion_lab
import pytest
import torch
from harness import Results
from lab import gelu, ladder, matmul, mlp, relu, softmax
from lab.ladder import Implementation
from lab.settings import Settings
from PIL import Image
from torch import Tensor

from physarum import RunError
from physarum.profiling.resources import compiling_for

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
CPU = torch.device("cpu")
TOY = Settings(CPU, trials=3, scale="toy", bandwidth=1e9)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads that wait for one another take longer than these sums


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def lab(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, BENCHMARKS / "fusion_lab.py", "--device", "cpu", *words]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def test_a_toy_run_is_whole(tmp_path: Path) -> None:
    results, picture = tmp_path / "lab.jsonl", tmp_path / "lab.png"
    cases = "gelu,softmax,relu,matmul,mlp"
    done = lab("--scale", "toy", "--trials", "3", "--cases", cases, "--json", str(results), "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    head, *rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert head["copy_bytes_per_s"] > 0
    measured = [row for row in rows if row["status"] == "measured"]
    skipped = {(row["case"]["operator"], row["case"].get("implementation", "tf32")): row["why"] for row in rows if row not in measured}
    assert {row["case"]["operator"] for row in measured} == set(cases.split(","))
    for row in measured:
        assert 0 <= row["error"] <= row["error_bound"]
        assert row["events_us"] is None
        assert len(row["wall_us"]["samples"]) == 3
        if "bytes" in row:
            assert row["bytes_per_s"] == pytest.approx(row["bytes"] / row["wall_us"]["median"] * 1e6)
            assert row["roof_share"] == pytest.approx(row["bytes_per_s"] / head["copy_bytes_per_s"])
    operators = {(row["case"]["operator"], row["case"].get("implementation")): row["operators"] for row in measured}
    assert operators["gelu", "operator by operator"] == 9
    assert operators["softmax", "operator by operator"] == 5
    assert operators["gelu", "torch's gelu"] == operators["softmax", "torch's softmax"] == operators["relu", "torch's relu"] == 1
    assert skipped["gelu", "compiled"] == "at toy scale nothing is compiled"
    for name in (("gelu", "Triton"), ("gelu", "CUDA C++"), ("softmax", "Triton, in blocks"), ("relu", "Triton"), ("matmul", "tf32")):
        assert "an NVIDIA GPU" in skipped[name]
    for name in cases.split(","):
        assert f"\n{name} " in "\n" + done.stdout
    with Image.open(picture) as drawn:
        assert drawn.size[0] > 800


INTERPRETED = """
import json
import torch
from lab import gelu, relu, softmax

cpu = torch.device("cpu")
x = gelu.with_extremes(40, cpu)
sizes = (36, 4096, 4100)  # bytes: less than a program, a program's, more
errors = {"gelu": gelu.error(gelu.by_triton(x), x)}
errors |= {f"relu {size}": relu.error(relu.by_triton(y), y) for size in sizes for y in [relu.with_extremes(size, cpu)]}
for name, function in (("whole rows", softmax.by_whole_rows), ("in blocks", softmax.by_blocks)):
    for dtype in softmax.TYPES.values():
        for width in softmax.WIDTHS:
            x = softmax.with_extremes(11, width, cpu, dtype)
            errors[f"softmax {name}, {dtype}, {width}"] = softmax.error(function(x), x) / softmax.BOUNDS[dtype]
print(json.dumps(errors))
"""


def test_kernels_are_right_in_the_interpreter() -> None:
    environment = {**ENVIRONMENT, "TRITON_INTERPRET": "1", "PYTHONPATH": str(BENCHMARKS)}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert len(errors) == 1 + 3 + 2 * 2 * len(softmax.WIDTHS)
    assert errors.pop("gelu") <= gelu.BOUND
    assert {name: error for name, error in errors.items() if not error <= (0 if name.startswith("relu") else 1)} == {}


def test_kernels_compile_for_an_h200_with_wide_loads_and_without_spills() -> None:
    empty = torch.empty(1024, 16384, device="meta")
    size = {"grid": (1,), **ladder.OPTIONS}
    with compiling_for("9.0"):
        kernels = [
            gelu.gelu_kernel.warmup(empty, empty, empty.numel(), BLOCK=gelu.BLOCK, **size),
            softmax.whole_rows_kernel.warmup(empty, empty, *empty.shape, ROWS=1, BLOCK=16384, num_warps=softmax.warps(16384), **size),
            softmax.blocks_kernel.warmup(empty, empty, 16384, BLOCKS=4, BLOCK=4096, num_warps=softmax.warps(4096), **size),
        ]
    for kernel in kernels:
        assert "ld.global.v4.b32" in kernel.asm["ptx"]
        assert ".local" not in kernel.asm["ptx"]
        assert "ex2.approx" in kernel.asm["ptx"]


def tanh_that_overflows(x: Tensor) -> Tensor:
    power = torch.exp(2 * gelu.ROOT * (x + gelu.CUBIC * x * x * x))
    return 0.5 * x * (1 + (power - 1) / (power + 1))


def softmax_of_128_columns(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, :128] = torch.softmax(x[:, :128], 1)
    return y


WRONG: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "tanh from an exp that overflows": (gelu, tanh_that_overflows),
    "the other gelu": (gelu, torch.nn.functional.gelu),
    "gelu in half precision": (gelu, lambda x: gelu.by_operators(x.half()).float()),
    "no more than 128 columns": (softmax, softmax_of_128_columns),
    "no maximum": (softmax, lambda x: x.exp() / x.exp().sum(1, keepdim=True)),
    "columns, not rows": (softmax, lambda x: torch.softmax(x, 0)),
    "NaN becomes 0": (relu, lambda x: torch.where(x > 0, x, 0.0)),
    "one of many": (relu, lambda x: torch.relu(x).index_fill(0, torch.tensor([len(x) - 1]), 0.5)),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_gate_refuses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function = WRONG[name]
    monkeypatch.setattr(module, "IMPLEMENTATIONS", {name: Implementation(function)})
    kept = Results({}, [])
    with pytest.raises(RunError, match=f"no figures: .*{name}"):
        module.measure(TOY, kept)
    assert kept.rows == []


def test_the_gate_of_products_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "product", lambda a, b, tf32: a @ b.T)
    kept = Results({}, [])
    with pytest.raises(RunError, match="no figures: the product of 64 in float32"):
        matmul.measure(TOY, kept)
    assert kept.measured() == []


def test_products_that_round_to_tf32_pass_as_tf32_alone() -> None:
    a, b = ladder.normal((2, 256, 256), CPU)
    rounded = [(numbers.view(torch.int32) & ~0x1FFF).view(torch.float32) for numbers in (a, b)]  # towards 0, as the hardware does
    got = rounded[0] @ rounded[1]
    assert matmul.error(got, a, b, matmul.PRECISIONS["tf32"].eps) <= matmul.BOUND
    assert matmul.error(got, a, b, matmul.PRECISIONS["float32"].eps) > matmul.BOUND


def test_a_product_leaves_the_switch_of_tf32_as_it_was() -> None:
    matmul.product(*ladder.normal((2, 4, 4), CPU), tf32=True)
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_gate_of_gradients_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    train = mlp.train

    def rounded(model: mlp.Perceptron, loss: Any, steps: int) -> None:
        train(model, loss, steps)
        if model.layers[0].weight.dtype == torch.float32:
            model.layers[0].weight.grad = model.layers[0].weight.grad.bfloat16().float()

    monkeypatch.setattr(mlp, "train", rounded)
    kept = Results({}, [])
    with pytest.raises(RunError, match=r"no figures: .*eager is wrong"):
        mlp.measure(TOY, kept)
    assert kept.measured() == []


def test_shapes_vary_in_one_number_at_a_time() -> None:
    base = mlp.Shape(2, 3, 5, 7)
    assert mlp.varied(base, (2,)) == (base, mlp.Shape(4, 3, 5, 7), mlp.Shape(2, 6, 5, 7), mlp.Shape(2, 3, 10, 7), mlp.Shape(2, 3, 5, 14))


@pytest.mark.parametrize(
    ("got", "worst"), [([1.0, 2.0], 0), ([1.0, 2.5], 5), ([math.nan, 2.0], math.inf), ([1.0, math.inf], math.inf), ([1.5, 2.5], 5)]
)
def test_errors_are_in_units(got: list[float], worst: float) -> None:
    assert ladder.worst_error(torch.tensor(got), torch.tensor([1.0, 2.0]).double(), torch.tensor([0.25, 0.1]).double()) == pytest.approx(
        worst
    )


def test_what_has_no_value_must_have_none() -> None:
    exact = torch.tensor([math.nan, math.inf, 0.0]).double()
    unit = torch.tensor([math.nan, math.inf, math.nan]).double()
    assert ladder.worst_error(exact.float(), exact, unit) == 0
    for i, wrong in enumerate((0.0, math.nan, 1e-30)):
        got = exact.clone()
        got[i] = wrong
        assert ladder.worst_error(got, exact, unit) == math.inf


@pytest.mark.parametrize("module", [gelu, softmax, relu, matmul, mlp])
def test_what_does_not_fit_is_marked(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "available_bytes", lambda device: 100)
    kept = Results({}, [])
    module.measure(TOY, kept)
    assert not kept.works
    assert kept.rows
    assert {row["status"] for row in kept.rows} == {"not run"}
    assert any("and 0.0 GB are free" in row["why"] for row in kept.rows)


def test_the_published_sizes_are_measured() -> None:
    assert 16384 in gelu.SIDES["full"]
    assert (16384, 16384) in softmax.SHAPES["full"]
    assert mlp.Shape(64, 2048, 1024, 2) in mlp.SHAPES["full"]


@pytest.mark.parametrize(
    ("figure", "text"),
    [(None, ""), (0, "0"), (12345, "12,345"), (0.0, "0"), (1.2345, "1.23"), (123.45, "123"), (12345.6, "12,346"), (1e-5, "1.00e-05")],
)
def test_numbers_are_short(figure: float | None, text: str) -> None:
    assert fusion_lab.number(figure) == text


def test_a_report_shows_figures_kernels_and_reasons() -> None:
    kept = Results({}, [])
    case = {"operator": "matmul", "size": 128, "precision": "float16"}
    times = {"wall_us": {"median": 9.87}, "events_us": {"median": 4.567}}
    kept.add(case, **times, flop_per_s=2e12, share_of_best=0.5, kernels={"k" * 80: 1, "split": 1}, special={"RCP": 2})
    for size in range(8):
        kept.not_run({**case, "size": size}, "it needs more")
    header, row, reason, *_ = fusion_lab.report("matmul", kept.rows).splitlines()
    assert header.split() == ["matmul", "events", "us", "wall", "us", "TFLOP/s", "of", "best", "kernel", "special"]
    assert row.split() == ["size", "128,", "float16", "4.57", "9.87", "2.00", "50%", "k" * 59 + "…", "+", "1", "RCP", "2"]
    assert reason.startswith("not run, since it needs more: size 0, float16;")
    assert reason.endswith("; and 2 more")


def test_programs_have_whole_warps() -> None:
    assert [softmax.warps(elements) for elements in (1, 512, 1024, 4096, 16384, 65536)] == [1, 1, 2, 8, 32, 32]
