"""Traces that we record: the file opens everywhere and is there whole or not at all, and what is told of it is what happened."""

import dataclasses
import gzip
import importlib
import io
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases import differing, full_disk
from test_cli import Called, Caller, process, refused
from test_trace_reader import raw
from torch.profiler import ProfilerActivity, record_function

from physarum import Params, RunError, Simulation, UsageError, World, __version__, cli, runner
from physarum.backends import BACKENDS
from physarum.backends.torch_backend import TorchBackend
from physarum.profiling import report, session
from physarum.profiling.reader import Cost, Count, Step, Trace, events_in, read_trace, trace_of
from physarum.profiling.session import nested, recording, without_tracing
from physarum.runner import Runner

SIZE, AGENTS = (64, 48), 300
SMALL = ("--size", "64x48", "--agents", "300")
TORCH = (*SMALL, "--backends", "torch", "--steps", "2")
ORDER = ("sense", "motor", "deposit", "diffuse", "decay")  # of the model
HOSTILE = 'd/we"ird na\\me.json.gz'
NO_GPU = "physarum: no GPU is used: the trace has labels, operators and the host's time, but no launches"


@pytest.fixture(scope="module", autouse=True)
def _without_gpu() -> Iterator[None]:
    """A process may record only once on a GPU, so these tests see none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Caller:
    """`physarum trace` in this process, in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Called:
        capsys.readouterr()
        code = cli.call(("trace", *arguments))
        return code, *capsys.readouterr()

    return call


class QuickBackend(TorchBackend):
    """In the place of the compiling one, where only its name matters."""

    name = "compile"
    bytes_per_agent = 52
    bytes_per_cell = 16


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> type[QuickBackend]:
    """`compile` compiles nothing in this test."""
    monkeypatch.setitem(BACKENDS, "compile", QuickBackend)
    return QuickBackend


def simulation(backend: str = "torch", **more: Any) -> Simulation:
    return Simulation(World(seed=3), SIZE, AGENTS, backend=backend, device="cpu", **more)


def strict(text: str | bytes) -> dict[str, Any]:
    """JSON as the standard has it; broken numbers exactly as they are written."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found = json.loads(text, parse_constant=refuse, parse_float=Decimal)
    assert isinstance(found, dict)
    return found


def content(path: str | Path) -> dict[str, Any]:
    """What is in a trace, which is packed as its name says."""
    data = Path(path).read_bytes()
    assert data.startswith(b"\x1f\x8b") == str(path).endswith(".gz")
    data = gzip.decompress(data) if str(path).endswith(".gz") else data
    assert data.isascii()
    return strict(data)


def spans(events: Sequence[Mapping[str, Any]]) -> dict[Any, list[tuple[Decimal, Decimal, Mapping[str, Any]]]]:
    """Start, end and event of all spans by track, outer ones first."""
    tracks = defaultdict(list)
    for event in events:
        if event.get("ph") == "X":
            start = Decimal(event["ts"])
            tracks[event["pid"], event["tid"]].append((start, start + Decimal(event["dur"]), event))
    return {track: sorted(held, key=lambda span: (span[0], -span[1])) for track, held in tracks.items()}


def misplaced(events: Sequence[Mapping[str, Any]]) -> list[tuple[Any, str, str, Decimal]]:
    """Spans that end after one that they began in, with it and by how much; no number is rounded."""
    found = []
    for track, held in spans(events).items():
        open_spans: list[tuple[Decimal, str]] = []
        for start, end, event in held:
            open_spans = [(ends, name) for ends, name in open_spans if ends > start]
            found += [(track, event["name"], name, end - ends) for ends, name in open_spans if end > ends]
            open_spans.append((end, event["name"]))
    return found


def labels(events: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Each label after the names of those around it, in order of time; those of torch.compile are left out."""
    found = []
    for held in spans([event for event in events if event.get("cat") == "user_annotation" and "dynamo" not in event["name"]]).values():
        open_labels: list[tuple[Decimal, str]] = []
        for start, end, event in held:
            if "compile_id=" in event["name"]:
                continue
            open_labels = [*((ends, name) for ends, name in open_labels if ends > start), (end, event["name"])]
            found.append(tuple(name for _, name in open_labels))
    return found


def expected_labels(implementation: str, steps: Sequence[int], stages: Sequence[str] = ORDER, sorts: bool = False) -> list[tuple[str, ...]]:
    """What `labels` finds of steps of an implementation."""
    found: list[tuple[str, ...]] = [(implementation,)]
    for i, step in enumerate(steps):
        found.append((implementation, f"step {step}"))
        found += [(implementation, f"step {step}", stage) for stage in (*(("sort",) if sorts and i == 0 else ()), *stages)]
    return found


# The file


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """`physarum trace` of two backends, one of which really compiles: the only call that does."""
    torch._dynamo.reset()  # or another test may have compiled this size
    folder = tmp_path_factory.mktemp("compared")
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        code = cli.call(("trace", *SMALL, "--seed", "3", "--backends", "torch,compile", "--steps", "3", "-o", HOSTILE, "--json"))
    assert code == 0, err.getvalue()
    return SimpleNamespace(folder=folder, path=folder / HOSTILE, content=content(folder / HOSTILE), out=out.getvalue(), err=err.getvalue())


def test_a_trace_says_what_it_is_under_any_name(compared: SimpleNamespace) -> None:
    found = compared.content
    assert found["traceName"] == 'we"ird na\\me.json.gz'
    assert found["distributedInfo"]["rank"] == 0
    assert "host_name" not in found
    about = found["physarum"]
    assert (about["device"], about["size"], about["versions"]["physarum"]) == ("cpu", [64, 48], __version__)
    assert {"torch", "python", "platform"} <= about["versions"].keys()
    files = [path for path in compared.folder.rglob("*") if path.is_file()]
    assert files == [compared.path]


def test_no_span_ends_after_one_that_it_began_in(compared: SimpleNamespace) -> None:
    assert misplaced(compared.content["traceEvents"]) == []


def test_labels_are_implementation_step_and_stages_in_the_order_of_the_model(compared: SimpleNamespace) -> None:
    assert labels(compared.content["traceEvents"]) == [
        ("switch to torch",),
        *expected_labels("torch", (0, 1, 2)),
        ("switch to compile",),
        *expected_labels("compile", (3, 4, 5), sorts=True),
        *expected_labels("compile, whole step", (6, 7, 8), stages=()),
    ]


def test_what_is_traced_while_compiling_is_left_out_and_how_long_it_took_is_not(compared: SimpleNamespace) -> None:
    compiling = 0
    for held in spans([event for event in compared.content["traceEvents"] if event.get("cat") == "cpu_op"]).values():
        until = Decimal(0)
        for start, end, event in held:
            if event["name"].endswith("(dynamo_timed)"):
                compiling, until = compiling + 1, max(until, end)
            else:
                assert start >= until, event
    assert compiling > 0
    made = {made["name"]: made for made in strict(compared.out)["implementations"]}
    for name in ("compile", "compile, whole step"):
        assert made[name]["first_step"]["parts"]["compilation"] > 0
    assert made["torch"]["first_step"]["parts"]["compilation"] == 0
    assert 0 <= made["compile, whole step"]["step"]["operators"] < made["torch"]["step"]["operators"] / 4


def test_reading_the_file_gives_the_report_that_came_with_it(compared: SimpleNamespace, trace: Caller) -> None:
    code, out, err = trace("--read", str(compared.path), "--json")
    assert (code, err) == (0, "")
    told, read = strict(compared.out), strict(out)
    assert read.pop("file") == str(compared.path)
    assert told.pop("file") == HOSTILE
    for name in ("device", "size", "agents", "seed", "versions"):
        del told[name]
    assert told == read
    assert [step.number for step in read_trace(compared.path).steps] == list(range(9))


def test_stderr_tells_what_is_going_on(compared: SimpleNamespace) -> None:
    lines = compared.err.splitlines()
    assert lines[0] == NO_GPU
    assert [line for line in lines if line.endswith(" steps")] == ["physarum: torch: 3 steps", "physarum: compile: 3 steps"]
    assert all(line.startswith("physarum: ") for line in lines)


