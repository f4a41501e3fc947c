"""The lab's variants of the step: their machine code, compiled without a GPU, and what they compute, in Triton's interpreter."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Results
from lab import step
from lab.settings import Settings

from physarum import UsageError
from physarum.backends.kernels import functions, launched
from physarum.model.start import random_start
from physarum.model.world import World, as_worlds

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
CPU = torch.device("cpu")

# All of it, with the interpreter in the GPU's place and little to do. It knows neither the approximate instructions nor FMA.
INTERPRETED = """
import json
from functools import partial

import harness
import torch
import worlds
from lab import step
from lab.settings import Settings
from physarum.errors import RunError

for name in ("polynomial with FMA", "approximate", "approximate with FMA"):
    del step.VARIANTS[name]
step.SIZES = {"toy": (16, 16)}
step.COMPARED_AFTER, step.SORT_EVERY, step.STEPS_A_LAUNCH, step.TURNS = (1, 2), 1, (1, 3), 40
worlds.GATE_STEPS = 2
worlds.developed = partial(worlds.developed, steps=2)
step.TritonBackend.missing = classmethod(lambda *_: None)
kept = harness.Results({}, [])
settings = Settings(torch.device("cpu"), 3, "toy", 1e10)
step.measure(settings, kept)

step.VARIANTS["polynomial"] = step.VARIANTS["libm"]
try:
    step.measure_differing(settings.device, (16, 16), harness.Results({}, []))
    refused = None
except RunError as error:
    refused = str(error)

