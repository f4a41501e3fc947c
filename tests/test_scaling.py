"""Curves are fitted rightly, and the sweeps keep what they measure."""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import fits
import harness
import numpy as np
import pytest
import scaling
import torch
from fits import contains, fit, fit_all, not_told_apart
from PIL import Image

from physarum.errors import RunError

SIDES = np.array(scaling.PUBLISHED_SIDES, dtype=float)
SECONDS = np.array(scaling.PUBLISHED_SECONDS)
WIDE = np.array(scaling.SIDES, dtype=float)


def noisy(curve: np.ndarray, seed: int = 0, noise: float = 0.01) -> np.ndarray:
    return curve * (1 + noise * np.random.default_rng(seed).standard_normal(len(curve)))


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.459, 2.0, 3.0])
def test_known_curves_are_found(exponent: float) -> None:
    x = np.arange(1, 21) * 50.0
    for name, combined in (("power", np.add), ("larger", np.maximum)):
        found = fit(name, x, noisy(combined(90 * (x / 500) ** exponent, 40.0), noise=1e-4))
        assert found.b == pytest.approx(exponent, rel=5e-3)
        assert found.c == pytest.approx(40, rel=1e-2)
        assert found.a * 500**exponent == pytest.approx(90, rel=1e-2)
        assert found.crossing == pytest.approx(500 * (40 / 90) ** (1 / exponent), rel=2e-2)
        assert found.worst < 1e-3
        assert found.r2 > 0.999


def test_units_and_the_order_of_points_change_nothing_else() -> None:
    x, y = WIDE, noisy(30 + 1e-5 * WIDE**2)
    one, other = fit("power", x, y), fit("power", 10 * x[::-1], 1e6 * y[::-1])
    assert other.b == pytest.approx(one.b, rel=1e-4)
    assert other.b_interval == pytest.approx(one.b_interval, rel=1e-4)
    assert other.c_interval == pytest.approx([1e6 * end for end in one.c_interval], rel=1e-3)
    assert 10 * other.crossing == pytest.approx(100 * one.crossing, rel=1e-3)
    assert other.aicc == pytest.approx(one.aicc, rel=1e-6)


def test_a_line_has_the_intervals_of_the_textbook() -> None:
    x, y = np.arange(1.0, 11.0), noisy(5 + 2 * np.arange(1.0, 11.0), noise=0.02)
    design = np.stack([x / y, 1 / y], axis=1)
    values, squares, _, _ = np.linalg.lstsq(design, np.ones(10), rcond=None)
    errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * squares[0] / 8)
    found = fit("linear", x, y)
    for interval, value, error in zip((found.a_interval, found.c_interval), values, errors, strict=True):
        assert interval == pytest.approx([value - 2.306004 * error, value + 2.306004 * error], rel=1e-6)
    assert found.aicc == pytest.approx(10 * np.log(squares[0] / 10) + 6 + 24 / 6)
    assert found.r2 == pytest.approx(1 - np.sum((y - found.at(x)) ** 2) / np.sum((y - y.mean()) ** 2))


def test_quantiles_are_those_of_tables() -> None:
    found = [fits.student_quantile(freedom) for freedom in (1, 2, 5, 9, 30)]
    assert found == pytest.approx([12.7062, 4.3027, 2.5706, 2.2622, 2.0423], abs=1e-4)


@pytest.mark.parametrize(("name", "combined", "runs"), [("power", np.add, 300), ("larger", np.maximum, 100)])
def test_intervals_hold_the_truth_95_times_in_100(name: str, combined: Any, runs: int) -> None:
    x = np.arange(1, 13) * 50.0
    truth = {"a": 3e-4, "b": 1.6, "c": 2.0}
    curve = combined(truth["a"] * x ** truth["b"], truth["c"])
    held = dict.fromkeys(truth, 0)
    for seed in range(runs):
        found = fit(name, x, noisy(curve, seed, 0.02))
        for parameter, value in truth.items():
            held[parameter] += contains(getattr(found, f"{parameter}_interval"), value)
    slack = 3 * (0.95 * 0.05 / runs) ** 0.5
    assert all(abs(count / runs - 0.95) < slack for count in held.values()), held