def test_a_compiling_backend_in_the_middle_of_a_run_changes_no_bit(compared: SimpleNamespace) -> None:
    """After `compared`, so that nothing is compiled again."""
    handed, alone = simulation(), simulation()
    hands = Runner(handed)
    hands.run(3)
    hands.switch("compile").run(2)
    hands.run(2, by_stage=False)
    hands.switch("torch").run(2)
    alone.run(9)
    assert differing(handed.state(), alone.state()) == {}


OPTIONS: dict[str, dict[str, bool]] = {
    "plain": {},
    "shapes": {"shapes": True},
    "memory": {"memory": True},
    "stack": {"stack": True},
    "all": {"shapes": True, "memory": True, "stack": True},
}


@pytest.fixture(scope="module", params=OPTIONS)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A session with such options."""
    options, path = OPTIONS[request.param], tmp_path_factory.mktemp("recorded") / "a.json"
    hands = Runner(Simulation(World(attraction=-0.5, seed=3), SIZE, AGENTS, backend="torch", device="cpu"))
    with hands.trace(path, **options) as made:
        hands.run(3)
    return SimpleNamespace(options=options, trace=made.trace, bytes=path.stat().st_size, events=content(path)["traceEvents"])


def test_what_else_is_recorded_changes_no_label_and_no_count(recorded: SimpleNamespace) -> None:
    assert labels(recorded.events) == expected_labels("torch", (0, 1, 2))
    (made,) = report.implementations(recorded.trace)
    assert (made.name, made.steps, list(made.stages)) == ("torch", 3, list(ORDER))
    assert made.whole.operators == sum(count.operators for count in made.stages.values()) > 100
    assert made.whole.host_time > max(count.host_time for count in made.stages.values()) > 0


def test_what_is_asked_for_is_recorded_and_no_more(recorded: SimpleNamespace) -> None:
    asked, events = recorded.options, recorded.events
    assert any("Input Dims" in event.get("args", {}) for event in events) == asked.get("shapes", False)
    assert any(event["name"] == "[memory]" for event in events) == asked.get("memory", False)
    assert any(event.get("cat") == "python_function" for event in events) == asked.get("stack", False)


def test_with_all_that_is_recorded_no_span_ends_after_one_that_it_began_in(recorded: SimpleNamespace) -> None:
    assert misplaced(recorded.events) == []


def test_a_step_takes_no_more_bytes_than_are_reckoned_with(recorded: SimpleNamespace) -> None:
    """The limit on steps rests on it."""
    bounds, asked = importlib.import_module("physarum.cli.trace"), recorded.options
    a_step = bounds.BYTES_A_STEP["torch"] + (bounds.STACK_BYTES_A_STEP if asked.get("stack") else 0)
    for extra, more in bounds.TIMES_THE_BYTES.items():
        a_step *= more if asked.get(extra) else 1
    assert recorded.bytes < 3 * a_step


@pytest.mark.parametrize("name", ["a\nb", "\x01\x1b[31m", "é ж 漢", "inf", "</script>", "it's", "a\\b", "{}[]:,"])
def test_whatever_a_label_says_the_file_is_strict_json(tmp_path: Path, name: str) -> None:
    with recording(tmp_path / "a.json"), record_function(name):
        torch.ones(3).add(1)
    found = [event["name"] for event in content(tmp_path / "a.json")["traceEvents"] if event.get("cat") == "user_annotation"]
    assert len(found) == 1
    if name.isascii() and name.isprintable() and "\\" not in name:  # the profiler changes others
        assert found == [name]


@pytest.mark.parametrize("name", ['say "hi"', '"', 'a": "b'])
def test_a_label_may_have_quotes(tmp_path: Path, name: str) -> None:
    with recording(tmp_path / "a.json") as recorded, record_function(name):
        torch.ones(3).add(1)
    found = [event["name"] for event in content(tmp_path / "a.json")["traceEvents"] if event.get("cat") == "user_annotation"]
    assert found == [name]
    assert recorded.trace is not None
    assert recorded.trace.total.operators == 2


@pytest.mark.parametrize(
    "name",
    ["plain.json", "packed.json.gz", "a\nb.json", "ü ж.json", os.fsdecode(b"\xff.json.gz"), ".json", "new/folder/a.json", "x.json.json"],
)
def test_any_name_of_a_file_will_do(tmp_path: Path, name: str) -> None:
    for path in (tmp_path / name, str(tmp_path / name)):
        with recording(path, about={"name": name}) as recorded:
            torch.ones(3).add(1)
        assert recorded.path == tmp_path / name
        found = content(tmp_path / name)
        assert (found["traceName"], found["physarum"]) == (Path(name).name, {"name": name})
        assert recorded.trace == read_trace(tmp_path / name)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]


@pytest.mark.parametrize("name", ["a.txt", "a", "a.gz", "a.json.zip", "", "json", "a.json/b"])
def test_a_name_of_another_kind_is_refused_before_anything_is_done(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"must end in \.json or \.json\.gz"), recording(tmp_path / name):
        pytest.fail("the block is not entered")
    assert os.listdir(tmp_path) == []


# Whole or not at all


def failing_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("physarum.files.os.fsync", fail)


@pytest.fixture(params=[False, True], ids=["new", "existing"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A name for a trace in a folder that is as it was when the test is over; so is the one for temporary files."""
    folder, temporary = tmp_path / "traces", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    path = folder / "a.json"
    if request.param:
        path.write_text("kept")
    yield path
    assert os.listdir(temporary) == []
    assert os.listdir(folder) == (["a.json"] if request.param else [])
    assert not request.param or path.read_text() == "kept"


@pytest.mark.parametrize("error", [ZeroDivisionError, UsageError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_nothing(target: Path, error: type[BaseException]) -> None:
    hands = Runner(simulation())

    def fail() -> None:
        hands.run(1)
        raise error

    with pytest.raises(error), hands.trace(target) as recorded:
        fail()
    assert recorded.trace is None
    with hands.launches() as recorded:  # and the next session is as good as ever
        hands.run(1)
    assert recorded.trace is not None
    assert [step.number for step in recorded.trace.steps] == [1]


def test_a_file_that_cannot_be_flushed_leaves_nothing(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_fsync(monkeypatch)
    with pytest.raises(RunError, match=r"cannot write .*a\.json: No space left on device"), recording(target):
        torch.ones(3).add(1)


@pytest.mark.parametrize("size", [0, 20_000])
def test_a_full_disk_is_a_failure_with_a_sentence_and_leaves_nothing(target: Path, size: int) -> None:
    hands = Runner(simulation())
    with pytest.raises(RunError) as failure, full_disk(size), hands.trace(target):
        hands.run(2)
    assert str(failure.value).isprintable()


def test_a_trace_that_is_too_large_is_not_written(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LARGEST_TRACE", 200_000)
    hands = Runner(simulation())
    words = r"^the trace has \d+ MB, more than the \d+ MB that Perfetto opens well: record fewer steps$"
    with pytest.raises(RunError, match=words), hands.trace(target):
        hands.run(2)


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises((RunError, UsageError), match=r"a\.json"), recording(tmp_path / "a.json"):
        torch.ones(3).add(1)
    assert os.listdir(tmp_path) == ["a.json"]
    assert os.listdir(tmp_path / "a.json") == []


# What is left out


def span(name: str, start: float, duration: float, category: str = "cpu_op", **track: Any) -> dict[str, Any]:
    return raw(category, name, start, duration, **track)


METADATA: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 1.5, "args": {"name": "python"}},
    {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "ts": "1", "args": {"labels": "CPU"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "x (dynamo_timed"}},
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 300},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 1, "tid": 1, "ts": 120},
]