spiral = step.Motor(step.newton, (16, 16), "cpu")
spiral.heading = tuple(1.01 * part for part in spiral.heading)
spiral.advance()
print(json.dumps({
    "rows": kept.rows, "works": len(kept.works), "cases": step.cases_on_a_gpu((16, 16)),
    "refused": refused, "spiral": spiral.length_error(),
}))
"""


@pytest.fixture(scope="module")
def offline() -> dict[tuple[str, str], Any]:
    """The rows of machine code, by implementation and kernel."""
    kept = Results({}, [])
    step.measure_machine_code(CPU, kept)
    return {(row["case"]["implementation"], row["case"]["kernel"]): row for row in kept.rows}


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    """What the script above has found."""
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        cwd=BENCHMARKS,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def figures(found: dict[str, Any], part: str, name: str) -> dict[str, Any]:
    """The figures of an implementation by case, which must have been measured."""
    rows = {json.dumps(row["case"]): row for row in found["rows"] if (row["case"]["part"], row["case"]["implementation"]) == (part, name)}
    assert rows
    assert {row["status"] for row in rows.values()} == {"measured"}
    return rows


# Machine code


def test_only_contraction_fuses_products_and_sums(offline: dict[tuple[str, str], Any]) -> None:
    for kernel in ("sense+motor", "diffuse+decay"):
        assert offline["polynomial", kernel]["fused"] == 0
        assert offline["polynomial with FMA", kernel]["fused"] > 20
        assert offline["polynomial with FMA", kernel]["instructions"] < offline["polynomial", kernel]["instructions"]
    assert offline["approximate", "sense+motor"]["fused"] == 0
    assert offline["approximate with FMA", "sense+motor"]["fused"] > 0


def test_each_direction_is_the_one_that_its_name_says(offline: dict[tuple[str, str], Any]) -> None:
    special = {name: offline[name, "sense+motor"]["special"] for name in step.VARIANTS}
    for name in ("approximate", "approximate with FMA"):
        assert special[name]["SIN"] == special[name]["COS"] == 4 * 2, "three sensors and a move of the two agents that a thread has"
    for name in ("polynomial", "polynomial with FMA", "libm"):
        assert not {"SIN", "COS", "RSQ"} & special[name].keys()
    instructions = {name: offline[name, "sense+motor"]["instructions"] for name in step.VARIANTS}
    assert instructions["approximate"] < instructions["polynomial"] < instructions["libm"]


def test_each_factor_is_the_one_that_its_name_says(offline: dict[tuple[str, str], Any]) -> None:
    special = {name: offline[name, "motor"]["special"] for name in step.MOTORS}
    assert special["unit vector by rsqrt"] == {"RSQ": 2}
    assert special["unit vector by square root and division"].keys() == {"RSQ", "RCP"}, "where exact ones begin"
    for name in ("binary angle", "unit vector not renormalised", "unit vector by Newton step"):
        assert special[name] == {}
    instructions = {name: offline[name, "motor"]["instructions"] for name in step.MOTORS}
    assert instructions["unit vector not renormalised"] < instructions["unit vector by rsqrt"] < instructions["binary angle"]


def test_nothing_spills_but_libm_which_has_a_table(offline: dict[tuple[str, str], Any]) -> None:
    assert all(0 < row["registers"] <= 80 for row in offline.values())
    assert {name for (name, _), row in offline.items() if row["stack"]} <= {"libm"}


def test_the_simulators_own_kernels_are_left_alone() -> None:
    for variant in step.VARIANTS.values():
        assert variant.of(launched.deposit_kernel) is not launched.deposit_kernel
        assert variant.of(launched.sense_motor_kernel).fn.__globals__["sense"].fn.__globals__["direction"] is variant.direction
    assert launched.sense_motor_kernel.fn.__globals__["sense"] is functions.sense
    assert functions.sense.fn.__globals__["direction"] is functions.direction


# Without a GPU


def test_without_a_gpu_all_but_machine_code_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # so that machine code cannot be had, either
    kept = Results({}, [])
    step.measure(Settings(CPU, 3, "toy", 1e10), kept)
    assert not kept.works
    assert kept.measured() == []
    reasons = {row["case"]["part"]: row["why"] for row in kept.rows}
    assert "TRITON_INTERPRET" in reasons.pop("machine code")
    assert set(reasons.values()) == {"it needs an NVIDIA GPU: none is visible here"}
    cases = [json.dumps(row["case"]) for row in kept.rows]
    assert len(set(cases)) == len(cases)


def test_what_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step.TritonBackend, "missing", lambda _: None)
    assert step.lacking(CPU, step.SIZES["toy"]) is None
    assert "the run needs about" in str(step.lacking(CPU, (2**20, 2**20)))


def test_machine_code_that_cannot_be_read_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "cuobjdump"
    tool.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "release 12.8" && exit\necho cuobjdump is ill >&2\nexit 255\n')
    tool.chmod(0o755)
    monkeypatch.setenv("TRITON_CUOBJDUMP_PATH", str(tool))
    with pytest.raises(UsageError, match=r"cannot read a kernel for the compute capability 9\.0: cuobjdump is ill$"):
        step.machine_code("polynomial", "sense+motor", "9.0")


def test_differing_counts_each_agent_once() -> None:
    a = random_start(as_worlds(World()), (16, 16), 30)
    assert step.differing(a, a) == (0, 0)
    x, heading, trail = a.x.clone(), a.heading.clone(), a.trail.clone()
    x[..., 3] += 1
    heading[..., 3:5] += 1
    trail[..., 7, :2] += 1
    assert step.differing(a, replace(a, x=x, heading=heading, trail=trail)) == (2, 2)


# What they compute


def test_all_that_is_planned_is_measured(interpreted: dict[str, Any]) -> None:
    rows = [row for row in interpreted["rows"] if row["case"]["part"] != "machine code"]
    assert sorted(json.dumps(row["case"]) for row in rows) == sorted(map(json.dumps, interpreted["cases"]))
    assert {row["status"] for row in rows} == {"measured"}
    timed = [row for row in rows if "wall_us" in row]
    assert len(timed) == interpreted["works"] == 2 * 2 + 2 * 5
    assert all(math.isclose(row["roof_share"], row["bytes"] / row["wall_us"]["median"] / 1e4) for row in timed)


def test_the_polynomial_is_nearer_than_libm_at_a_rounded_angle(interpreted: dict[str, Any]) -> None:
    errors = {name: next(iter(figures(interpreted, "direction", name).values()))["greatest_error"] for name in ("polynomial", "libm")}
    assert 5e-8 < errors["polynomial"] < 9e-8, "what physarum.model.angles says"
    assert errors["polynomial"] < errors["libm"] < 2.5e-7, "pi in float32 is wrong by 8.7e-8, and rounds to 2.4e-7"


def test_loading_kernels_again_changes_no_bit_and_another_direction_does(interpreted: dict[str, Any]) -> None:
    for row in figures(interpreted, "differing bits", "polynomial").values():
        assert (row["agents_differing"], row["cells_differing"]) == (0, 0)
    assert all(0 < row["agents_differing"] <= 256 for row in figures(interpreted, "differing bits", "libm").values())


def test_bits_that_differ_where_none_may_are_refused(interpreted: dict[str, Any]) -> None:
    assert interpreted["refused"].startswith("no figures: the kernels loaded again change")


def test_renormalising_keeps_vectors_at_length_one(interpreted: dict[str, Any]) -> None:
    errors = {name: next(iter(figures(interpreted, "length of directions", name).values()))["greatest_error"] for name in step.MOTORS}
    adrift = errors.pop("unit vector not renormalised")
    assert all(0 < error < 1.5e-7 < 2 * 1.5e-7 < adrift < 1e-5 for error in errors.values()), errors
    assert 1e-4 < interpreted["spiral"] < 2e-4, "Newton's step squares the error: 1.5 * 0.01 ** 2"