@pytest.mark.parametrize(
    ("best", "curve"),
    [
        ("constant", 95 + 0 * WIDE),
        ("linear", 95 + 0.1 * WIDE),
        ("quadratic", 95 + 1e-5 * WIDE**2),
        ("power", 95 + 0.01 * WIDE**1.5),
        ("larger", np.maximum(95, 2e-4 * WIDE**1.6)),
    ],
)
def test_the_model_that_made_the_data_is_preferred(best: str, curve: np.ndarray) -> None:
    found = fit_all(WIDE, noisy(curve))
    assert next(iter(found)) == best
    assert [fit.aicc for fit in found.values()] == sorted(fit.aicc for fit in found.values())
    assert set(not_told_apart(found)) <= {best, "power"}  # which can be most of them


def test_flat_data_identify_no_exponent() -> None:
    found = fit_all(WIDE, noisy(95 + 0 * WIDE))
    assert None in (found["power"].b_interval or ())
    assert all(contains(found["power"].b_interval, b) for b in (1, 1.459, 2))
    assert 0 in (found["linear"].a, found["linear"].a_interval[0])


def test_no_part_is_negative() -> None:
    found = fit("linear", WIDE, 5 * WIDE - 100)
    assert found.c == 0
    assert found.c_interval[0] == 0
    assert fit("linear", WIDE, 100 - 5e-3 * WIDE).a == 0


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="5 points are too few"):
        fit_all(WIDE[[0, 1, 2, 3, 4, 4]], WIDE[[0, 1, 2, 3, 4, 4]])


def test_the_published_fit_is_found_in_the_published_points_and_no_better_than_others() -> None:
    found = fit_all(SIDES, SECONDS, relative=False)
    power = found["power"]
    assert (power.a, power.b, power.c) == pytest.approx((1.241e-4, 1.459, 0.260), rel=2e-3)
    assert [round(found[name].r2, 3) for name in ("power", "quadratic", "linear")] == [0.959, 0.944, 0.943]
    assert all(contains(power.b_interval, b) for b in (1, 2))
    del found["larger"]
    assert not_told_apart(found) == ["quadratic", "linear", "power"]


def curve(varied: str, x: np.ndarray, us: np.ndarray) -> scaling.Curve:
    made = scaling.Curve({"sweep": "any", "backend": "torch"}, varied, x, np.stack([us, 0.99 * us, 1.01 * us]))
    scaling.keep_fits(made, harness.Results({}, []))
    return made


def test_answers_about_the_side() -> None:
    said = scaling.answers(curve("side", WIDE, noisy(np.maximum(95, 1200 * (WIDE / 2**14) ** 2))))
    assert "1.459? No: in max(a x^b, c) b is 1.9" in said["exponent"]
    assert "which holds 2;" in said["exponent"]
    assert "from side 8192 to 16384 the time grows as side^2.0" in said["exponent"]
    assert "from side 4,6" in said["fixed cost"]
    assert "measured" not in said["fixed cost"]
    flat = scaling.answers(curve("side", WIDE, noisy(95 + 0 * WIDE)))
    assert "There is none to be seen: AICc prefers c," in flat["exponent"]
    assert "nothing is seen to grow" in flat["fixed cost"]
    published = scaling.answers(curve("side", WIDE, noisy(95 + 0.01 * WIDE**1.459, noise=1e-3)))
    assert "1.459? It may be: in a x^b + c b is 1.4" in published["exponent"]
    assert "Why not 2?" in published["fixed cost"]
    assert "beyond the 16384 measured" in scaling.answers(curve("side", WIDE, noisy(95 + 1e-7 * WIDE**2, noise=1e-3)))["fixed cost"]