def test_operators_without_values_are_left_out_and_all_else_is_kept() -> None:
    left_out = [
        span("aten::add", 100, 1),  # where compiling starts
        span("aten::mul", 120, 5),
        span("aten::mul", 121, 2),
        span("aten::add", 155, 1),  # after the inner span, within the outer
        span("aten::add", 199.999, 1),
        span("aten::sum", 310, 1),
    ]
    kept = [
        span("x (dynamo_timed)", 100, 100),
        span("y (dynamo_timed)", 110, 40),
        span("z (dynamo_timed)", 300, 20),
        span("cudaMalloc", 130, 2, "cuda_runtime"),
        span("cuModuleLoadData", 131, 2, "cuda_driver"),
        span("autotuned", 140, 2, "kernel", pid=1, tid=1),
        span("compile.py(3): f", 145, 2, "python_function"),
        span("Lazy Function Loading", 146, 2, "overhead"),
        span("step 0", 90, 400, "user_annotation"),
        span("aten::outer", 99, 200),
        span("aten::add", 120, 1, tid=2),  # another thread
        span("aten::add", 120, 1, pid=2),
        span("aten::add", 200, 1),  # where compiling has ended
        span("aten::add", 250, 1),
        span("aten::add", 320, 1),
        *METADATA,
    ]
    shuffled = [*kept, *left_out]
    random.Random(1).shuffle(shuffled)
    shuffled.sort(key=lambda event: not event["name"].endswith("(dynamo_timed)"))  # as the profiler has them: outer ones first
    found = without_tracing(shuffled)

    def in_order(events: list[dict[str, Any]]) -> list[str]:
        return sorted(json.dumps(event) for event in events)

    assert in_order(found) == in_order(kept)


