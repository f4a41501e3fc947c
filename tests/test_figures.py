"""Every figure on the pages stands in the results, and the log keeps its form."""

import re
import subprocess
import sys
from pathlib import Path

import figures
import pytest
from harness import read_results

from physarum.errors import UsageError

ROOT = Path(__file__).parent.parent
LOG = (ROOT / "benchmarks" / "LOG.md").read_text()
ENTRIES = re.split(r"^## ", LOG, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_says_what_was_measured(page: Path) -> None:
    text = page.read_text()
    assert len(figures.MARK.findall(text)) >= 5
    assert figures.filled(text) == text


def test_a_figure_that_was_typed_in_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "README.md"
    right = figures.filled("takes <!-- figure ratio torch triton 8192x8192 --><!-- /figure --> times as long")
    page.write_text(re.sub("[0-9](?=<!-- /)", lambda digit: str((int(digit[0]) + 1) % 10), right))
    monkeypatch.setattr(figures, "PAGES", (page,))
    for words, code, after in ((["--check"], 1, page.read_text()), ([], 0, right), (["--check"], 0, right)):
        monkeypatch.setattr(sys, "argv", ["figures.py", *words])
        with pytest.raises(SystemExit) as ended:
            figures.main()
        assert ended.value.code == code
        assert page.read_text() == after
    assert "is now what was measured" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["nonsense", "ratio", "ratio torch triton 9x9", "ratio torch tritn 8192x8192", "reading 400x400"])
def test_a_figure_that_is_not_to_be_had_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="figure"):
        figures.filled(f"<!-- figure {name} -->1<!-- /figure -->")


def test_figures_are_rounded_to_what_counts() -> None:
    assert [figures.short(value) for value in (12345.6, 999.6, 123.4, 98.04, 9.876, 0.51234)] == [
        "12,346",
        "1,000",
        "123",
        "98.0",
        "9.88",
        "0.512",
    ]


def test_the_script_runs() -> None:
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "figures.py", "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").glob("*.jsonl")), ids=lambda path: path.stem)
def test_results_name_their_machine_and_commit_and_hold_measurements(path: Path) -> None:
    kept = read_results(path)
    machine = kept.head["machine"]
    assert re.fullmatch("[0-9a-f]{40}", machine["commit"])
    assert machine["torch"]
    assert machine["processor"]
    assert kept.measured()
    for row in kept.measured():
        for times in (row.get("wall_us"), row.get("events_us")):
            assert times is None or times["p10"] < times["p90"]
        assert row.get("host_launches") is None or row["host_launches"] > 0


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.splitlines()[0])
def test_the_log_keeps_its_form(entry: str) -> None:
    assert re.match(r"20\d\d-\d\d-\d\d: \S", entry)
    head = "| kernel | configuration | time | GB/s | registers | spills | occupancy |"
    assert entry.count(head) == 1
    rows = [line for line in entry.splitlines() if line.startswith("| ")]
    assert len(rows) >= 2
    assert all(line.count("|") == head.count("|") for line in rows)
    assert re.findall(r"^- (Prediction|Outcome|Conclusion): \S", entry, re.MULTILINE) == ["Prediction", "Outcome", "Conclusion"]


def test_the_log_is_in_order_of_time_and_keeps_what_failed() -> None:
    dates = [entry[:10] for entry in ENTRIES]
    assert dates == sorted(dates)
    assert "Not kept" in LOG