def test_answers_about_agents() -> None:
    agents = 2.0 ** np.arange(10, 29, 2)
    growing = scaling.answers(curve("agents", agents, 100 + 1e-5 * agents))["constant"]
    assert "No: 4194304 are the first that take more than 10 % above the p90 with 1024, 101 us: 141.9 us" in growing
    assert "from agents 10,000,000 on" in growing
    assert "As far as was measured, up to 268435456" in scaling.answers(curve("agents", agents, noisy(100 + 0 * agents)))["constant"]


def test_answers_about_steps() -> None:
    steps = np.arange(50.0, 1051, 50)
    line = scaling.answers(curve("steps", steps, noisy(90 * steps + 5000, noise=1e-3)))["linear"]
    assert "Yes" in line
    assert "a line has 89.96 us a step" in line
    assert "Not quite" in scaling.answers(curve("steps", steps, noisy(90 * steps**1.2, noise=1e-3)))["linear"]


TOY = {
    "published-steps": scaling.Sweep("steps", tuple(scaling.Point(16, 50, steps) for steps in (2, 4, 6, 8, 10, 12, 14))),
    "wide-side": scaling.Sweep("side", tuple(scaling.Point(side, 50) for side in (16, 18, 20, 22, 24, 26, 28, 999))),
    "wide-both": scaling.Sweep("side", (scaling.Point(16, 256),)),
}


def toy_arguments(**others: Any) -> argparse.Namespace:
    usual = dict.fromkeys(("backends", "largest_agents", "json", "plot", "compare"))
    return argparse.Namespace(
        read=None,
        **usual | {"device": torch.device("cpu"), "trials": 3, "sweeps": list(TOY), "largest_side": 26, "largest_steps": 12} | others,
    )


def test_a_run_keeps_points_fits_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = toy_arguments(plot=tmp_path / "a.png")
    gated = []
    gate, too_large = scaling.gate, scaling.too_large
    monkeypatch.setattr(scaling, "sweeps", lambda _: TOY)
    monkeypatch.setattr(
        scaling, "gate", lambda names, device, size, agents: (gated.append((size, agents)), gate(names, device, size, agents))
    )
    monkeypatch.setattr(
        scaling, "too_large", lambda name, device, size, agents: "too large" if size[0] == 26 else too_large(name, device, size, agents)
    )
    with harness.results("scaling", arguments, tmp_path / "a.jsonl") as kept:
        scaling.benchmark(arguments, kept)
    read = harness.read_results(tmp_path / "a.jsonl")
    points = [row for row in read.rows if "steps" in row["case"]]
    assert gated == [((16, 16), 50), *(((side, side), 50) for side in (18, 20, 22, 24)), ((16, 16), 256)], "once a world"
    not_run = [(row["case"]["size"], row["case"]["steps"], row["why"]) for row in points if row["status"] == "not run"]
    assert not_run == [
        ("16x16", 14, "beyond --largest-steps 12"),
        ("26x26", 8, "too large"),
        ("28x28", 8, "beyond --largest-side 26"),
        ("999x999", 8, "beyond --largest-side 26"),
    ]
    measured = [row for row in points if row["status"] == "measured"]
    assert [row["case"]["steps"] for row in measured if row["case"]["sweep"] == "published-steps"] == [2, 4, 6, 8, 10, 12]
    for row in measured:
        assert len(row["wall_us"]["samples"]) == 3
        assert row["us_a_step"]["p90"] == pytest.approx(row["wall_us"]["p90"] / row["case"]["steps"], abs=1e-4)
    steps = [row for row in measured if row["case"]["sweep"] == "published-steps"]
    found = fit_all([row["case"]["steps"] for row in steps], [row["us_a_step"]["median"] * row["case"]["steps"] for row in steps])
    kept_fits = {row["case"]["fit"]: row for row in read.rows if "fit" in row["case"] and row["case"]["sweep"] == "published-steps"}
    assert kept_fits.keys() == fits.MODELS.keys()
    assert kept_fits["linear"]["a"] == found["linear"].a
    few = next(row for row in read.rows if row["case"] == {"sweep": "wide-both", "backend": "torch", "fit": "all"})
    assert (few["status"], few["why"]) == ("not run", "1 points are too few: a fit needs 6")
    said = {(row["case"]["sweep"], row["case"]["answer"]) for row in read.rows if "answer" in row["case"]}
    assert said == {("published-steps", "linear"), ("published figure", "exponent"), ("published figure", "fixed cost")}
    out = capsys.readouterr().out
    assert "not run: wide-side, torch, size 28x28 to 999x999, agents 50, steps 8: beyond --largest-side 26\n" in out
    assert all(row["sentence"] in out for row in read.rows if "answer" in row["case"])
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] > 1000
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 100, "not blank"