@pytest.mark.parametrize("function", [without_tracing, nested])
def test_a_trace_without_spans_is_one(function: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    assert function([]) == []
    found = function([dict(event) for event in METADATA])
    assert sorted(found, key=str) == sorted(METADATA, key=str)


def test_spans_that_lie_within_each_other_or_apart_stay_as_they_are() -> None:
    events = [
        span("a", 0, 100),
        span("b", 0, 50),  # starts with it
        span("c", 50, 50),  # ends with it, and starts where the other one ends
        span("d", 60, 0),
        span("e", 100, 0),
        span("f", 100, 10),
        span("g", 100, 10),  # the same
        span("over", 90, 500, tid=2),
        span("over", 95, 10, pid=2),
        span("kernel", 99, 30, "kernel"),
        *METADATA,
    ]
    found = nested([dict(event) for event in events])
    assert found == events
    assert misplaced(found) == []


def test_a_span_that_ends_too_late_by_rounding_ends_with_the_one_that_it_began_in() -> None:
    events = [span("a", 0, 100), span("b", 10, 90.001), span("c", 20, 80.002), span("d", 100.0005, 1), span("a", 50, 70, tid=2)]
    found = {(event["name"], event["tid"]): event["dur"] for event in nested(events)}
    assert found == {("a", 1): 100, ("b", 1): 90, ("c", 1): 80, ("d", 1): 1, ("a", 2): 70}
    assert misplaced(events) == []


def test_cut_ends_are_exact_however_the_numbers_round() -> None:
    chance = random.Random(2)
    for _ in range(100):
        start, long = 5_199_529_423_999_555 + chance.randrange(10**9), chance.randrange(1000, 10**6)  # nanoseconds
        within = sorted(chance.sample(range(1, long), 3))
        late = [chance.choice([-1, 0, 1, 2]) for _ in within]
        times = [(start, long), *((start + begin, long - begin + more) for begin, more in zip(within, late, strict=True))]
        events = [span("abcd"[i], begin / 1000, duration / 1000) for i, (begin, duration) in enumerate(times)]
        found = strict(json.dumps({"events": nested(events)}))["events"]
        assert misplaced(found) == []
        assert max(abs(Decimal(e["dur"]) - Decimal(d) / 1000) for e, (_, d) in zip(found, times, strict=True)) < Decimal("0.01")


def test_a_label_outlives_the_python_frames_that_open_and_close_it() -> None:
    frame = "python_function"
    events = [
        span("runner.py(9): run", 0, 1000, frame),
        span("profiler.py(1): __enter__", 10, 20, frame),
        span("<built-in method _record_function_enter_new>", 15, 10, frame),
        span("torch", 20, 900, "user_annotation"),
        span("aten::add", 50, 10),
        span("profiler.py(2): __exit__", 900, 50, frame),
        span("<built-in method _record_function_exit>", 910, 20, frame),
    ]
    found = {event["name"]: event for event in nested(events)}
    assert (found["torch"]["ts"], found["torch"]["dur"]) == (20, 900)
    assert found["aten::add"]["dur"] == 10
    assert found["runner.py(9): run"]["dur"] == 1000
    assert misplaced(events) == []


# Sessions


class MadeUpProfiler:
    """Writes this text in the place of a trace."""

    def __init__(self, text: str | bytes) -> None:
        self.text = text.encode() if isinstance(text, str) else text
        self.options: dict[str, Any] = {}

    def __call__(self, **options: Any) -> "MadeUpProfiler":
        self.options = options
        return self

    def __enter__(self) -> "MadeUpProfiler":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_bytes(self.text)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine that says it has a GPU, whose profiler records nothing; the list has what was waited for."""
    waited: list[str] = []
    monkeypatch.setattr(session, "_recorded", False)
    monkeypatch.setattr(session, "profile", MadeUpProfiler('{"traceEvents": []}'))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: waited.append("GPU"))
    return waited


def test_a_process_records_once_on_a_gpu(gpu: list[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must end in"), recording(tmp_path / "a.txt", device="cuda"):
        pass
    with recording(tmp_path / "a.json", device="cuda") as recorded:  # what was refused was no session
        assert gpu == []
    assert recorded.trace == trace_of([])
    assert gpu == ["GPU"]
    assert ProfilerActivity.CUDA in session.profile.options["activities"]
    for path in (None, tmp_path / "b.json"):
        with pytest.raises(UsageError, match=r"already recorded a trace.*start a new process"), recording(path, device="cuda"):
            pytest.fail("the block is not entered")
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_session_that_failed_on_a_gpu_was_one(gpu: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), recording(device="cuda"):
        raise ZeroDivisionError
    with pytest.raises(UsageError, match="already recorded"), recording(device="cuda"):
        pytest.fail("the block is not entered")


def test_on_a_cpu_one_may_record_again_and_again() -> None:
    hands = Runner(simulation())
    found = []
    for _ in range(3):
        with hands.launches() as recorded:
            hands.run(2)
        found.append(recorded.trace)
    assert [[step.number for step in trace.steps] for trace in found] == [[0, 1], [2, 3], [4, 5]]
    assert len({trace.total.operators for trace in found}) == 1


SESSIONS = """
import threading
import torch
from physarum import UsageError
from physarum.profiling.session import recording

def another():
    try:
        with recording():
            print("recorded")
    except UsageError as error:
        print(error)

with recording() as outer:
    torch.ones(3).add(1)
    another()
    beside = threading.Thread(target=another)
    beside.start()
    beside.join()
    torch.ones(3).add(1)
assert outer.trace.total.operators == 4, outer.trace.total
print("the outer one is whole")
another()
"""


def test_a_session_while_another_one_records_is_refused() -> None:
    """By the same thread or another one."""
    ended = subprocess.run([sys.executable, "-c", SESSIONS], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    within, beside, *rest = ended.stdout.splitlines()
    assert "already recording" in within
    assert beside == within
    assert rest == ["the outer one is whole", "recorded"]


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents": [], "bandwidth": [NaN, Infinity, -Infinity]}',
        '{"traceEvents": [], "name": "a\x01b\n\t\x7f"}',
        b'{"traceEvents": [], "name": "caf\xe9 \xff\xfe"}',
        '{"traceEvents": [], "name": "\\ud800"}',
        '{"traceEvents": [], "distributedInfo": {"rank": 7}, "traceName": "/tmp/x"}',
    ],
)
def test_what_the_profiler_may_write_becomes_strict_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | bytes) -> None:
    monkeypatch.setattr(session, "profile", MadeUpProfiler(text))
    with recording(tmp_path / "a.json"):
        pass
    found = content(tmp_path / "a.json")
    assert (found["distributedInfo"]["rank"], found["traceName"]) == (0, "a.json")


@pytest.mark.parametrize("text", ["", '{"traceEvents": [', '{"bandwidth (GB/s)": inf, "traceEvents": []}', "[]", "{}"])
def test_what_cannot_be_made_strict_json_is_a_failure_with_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    monkeypatch.setattr(session, "profile", MadeUpProfiler(text))
    with pytest.raises(RunError), recording(tmp_path / "a.json"):
        pass
    assert os.listdir(tmp_path) == []


# The report


def counted(kernels: int, host: float = 10.0, operators: int = 0) -> Count:
    return Count(kernels, kernels, kernels, 0, operators, device_time=2.0 * kernels, host_time=host)


NO_PARTS = {"module loading": 0.0, "allocation": 0.0, "compilation": 0.0, "launching": 0.0, "rest": 0.0}


def made_step(implementation: str, number: int, host: float = 10.0, **kernels: int) -> Step:
    """A step with so many kernels in each stage; `_` stands for a plus."""
    stages = {stage.replace("_", "+"): counted(n, host / 4) for stage, n in kernels.items()}
    return Step(implementation, number, counted(sum(kernels.values()), host), stages, NO_PARTS)


FUSED = {"sense_motor": 1, "deposit": 1, "diffuse_decay": 1}


def made_trace(*steps: Step, unmatched: int = 0, costs: Sequence[Cost] = ()) -> Trace:
    return Trace(counted(sum(step.whole.kernels for step in steps), 1000.0), steps, unmatched, tuple(costs))


def test_an_implementation_is_its_first_step_and_the_median_of_the_later_ones() -> None:
    steps = [made_step("triton", i, host, **FUSED) for i, host in enumerate([900, 10, 12, 11, 400])]
    (made,) = report.implementations(made_trace(*steps))
    assert (made.name, made.steps, made.first, made.uneven) == ("triton", 5, steps[0], False)
    assert made.whole == counted(3, 11.5)
    assert made.stages == {"sense+motor": counted(1, 11.5 / 4), "deposit": counted(1, 11.5 / 4), "diffuse+decay": counted(1, 11.5 / 4)}


def test_a_single_step_is_its_own_median() -> None:
    step = made_step("torch", 7, 33, sense=4)
    (made,) = report.implementations(made_trace(step))
    assert (made.steps, made.first, made.whole, made.stages, made.uneven) == (1, step, step.whole, step.stages, False)


def test_implementations_come_in_order_of_time_and_their_steps_together() -> None:
    steps = [made_step(name, i, i, sense=1) for i, name in enumerate(["torch", "torch", "", "compile", "torch", "compile", "torch"])]
    made = report.implementations(made_trace(*steps))
    assert [(one.name, one.steps, one.first.number, one.whole.host_time) for one in made] == [
        ("torch", 4, 0, 4),
        ("", 1, 2, 2),
        ("compile", 2, 3, 5),
    ]
    assert report.implementations(made_trace()) == []


@pytest.mark.parametrize("stage", ["sort", "reset"])
def test_steps_with_a_stage_that_not_every_step_has_do_not_disturb_the_counts(stage: str) -> None:
    odd = {stage: 9, **FUSED}
    steps = [made_step("triton", i, 500 if i in (0, 3) else 10, **(odd if i in (0, 3) else FUSED)) for i in range(5)]
    trace = made_trace(*steps)
    (made,) = report.implementations(trace)
    assert (made.whole, made.uneven) == (counted(3, 10), False)
    assert list(made.stages) == ["sense+motor", "deposit", "diffuse+decay", stage]
    assert made.stages[stage].kernels == 9
    report.check(trace, {"triton": 3})


def test_a_good_trace_is_believed() -> None:
    torch_steps = [made_step("torch", i, sense=20, motor=10) for i in range(3)]
    triton_steps = [made_step("triton", 3 + i, **FUSED) for i in range(3)]
    report.check(made_trace(*torch_steps, *triton_steps), {"triton": 3})
    report.check(made_trace(), {"triton": 3})
    report.check(made_trace(made_step("triton", 0, **FUSED)), {"triton": 3})
    report.check(made_trace(made_step("triton", 0, **FUSED)), {"compile": 5})


def test_a_trace_that_has_lost_something_is_not_believed() -> None:
    steps = [made_step("triton", i, **FUSED) for i in range(4)]
    lossy = dataclasses.replace(steps[2], whole=dataclasses.replace(steps[2].whole, kernels=2, device_operations=2))
    few = [made_step("triton", i, sense_motor=1, deposit=1) for i in range(3)]
    for trace, words in (
        (made_trace(*steps, unmatched=2), "lost records: 2 launches and copies have no operation on the device"),
        (made_trace(*steps[:2], lossy, steps[3]), "lost records: it saw 2 kernels in step 2 of triton, which has 3"),
        (made_trace(*few), "saw 2 kernels in step 0 of triton, which has 3"),
    ):
        with pytest.raises(RunError, match=words):
            report.check(trace, {"triton": 3})


def test_later_steps_may_differ_only_where_something_was_changed_between_them() -> None:
    trace = made_trace(made_step("torch", 0, sense=1), made_step("torch", 1, sense=1), made_step("torch", 2, sense=2))
    report.check(trace, {"triton": 3})
    with pytest.raises(RunError, match="lost records: later steps of torch differ in what they launch"):
        report.check(trace, {"triton": 3}, alike=True)


def test_a_first_step_may_launch_what_later_ones_do_not() -> None:
    report.check(made_trace(*(made_step("compile", i, sense=9 if i == 0 else 2) for i in range(4))), {}, alike=True)


def test_a_single_step_that_resets_and_sorts_is_believed() -> None:
    report.check(made_trace(made_step("triton", 0, sort=9, reset=2, **FUSED)), {"triton": 3})
    report.check(made_trace(made_step("triton", 0, sort=9, reset=2, **FUSED), made_step("triton", 1, **FUSED)), {"triton": 3})


CORRELATIONS = itertools.count(1)


def made_events(name: str, start: float, slow: float, steps: int, on_gpu: bool, number: int = 0, **launches: int) -> list[dict[str, Any]]:
    """Steps of 100 us, the first of them slower by so many; each stage launches so many kernels of 3 us, or calls as many operators."""
    events = [raw("user_annotation", name, start, 100.0 * steps + slow)]
    for i in range(steps):
        begin = start + 100 * i + (slow if i else 0)
        events.append(raw("user_annotation", f"step {number + i}", begin, 100 + (0 if i else slow)))
        if slow and not i:
            events.append(raw("cuda_driver", "cuModuleLoadData", begin, slow, next(CORRELATIONS)))
        at = begin + (0 if i else slow)
        for stage, count in launches.items():
            events.append(raw("user_annotation", stage.replace("_", "+"), at, 10.5 * count))
            for k in range(count):
                correlation = next(CORRELATIONS)
                if on_gpu:
                    events.append(raw("cuda_runtime", "cudaLaunchKernel", at + 10 * k, 4, correlation))
                    events.append(raw("kernel", f"{stage}_kernel", at + 10 * k + 5, 3, correlation))
                else:
                    events.append(raw("cpu_op", f"aten::{stage}", at + 10 * k, 8))
            at += 10.5 * count
    return events


def comparison(on_gpu: bool) -> list[dict[str, Any]]:
    """Four steps of one implementation, then two of another."""
    return [
        *made_events("triton", 1000, 2345.6, 4, on_gpu, sense_motor=1, deposit=1, diffuse_decay=1),
        *made_events("torch", 10_000, 0, 2, on_gpu, number=4, sense=3, decay=2),
    ]


ON_GPU = """\
a step (median of the later ones)  launches  device ops  device us  host us
triton                                    3           3        9.0    100.0
  sense+motor                             1           1        3.0     10.5
  deposit                                 1           1        3.0     10.5
  diffuse+decay                           1           1        3.0     10.5
torch                                     5           5       15.0    100.0
  sense                                   3           3        9.0     31.5
  decay                                   2           2        6.0     21.0

the whole trace: 22 host launches, 0 of them of graphs, 22 device operations

cold start, host ms  later step  first step  = module loading  + launching  + rest
triton                     0.10        2.45              2.35         0.01    0.09
torch                      0.10        0.10              0.00         0.02    0.08

costliest on the device, later steps  in      calls   us  share
sense_kernel                          torch       3  9.0  21.4%
deposit_kernel                        triton      3  9.0  21.4%
diffuse_decay_kernel                  triton      3  9.0  21.4%
sense_motor_kernel                    triton      3  9.0  21.4%
decay_kernel                          torch       2  6.0  14.3%"""

ON_CPU = """\
no GPU in this trace: operators are counted instead of launches (compiled kernels are none), and time is the host's

a step (median of the later ones)  operators  host us
triton                                     3    100.0
  sense+motor                              1     10.5
  deposit                                  1     10.5
  diffuse+decay                            1     10.5
torch                                      5    100.0
  sense                                    3     31.5
  decay                                    2     21.0

the whole trace: 22 operators

cold start, host ms  later step  first step  = module loading  + rest
triton                     0.10        2.45              2.35    0.10
torch                      0.10        0.10              0.00    0.10

costliest on the host, later steps  in      calls    us  share
aten::sense                         torch       3  24.0  21.4%
aten::deposit                       triton      3  24.0  21.4%
aten::diffuse_decay                 triton      3  24.0  21.4%
aten::sense_motor                   triton      3  24.0  21.4%
aten::decay                         torch       2  16.0  14.3%"""


@pytest.mark.parametrize(("on_gpu", "text"), [(True, ON_GPU), (False, ON_CPU)], ids=["GPU", "CPU"])
def test_the_report_as_a_table(on_gpu: bool, text: str) -> None:
    assert report.as_table(trace_of(events_in(comparison(on_gpu)))).splitlines() == text.splitlines()


def test_the_report_of_nothing() -> None:
    lines = report.as_table(trace_of([])).splitlines()
    assert lines[0].startswith("no GPU in this trace")
    assert lines[-1] == "the whole trace: 0 operators"
    assert "no steps in this trace" in lines
    assert report.as_json(trace_of([]))["implementations"] == []


def test_long_names_are_cut_and_steps_of_nobody_are_called_steps() -> None:
    costs = [Cost("void k<" + "x" * 100, "kernel", 3, 6.0, "")]
    table = report.as_table(made_trace(made_step("", 0, **FUSED), costs=costs))
    assert max(map(len, table.splitlines())) < 110
    assert "void k<" + "x" * 50 + "...  -" in table
    assert any(line.startswith("steps ") for line in table.splitlines())


def test_operators_that_took_no_time_have_no_share() -> None:
    table = report.as_table(trace_of(events_in([span("aten::add", 0, 0)])))
    assert "aten::add" in table


def test_names_that_would_tear_the_table_are_escaped() -> None:
    found = [span("to\nrch\x1b[31m", 0, 50, "user_annotation"), span("step 0", 1, 9, "user_annotation"), span("aten::a\x1b[2J\ndd", 2, 3)]
    table = report.as_table(trace_of(events_in(found)))
    assert all(line.isprintable() for line in table.splitlines())
    assert "to\\nrch\\x1b[31m" in table


@pytest.mark.parametrize("on_gpu", [True, False], ids=["GPU", "CPU"])
def test_the_report_as_json_has_the_totals_on_top(on_gpu: bool) -> None:
    found = report.as_json(trace_of(events_in(comparison(on_gpu))))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    launches, operators = (22, 0) if on_gpu else (0, 22)
    assert found["host_launches"] == found["kernels"] == found["device_operations"] == launches
    assert found["graph_launches"] == 0
    assert (found["operators"], found["steps"], found["unmatched"], found["host_time"]) == (operators, 6, 0, 9200)
    assert found["device_time"] == 3 * launches
    by_stage = {"sense+motor": 4, "deposit": 4, "diffuse+decay": 4, "sense": 6, "decay": 4}
    assert found["per_stage"] == (by_stage if on_gpu else dict.fromkeys(by_stage, 0))
    triton, eager = found["implementations"]
    assert (triton["name"], triton["steps"], triton["step"]["host_launches"]) == ("triton", 4, 3 if on_gpu else 0)
    assert triton["first_step"]["host_time"] == pytest.approx(2445.6)
    assert sum(triton["first_step"]["parts"].values()) == pytest.approx(2445.6)
    assert (eager["name"], eager["steps"], list(eager["stages"])) == ("torch", 2, ["sense", "decay"])
    assert eager["stages"]["sense"]["kernels"] == (3 if on_gpu else 0)
    assert [cost["calls"] for cost in found["costliest"]] == [3, 3, 3, 3, 2]


def test_only_so_many_of_the_costliest_are_shown() -> None:
    costs = [Cost(f"kernel {i}", "kernel", 1, 30.0 - i, "torch") for i in range(30)]
    trace = made_trace(made_step("torch", 0, sense=30), costs=costs)
    assert [cost["name"] for cost in report.as_json(trace)["costliest"]] == [f"kernel {i}" for i in range(report.COSTLIEST)]
    table = report.as_table(trace)
    assert ("kernel 9 " in table, "kernel 10 " in table) == (True, False)
    assert f"{30 / sum(cost.time_us for cost in costs):.1%}" in table, "of all costs, not of those that are shown"


# The runner


def test_switching_in_the_middle_of_a_run_changes_no_bit(quick: type[QuickBackend]) -> None:
    handed, alone = simulation(), simulation()
    hands = Runner(handed)
    hands.run(2)
    assert hands.switch("compile") is hands
    assert handed.backend == "compile"
    hands.run(3, by_stage=False)
    hands.switch("compile").run(1)
    hands.switch("torch").run(2)
    hands.run(0)
    alone.run(8)
    assert handed.step == 8
    assert differing(handed.state(), alone.state()) == {}


def test_steps_are_counted_on_through_switches(quick: type[QuickBackend]) -> None:
    hands = Runner(simulation())
    hands.run(5)
    with hands.launches() as recorded:
        hands.run(2)
        hands.switch("compile").run(2)
        hands.run(1, by_stage=False)
        hands.switch("torch").run(1)
    assert recorded.trace is not None
    assert [(step.implementation, step.number, list(step.stages)) for step in recorded.trace.steps] == [
        ("torch", 5, list(ORDER)),
        ("torch", 6, list(ORDER)),
        ("compile", 7, list(ORDER)),
        ("compile", 8, list(ORDER)),
        ("compile, whole step", 9, []),
        ("torch", 10, list(ORDER)),
    ]


@pytest.mark.parametrize(("backend", "words"), [("tritn", "did you mean triton?"), ("triton", "needs an NVIDIA GPU"), ("", "no backend")])
def test_a_switch_to_what_is_not_there_leaves_the_world_where_it_stood(backend: str, words: str) -> None:
    sim, alone = simulation(), simulation()
    hands = Runner(sim)
    with hands.launches() as recorded:
        hands.run(1)
        before = sim.state()
        with pytest.raises(UsageError, match=words.replace("?", r"\?")):
            hands.switch(backend)
        assert differing(sim.state(), before) == {}
        assert sim.backend == "torch"
        hands.run(1)
    alone.run(2)
    assert differing(sim.state(), alone.state()) == {}
    assert recorded.trace is not None
    assert [(step.implementation, step.number) for step in recorded.trace.steps] == [("torch", 0), ("torch", 1)]


def test_a_backend_that_cannot_take_the_world_over_leaves_it_where_it_stood(
    quick: type[QuickBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: QuickBackend, *arguments: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(quick, "load", fail)
    sim, alone = simulation(), simulation()
    hands = Runner(sim)
    hands.run(1)
    with pytest.raises(torch.OutOfMemoryError):
        hands.switch("compile")
    hands.run(1)
    alone.run(2)
    assert (sim.backend, differing(sim.state(), alone.state())) == ("torch", {})


def test_counting_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hands = Runner(simulation())
    with hands.launches() as recorded:
        hands.run(2)
        assert (recorded.path, recorded.trace) == (None, None)
    assert isinstance(recorded.trace, Trace)
    assert recorded.trace.total.host_launches == recorded.trace.total.device_operations == 0
    assert recorded.trace.total.operators > 400
    assert os.listdir() == []


def test_a_recording_has_its_counts_when_the_block_has_ended(tmp_path: Path) -> None:
    hands = Runner(simulation())
    with hands.trace(tmp_path / "a.json") as recorded:
        assert recorded.trace is None
        assert os.listdir(tmp_path) == []
    assert recorded.path == tmp_path / "a.json"
    assert recorded.trace is not None
    assert recorded.trace.steps == ()
    assert content(tmp_path / "a.json")["physarum"]["size"] == [64, 48]


def test_steps_bear_the_name_of_the_backend_that_auto_hands_over_to(quick: type[QuickBackend], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("physarum.backends.EAGER_SECONDS", {"cpu": (1.0, 0.0, 0.0)})
    monkeypatch.setattr("physarum.backends.STARTING_SECONDS", {"cpu": {"compile": 2.0}})
    advanced = []
    for kind in (TorchBackend, QuickBackend):
        monkeypatch.setattr(kind, "_advance_once", watched(kind, advanced))
    hands = Runner(simulation("auto"))
    with hands.launches() as recorded:
        hands.run(4)
    assert recorded.trace is not None
    assert len(recorded.trace.steps) == 4
    assert [step.implementation for step in recorded.trace.steps] == advanced


def watched(kind: type[TorchBackend], advanced: list[str]) -> Callable[..., None]:
    """How such a backend makes a step, which it notes."""
    advance = kind._advance_once

    def noted(self: TorchBackend, *arguments: Any) -> None:
        if type(self) is kind:
            advanced.append(self.name)
        advance(self, *arguments)

    return noted


@pytest.mark.parametrize("steps", [-1, 2.5, "3", math.nan])
@pytest.mark.parametrize("by_stage", [True, False])
def test_a_number_of_steps_that_cannot_be_is_refused(steps: Any, by_stage: bool) -> None:
    hands = Runner(simulation())
    with pytest.raises(UsageError, match="steps is"):
        hands.run(steps, by_stage)
    assert hands.simulation.step == 0


def traced_on_gpu(monkeypatch: pytest.MonkeyPatch, path: Path, events: list[dict[str, Any]]) -> Trace:
    """What a runner makes of a trace of a GPU."""
    monkeypatch.setattr(session, "profile", MadeUpProfiler(json.dumps({"traceEvents": events})))
    monkeypatch.setattr(runner, "versions", lambda device: {})
    pretended: Any = SimpleNamespace(device=torch.device("cuda", 0), size=SIZE, agents=5, worlds=())
    with Runner(pretended).trace(path) as recorded:
        pass
    assert recorded.trace is not None
    return recorded.trace


def test_a_trace_of_a_gpu_is_checked(monkeypatch: pytest.MonkeyPatch, gpu: list[str], tmp_path: Path) -> None:
    trace = traced_on_gpu(monkeypatch, tmp_path / "a.json", comparison(on_gpu=True))
    assert trace == read_trace(tmp_path / "a.json")
    assert (trace.total.host_launches, trace.unmatched, len(trace.steps)) == (22, 0, 6)


@pytest.mark.parametrize(
    ("lost", "words"), [("decay_kernel", "lost records: 4 launches"), ("step 1", "4 kernels in step 1 of triton, which has 3")]
)
def test_a_trace_of_a_gpu_that_has_lost_something_is_a_failure_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, gpu: list[str], target: Path, lost: str, words: str
) -> None:
    events = [event for event in comparison(on_gpu=True) if event["name"] != lost]
    if lost == "step 1":  # a launch and its kernel more in one step
        events += [event for event in comparison(on_gpu=True) if event["name"] == lost]
        events += [raw("cuda_runtime", "cudaLaunchKernel", 3500, 1, 10**6), raw("kernel", "k", 3501, 1, 10**6)]
    with pytest.raises(RunError, match=words):
        traced_on_gpu(monkeypatch, target, events)


# The command line: names


def test_without_a_name_the_trace_takes_the_next_free_one(trace: Caller) -> None:
    Path("outputs/traces").mkdir(parents=True)
    Path("outputs/traces/step-1.json.gz").write_text("kept")
    for number in (2, 3):
        code, out, _ = trace(*TORCH)
        assert code == 0
        assert out.splitlines()[-1] == f"wrote outputs/traces/step-{number}.json.gz; open it in ui.perfetto.dev"
        assert content(f"outputs/traces/step-{number}.json.gz")["traceName"] == f"step-{number}.json.gz"
    assert Path("outputs/traces/step-1.json.gz").read_text() == "kept"
    assert sorted(os.listdir("outputs/traces")) == [f"step-{n}.json.gz" for n in (1, 2, 3)]


def test_an_existing_file_is_replaced_only_when_told_to(trace: Caller) -> None:
    Path("a.json").write_text("kept")
    refused(trace(*TORCH, "-o", "a.json"), "a.json exists: add --overwrite to replace it")
    assert Path("a.json").read_text() == "kept"
    for flag in ("-y", "--overwrite"):
        Path("a.json").write_text("replaced")
        assert trace(*TORCH, "--output", "a.json", flag)[0] == 0
        assert content("a.json")["traceName"] == "a.json"
    assert os.listdir() == ["a.json"]


REFUSED = {
    "-o a.txt": ("a.txt is no name for a trace: it must end in .json or .json.gz",),
    "-o a": ("a is no name for a trace",),
    "-o folder.json": ("folder.json is a folder",),
    "-o file/a.json": ("file/a.json cannot be written", "file is no folder"),
    "-o file/b/a.json": ("file/b/a.json cannot be written",),
    f"-o {'long' * 64}.json": ("longlong", "cannot be written"),
    "-o a.json -o b.json": ("-o", "multiple times"),
    "-o": ("-o", "requires an argument"),
    "--backends tritn": ("there is no backend 'tritn'", "did you mean triton?"),
    "--backends torch,compiel": ("there is no backend 'compiel'", "did you mean compile?"),
    "--backends torch,torch": ("backends is 'torch,torch': it must be names separated by commas, each once",),
    "--backends torch,compile,torch": ("names separated by commas, each once",),
    "--backends triton": ("the backend triton needs an NVIDIA GPU", "none is visible here"),
    "--backends torch,triton": ("the backend triton needs an NVIDIA GPU",),
    "--backends ,": ("backends is ','",),
    "--backends torch,": ("names separated by commas",),
    "--device cuda": ("the device cuda",),
    "--device gpu": ("there is no device 'gpu'",),
    "--steps 0": ("steps is 0: it must be a whole number from 1",),
    "--steps -1": ("steps is -1",),
    "--steps 2.5": ("steps is '2.5': it must be a whole number",),
    "--steps many": ("steps is 'many'",),
    "--steps 99999999999999999999": ("steps is 99999999999999999999",),
    "--seed x": ("seed is 'x'",),
    "--size 4x4": ("width is 4",),
    "--decay-rate nan": ("decay_rate is nan",),
    "--config missing.toml": ("there is no config missing.toml",),
    "--frobnicate": ("--frobnicate",),
    "--stac": ("--stac", "Did you mean --stack?"),
    "folder": ("folder",),
    "--read missing.json": ("there is no trace missing.json",),
    "--read .": ("there is no trace .", "no ordinary file"),
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_cannot_be_is_one_sentence_before_anything_runs(trace: Caller, monkeypatch: pytest.MonkeyPatch, arguments: str) -> None:
    monkeypatch.setattr(Runner, "run", lambda *arguments: pytest.fail("something runs"))
    Path("file").touch()
    Path("folder.json").mkdir()
    refused(trace(*arguments.split()), *REFUSED[arguments])
    assert sorted(os.listdir()) == ["file", "folder.json"]
    assert os.listdir("folder.json") == []


def test_a_default_name_that_cannot_be_written_is_refused_before_anything_runs(trace: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "run", lambda *arguments: pytest.fail("something runs"))
    Path("outputs").touch()
    refused(trace(*TORCH), "outputs is no folder")


def test_a_folder_that_may_not_be_written_is_refused_before_anything_runs(trace: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "run", lambda *arguments: pytest.fail("something runs"))
    monkeypatch.setattr("physarum.output.names.os.access", lambda path, mode: False)  # root may write anywhere
    refused(trace(*TORCH, "-o", "a.json"), "a.json cannot be written: this user may not write to")


def test_a_picture_that_cannot_be_read_is_refused_before_anything_is_said(trace: Caller) -> None:
    refused(trace(*TORCH, "--image", "missing.png"), "missing.png does not exist")
    assert os.listdir() == []


def test_an_input_is_never_overwritten(trace: Caller) -> None:
    Path("my.json").write_text("seed = 7\n")
    refused(trace(*TORCH, "--config", "my.json", "-o", "my.json", "-y"), "my.json", "input")
    assert Path("my.json").read_text() == "seed = 7\n"


@pytest.mark.parametrize("arguments", ["--backends auto", "--backends torch,auto", "--backends auto --steps 100000"])
def test_auto_is_nothing_to_compare(trace: Caller, monkeypatch: pytest.MonkeyPatch, arguments: str) -> None:
    monkeypatch.setattr(Runner, "run", lambda *arguments: None)
    refused(trace(*SMALL, *arguments.split()), "auto")
    assert os.listdir() == []


def test_what_cannot_be_made_or_written_is_a_failure_and_leaves_nothing(
    trace: Caller, quick: type[QuickBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiler_fails(self: QuickBackend, *arguments: Any) -> None:
        raise UsageError("torch.compile fails on this machine (x): use the torch backend")

    monkeypatch.setattr(quick, "advance", compiler_fails)
    code, out, err = trace(*SMALL, "--backends", "torch,compile", "--steps", "1")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == "physarum: torch.compile fails on this machine (x): use the torch backend"
    failing_fsync(monkeypatch)
    code, out, err = trace(*TORCH, "-o", "a.json")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == "physarum: cannot write a.json: No space left on device"
    assert os.listdir() == []


def test_a_full_disk_is_one_sentence(trace: Caller) -> None:
    with full_disk(20_000):
        code, out, err = trace(*TORCH, "-o", "a.json")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("physarum: ")
    assert os.listdir() == []


def test_ctrl_c_leaves_nothing(trace: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Runner.run

    def interrupted(self: Runner, steps: int, by_stage: bool = True) -> None:
        run(self, 1, by_stage)
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "run", interrupted)
    code, out, err = trace(*TORCH, "-o", "a.json")
    assert (code, out) == (130, "")
    assert all(line.startswith("physarum: ") for line in err.splitlines())
    assert os.listdir() == []


# The command line: how many steps


def most(called: Called) -> int:
    """How many steps the sentence says would fit."""
    words = refused(called, "steps is 100000: at most ", "MB").split()
    return int(words[words.index("most") + 1])


def test_too_many_steps_are_refused_before_anything_runs(trace: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "run", lambda *arguments: pytest.fail("something runs"))

    def fit(*arguments: str) -> int:
        return most(trace(*SMALL, "--steps", "100000", *arguments))

    found = {name: fit("--backends", name) for name in ("torch", "compile", "triton", "torch,compile", "torch,triton")}
    assert found["torch"] < found["compile"] < found["triton"] < 100_000
    assert 0 < found["torch,compile"] < found["torch,triton"] < found["torch"]
    assert 0 < fit() <= found["torch,compile"]
    for extra in ("--stack", "--shapes", "--memory"):
        assert 0 < fit("--backends", "torch", extra) < found["torch"]
    assert 0 < fit("--backends", "torch", "--stack", "--shapes", "--memory") < fit("--backends", "torch", "--shapes", "--memory")
    refused(trace(*SMALL, "--backends", "torch", "--steps", str(found["torch"] + 1)), f"at most {found['torch']} ")
    assert os.listdir() == []


def test_as_many_steps_as_are_said_to_fit_are_run(trace: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Runner, "run", lambda self, steps, by_stage=True: asked.append(steps))
    fits = most(trace(*SMALL, "--steps", "100000", "--backends", "torch"))
    assert trace(*SMALL, "--steps", str(fits), "--backends", "torch")[0] == 0
    assert asked == [fits]


def test_a_trace_that_grows_too_large_all_the_same_exits_with_1(trace: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LARGEST_TRACE", 100_000)
    monkeypatch.setitem(importlib.import_module("physarum.cli.trace").BYTES_A_STEP, "torch", 1)
    code, out, err = trace(*TORCH)
    assert (code, out) == (1, "")
    assert "that Perfetto opens well: record fewer steps" in err.splitlines()[-1]
    assert os.listdir() == []


def test_a_backend_that_does_not_fit_the_memory_is_refused_before_anything_runs(
    trace: Caller, quick: type[QuickBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = [backend.bytes_needed(1, 1, SIZE, AGENTS) for backend in (TorchBackend, QuickBackend)]
    monkeypatch.setattr("physarum.backends.memory.available_bytes", lambda device: sum(needed) // 2)
    monkeypatch.setattr(Runner, "run", lambda self, steps, by_stage=True: None)
    called = trace(*SMALL, "--backends", "compile,torch", "--steps", "1")
    assert called[0] == 2
    assert "are free" in called[2]
    assert os.listdir() == []


# The command line: what it does and prints


@pytest.fixture
def simulations(monkeypatch: pytest.MonkeyPatch) -> list[Simulation]:
    """What is handed to runners."""
    found: list[Simulation] = []
    begin = Runner.__init__

    def noted(self: Runner, simulation: Simulation) -> None:
        found.append(simulation)
        begin(self, simulation)

    monkeypatch.setattr(Runner, "__init__", noted)
    return found


def test_the_world_that_is_traced_is_the_one_that_was_asked_for(trace: Caller, simulations: list[Simulation]) -> None:
    code, out, _ = trace(
        *("--size", "80x56", "--agents", "1k", "--seed", "9", "--decay-rate", "0.25", "--attraction", "-0.3", "--steps", "3"),
        *("--backends", "torch", "--device", "cpu", "-o", "a.json", "--json"),
    )
    assert code == 0
    found = strict(out)
    assert (found["file"], found["device"], found["size"], found["agents"], found["seed"]) == ("a.json", "cpu", [80, 56], 1000, 9)
    assert found["versions"]["physarum"] == __version__
    assert (found["steps"], found["host_launches"], found["device_operations"]) == (3, 0, 0)
    assert found["operators"] > 0
    assert set(found["per_stage"]) == set(ORDER)
    (traced,) = simulations
    alone = Simulation(World((Params(decay_rate=0.25),), attraction=-0.3, seed=9), (80, 56), 1000, backend="torch", device="cpu")
    alone.run(3)
    assert differing(traced.state(), alone.state()) == {}


def test_a_config_is_obeyed_and_the_command_line_goes_over_it(trace: Caller, simulations: list[Simulation]) -> None:
    Path("my.toml").write_text("seed = 5\nsize = '32x40'\nagents = 200\ndecay_rate = 0.5\n")
    found = strict(trace("--config", "my.toml", "--agents", "77", "--backends", "torch", "--steps", "1", "--json")[1])
    assert (found["size"], found["agents"], found["seed"]) == ([32, 40], 77, 5)
    assert simulations[0].worlds[0].populations[0].decay_rate == 0.5
    refused(trace("--config", "my.toml", "--seed", "-1"), "seed is -1")
    Path("my.toml").write_text("sed = 5\n")
    refused(trace("--config", "my.toml"), "my.toml has the unknown key 'sed'", "did you mean")


def test_the_seed_is_always_told(trace: Caller) -> None:
    for seed in ("7", "random"):
        code, _, err = trace(*TORCH, "--seed", seed)
        assert code == 0
        (line,) = [line for line in err.splitlines() if line.startswith("physarum: seed ")]
        assert line.split()[-1] == "7" or seed == "random"


def test_all_that_the_machine_can_run_is_compared_unless_told_otherwise(trace: Caller, quick: type[QuickBackend]) -> None:
    code, out, err = trace(*SMALL, "--steps", "2", "--json")
    assert code == 0
    assert err.splitlines()[:2] == ["physarum: without triton, which needs an NVIDIA GPU: none is visible here", NO_GPU]
    assert [line for line in err.splitlines() if line.endswith(" steps")] == ["physarum: torch: 2 steps", "physarum: compile: 2 steps"]
    assert [made["name"] for made in strict(out)["implementations"]] == ["torch", "compile", "compile, whole step"]
    assert labels(content("outputs/traces/step-1.json.gz")["traceEvents"]) == [
        ("switch to torch",),
        *expected_labels("torch", (0, 1)),
        ("switch to compile",),
        *expected_labels("compile", (2, 3)),
        *expected_labels("compile, whole step", (4, 5), stages=()),
    ]


def test_backends_are_compared_in_the_order_in_which_they_are_named(trace: Caller, quick: type[QuickBackend]) -> None:
    code, out, _ = trace(*SMALL, "--steps", "1", "--backends", " compile , torch", "--json")
    assert code == 0
    found = strict(out)
    assert [made["name"] for made in found["implementations"]] == ["compile", "compile, whole step", "torch"]
    assert [made["steps"] for made in found["implementations"]] == [1, 1, 1]


def test_the_table_says_what_was_written(trace: Caller) -> None:
    code, out, err = trace(*TORCH, "-o", "a.json")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("no GPU in this trace: operators are counted instead of launches")
    assert [line.split()[0] for line in lines[3:8]] == ["torch", *ORDER[:4]]
    assert lines[-1] == "wrote a.json; open it in ui.perfetto.dev"
    assert f"{report.as_table(read_trace('a.json'))}\n" in out
    assert all(line.startswith("physarum: ") for line in err.splitlines())


def test_json_is_all_there_is_on_stdout(trace: Caller) -> None:
    code, out, _ = trace(*TORCH, "-o", HOSTILE, "--json")
    assert code == 0
    assert strict(out)["file"] == HOSTILE
    assert content(HOSTILE)["traceName"] == Path(HOSTILE).name


def test_with_stacks_the_backends_are_warmed_up_beforehand(trace: Caller) -> None:
    code, _, err = trace(*TORCH, "--stack", "-o", "a.json")
    assert code == 0
    assert len([line for line in err.splitlines() if "warmed up" in line]) == 1
    names = {event["name"] for event in content("a.json")["traceEvents"] if event.get("cat") == "user_annotation"}
    assert ("step 0" in names, "step 1" in names, "step 2" in names, "step 3" in names) == (False, True, True, False)
    assert "warmed up" not in trace(*TORCH, "-o", "b.json")[2]


def test_with_stacks_the_report_is_what_it_is_without(trace: Caller) -> None:
    plain, stacked = (strict(trace(*TORCH, *extra, "--json")[1]) for extra in ((), ("--stack",)))
    assert [made["name"] for made in stacked["implementations"]] == ["torch"]
    assert stacked["implementations"][0]["step"]["operators"] == plain["implementations"][0]["step"]["operators"]


# The command line: reading


def test_a_trace_that_was_recorded_elsewhere_is_read(trace: Caller) -> None:
    for name, data in (("a.json", WHOLE), ("b", gzip.compress(WHOLE))):
        Path(name).write_bytes(data)
        assert trace("--read", name) == (0, f"{ON_GPU}\n", "")
        code, out, err = trace("--read", name, "--json")
        assert (code, err) == (0, "")
        found = strict(out)
        assert (found["file"], found["host_launches"], found["kernels"], found["steps"]) == (name, 22, 22, 6)
    assert sorted(os.listdir()) == ["a.json", "b"]


WHOLE = json.dumps(comparison(on_gpu=True)).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x1f\x8b",
        WHOLE[:-5],
        gzip.compress(WHOLE)[:-9],
        b"\x89PNG\r\n\x1a\n\0\0",
        b"{}",
        b'{"traceEvents": 1}',
        b"[" * 10_000,
        WHOLE.replace(b"cudaLaunchKernel", b'cuda"Launch"Kernel'),
        json.dumps([span("k", 0, 1, "kernel") | {"ts": "soon"}]).encode(),
    ],
)
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["table", "json"])
def test_a_damaged_trace_is_one_sentence(trace: Caller, data: bytes, more: tuple[str, ...]) -> None:
    Path("a\nb.json").write_bytes(data)
    refused(trace("--read", "a\nb.json", *more), "a\\nb.json cannot be read as a trace: ")


@pytest.mark.parametrize("category", ["kernel", "cpu_op", "user_annotation"])
def test_times_beyond_all_measure_are_damage(trace: Caller, category: str) -> None:
    Path("a.json").write_text(json.dumps([span("step 1", 1e308, 1e308, category), span("aten::k", 0, 1e308, category)]))
    for more in ((), ("--json",)):
        refused(trace("--read", "a.json", *more), "a.json cannot be read as a trace: ")


def test_reading_and_help_need_no_pytorch(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(WHOLE)
    script = """
import sys
from physarum import cli
for words in (["trace", "--read", "a.json"], ["trace", "--read", "a.json", "--json"], ["trace", "--read", "b"], ["trace", "--help"]):
    print(cli.call(words), file=sys.stderr)
print(*sorted({"torch", "triton", "matplotlib", "av", "numpy"} & set(sys.modules)), file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = ended.stderr.splitlines()
    assert [line for line in lines if not line.startswith("physarum: ")] == ["0", "0", "2", "0", ""]
    for option in ("--backends", "--stack", "--read", "--json", "--decay-rate", "outputs/traces"):
        assert option in ended.stdout


# As a program of its own


@pytest.mark.parametrize("more", [(), ("--memory",)], ids=["plain", "memory"])
def test_nothing_but_our_sentences_is_on_stderr(tmp_path: Path, more: tuple[str, ...]) -> None:
    environment = {"PYTHONWARNINGS": "error::UserWarning"}
    running = process("trace", *TORCH, *more, "--json", environment=environment, cwd=tmp_path)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert strict(out)["file"] == "outputs/traces/step-1.json.gz"
    lines = err.decode().splitlines()
    assert [line for line in lines if not line.startswith("physarum: ")] == []
    assert NO_GPU in lines


INTERRUPTED = """
from physarum.cli import main
from physarum.runner import Runner

def interrupted(self, steps, by_stage=True):
    raise KeyboardInterrupt

Runner.run = interrupted
main()
"""


def test_the_exit_code_of_ctrl_c_is_130(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED, "trace", *TORCH], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert all(line.startswith("physarum: ") for line in ended.stderr.splitlines())
    assert os.listdir(tmp_path) == []


def test_a_session_in_a_thread_is_one(tmp_path: Path) -> None:
    hands = Runner(simulation())

    def record() -> None:
        with hands.trace(tmp_path / "a.json") as recorded:
            hands.run(2)
        assert recorded.trace is not None

    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    assert labels(content(tmp_path / "a.json")["traceEvents"]) == expected_labels("torch", (0, 1))


def test_options_in_a_config_that_a_trace_has_no_use_for_are_named(trace: Caller) -> None:
    Path("mine.toml").write_text('sensor_angle = 30\nsize = "32x24"\nevery = 3\nsteps = 900\n')
    code, _, err = trace("--config", "mine.toml", "--agents", "50", "--backends", "torch", "--steps", "1")
    assert code == 0
    assert "mine.toml: a trace has no use for every, steps" in err


def test_one_step_is_not_called_a_later_one() -> None:
    table = report.as_table(made_trace(made_step("triton", 0, **FUSED)))
    assert "later" not in table
    assert "a step (the only one, with its cold start)" in table


def test_a_trace_from_elsewhere_that_has_lost_something_is_reported_with_a_remark() -> None:
    events = [event for event in comparison(on_gpu=True) if event["name"] != "deposit_kernel"]
    assert "4 launches or copies have no operation on the device" in report.as_table(trace_of(events_in(events)))


def test_a_gpu_of_which_the_profiler_saw_nothing_is_not_believed() -> None:
    with pytest.raises(RunError, match="saw nothing of the GPU"):
        report.check(trace_of(events_in(comparison(on_gpu=False))), {})


def test_reading_goes_with_no_other_option(trace: Caller) -> None:
    Path("a.json").write_bytes(WHOLE)
    for more in (("--steps", "3"), ("--backends", "torch"), ("--seed", "1"), ("--shapes",), ("-o", "b.json")):
        refused(trace("--read", "a.json", *more), "read goes with --json alone")


def test_a_label_of_the_users_around_all_keeps_the_implementations_apart() -> None:
    hands = Runner(simulation())
    with hands.launches() as recorded, torch.profiler.record_function("experiment"):
        hands.run(2)
        hands.run(2, by_stage=False)
    assert recorded.trace is not None
    assert [made.name for made in report.implementations(recorded.trace)] == ["torch", "torch, whole step"]