def test_no_figures_without_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    def gate(names: list[str], device: torch.device, size: tuple[int, int], agents: int) -> None:
        if size == (18, 18):
            raise RunError("no figures")

    monkeypatch.setattr(scaling, "sweeps", lambda _: {"wide-side": TOY["wide-side"]})
    monkeypatch.setattr(scaling, "gate", gate)
    kept = harness.Results({}, [])
    with pytest.raises(RunError):
        scaling.benchmark(toy_arguments(), kept)
    assert not kept.measured()


def test_the_script_runs(tmp_path: Path) -> None:
    script = Path(scaling.__file__)
    words = ["--device", "cpu", "--trials", "3", "--sweeps", "wide-both", "--largest-side", "64", "--json", tmp_path / "a.jsonl"]
    done = subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    kept = harness.read_results(tmp_path / "a.jsonl")
    assert kept.head["benchmark"] == "scaling"
    assert kept.measured()[0]["case"] == {"sweep": "wide-both", "backend": "torch", "size": "64x64", "agents": 4096, "steps": 8}
    assert "gate: torch differs from torch, agents in reverse order, in 0 values" in done.stderr


def test_the_sweeps_are_those_announced() -> None:
    made = scaling.sweeps(16_384)
    assert {name: len(sweep.points) for name, sweep in made.items()} == dict(zip(scaling.NAMES, (21, 12, 10, 17, 10, 17), strict=True))
    assert all(a != b for sweep in made.values() for a, b in itertools.pairwise(sweep.points))
    assert (made["wide-agents"].points[0].agents, made["wide-agents"].points[-1]) == (1024, scaling.Point(4096, 1 << 28))
    assert made["wide-both"].points[-1] == scaling.Point(16_384, 1 << 28)
    assert {point.side for point in scaling.sweeps(1024)["wide-agents"].points} == {1024}


def test_times_are_fitted_once_more(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    head = {"benchmark": "scaling", "machine": {"commit": "kept"}}
    rows = [
        {"case": {"size": f"{side}x{side}", "agents": 5000, "sweep": "wide-side", "backend": "triton", "steps": 64}, "status": "measured",
         "us_a_step": dict.fromkeys(scaling.QUANTILES, max(90, 1e-6 * side**2) + side % 7 * 1e-3)}
        for side in scaling.SIDES
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, *rows, {"case": {"answer": "antique"}, "status": "computed"})))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--device", "cpu", "--read", str(path), "--json", str(path)])
    scaling.main()
    kept = harness.read_results(path)
    assert kept.head == head
    assert kept.measured() == rows
    assert "antique" not in path.read_text()
    said = next(row["sentence"] for row in kept.rows if row["case"] == {"sweep": "wide-side", "backend": "triton", "answer": "exponent"})
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(("largest", "said"), [(16_384, "No: in max(a x^b, c)"), (2048, "The data do not tell, since what grows")])
def test_an_exponent_needs_points_where_time_grows(largest: int, said: str) -> None:
    sides = WIDE[largest >= WIDE]
    assert said in scaling.answers(curve("side", sides, noisy(np.maximum(90, 5e-5 * sides**2))))["exponent"]
