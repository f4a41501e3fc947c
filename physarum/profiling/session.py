"""Recording a trace: one profiler session a process, and one file that Perfetto opens.

Every session after the first of a process silently loses kernels (PyTorch's issue 192021), so there is no second one on a GPU.
"""

import gzip
import json
import os
import re
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from physarum.errors import RunError, UsageError
from physarum.files import shown, written_whole
from physarum.profiling.reader import COMPILER_SPAN, LABEL, OPERATOR, Trace, events_in, trace_of
from physarum.profiling.report import check

LARGEST_TRACE = 100_000_000  # bytes, unpacked; beyond that Perfetto's page grows slow, and at several times as much it fails
SUFFIXES = (".json", ".json.gz")
FRAME = "python_function"  # the category of Python's frames
ROUNDING = 1000  # nanoseconds by which what ends together may seem to end apart

_NAME = re.compile(r'^(\s*"name": ")(.*)(",?)$', re.MULTILINE)  # a line of the profiler's

_recorded = False  # whether this process has had its session on a GPU
_recording = threading.Lock()  # a second session at the same time ends the process in a fault of PyTorch's


@dataclass
class Recording:
    """A session.

    Attributes:
        path: The file it is written to, or None.
        trace: What was counted; None until the session has ended.
    """

    path: Path | None = None
    trace: Trace | None = None


@contextmanager
def recording(
    path: str | os.PathLike[str] | None = None,
    shapes: bool = False,
    memory: bool = False,
    stack: bool = False,
    alike: bool = False,
    about: Mapping[str, Any] | None = None,
    kernels_a_step: Mapping[str, int] | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[Recording]:
    """Record what PyTorch and the GPU do in the block.

    Args:
        path: Where to write the trace, .json or .json.gz; whole or not at all. None to count only.
        shapes: Record the shapes of operators' arguments.
        memory: Record allocations.
        stack: Record the Python stack of each operator: tens of times as many bytes.
        alike: Nothing is changed between steps; on a GPU the later ones of an implementation must launch the same.
        about: Written into the trace, of JSON's types.
        kernels_a_step: Of the implementations whose number of kernels is known; on a GPU the trace must have them.
        device: Where the work is done; what a GPU does is recorded too.

    Yields:
        The recording; its trace is there once the block has ended.

    Raises:
        UsageError: The path has another suffix, this process is recording, or it has already recorded on a GPU.
        RunError: The profiler lost records, or the trace is too large or cannot be written.
    """
    global _recorded  # noqa: PLW0603 (a fact of the process)
    target = None if path is None else Path(path)
    if target is not None:
        check_name(target)
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu and _recorded:
        raise UsageError("this process has already recorded a trace, and a second one would lose kernels: start a new process for it")
    if torch._C._autograd._profiler_enabled() or not _recording.acquire(blocking=False):
        raise UsageError("this process is already recording a trace: end that first")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would tell its stages on stderr
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    made = Recording(target)
    _recorded = _recorded or on_gpu
    try:
        profiler = profile(activities=activities, record_shapes=shapes, profile_memory=memory, with_stack=stack, acc_events=True)
        with profiler:
            yield made
            if on_gpu:
                torch.cuda.synchronize(device)
        content, trace = _exported(profiler)
    finally:
        _recording.release()
    if on_gpu:
        check(trace, kernels_a_step or {}, alike)
    if target is not None:
        _write(target, content, about or {})
    made.trace = trace


def check_name(path: Path) -> None:
    """See that a trace may have a name; UsageError where its suffix is another."""
    if not path.name.endswith(SUFFIXES):
        raise UsageError(f"{shown(path)} is no name for a trace: it must end in {' or '.join(SUFFIXES)}")


def _exported(profiler: profile) -> tuple[dict[str, Any], Trace]:
    """What the profiler recorded, with its events put right, and what they say."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder, "trace.json")
            profiler.export_chrome_trace(str(raw))
            text = raw.read_bytes().decode(errors="replace")
        content: dict[str, Any] = _parsed(text)
        content["traceEvents"] = nested(without_tracing(content["traceEvents"]))
        return content, trace_of(events_in(content["traceEvents"]))
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        cause = shown(str(getattr(error, "strerror", None) or error))[:200]
        raise RunError(
            f"what the profiler wrote to {shown(tempfile.gettempdir())} cannot be read; its disk may be full ({cause})"
        ) from error


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, strict=False, parse_constant=lambda _: None)
    except ValueError:  # the profiler does not escape quotes in names
        text = _NAME.sub(lambda found: found[1] + json.dumps(found[2])[1:-1] + found[3], text)
        return json.loads(text, strict=False, parse_constant=lambda _: None)


def without_tracing(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the operators that torch.compile runs on tensors without values while it compiles: tens of thousands that compute nothing.

    What it times of itself stays.
    """
    until: defaultdict[Any, float] = defaultdict(float)
    kept = []
    for event in sorted(events, key=lambda event: float(event.get("ts", 0))):
        track = event.get("pid"), event.get("tid")
        spans = event.get("name", "").endswith(COMPILER_SPAN)
        if event.get("cat") not in (LABEL, OPERATOR) or spans or event["ts"] >= until[track]:
            kept.append(event)
        if spans:
            until[track] = max(until[track], event["ts"] + event["dur"])
    return kept


def nested(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let spans of a track lie within each other or apart, as viewers demand, which drop what does not.

    By rounding some end a nanosecond after the one that they began in: they are cut. And a label begins within the Python frame that opens
    it and outlives that: the frame is cut.
    """
    spans = [(_nanoseconds(event["ts"]), _nanoseconds(event["dur"]), event) for event in events if event.get("ph") == "X"]
    enclosing: defaultdict[Any, list[tuple[int, int, dict[str, Any]]]] = defaultdict(list)  # starts, ends, events
    for start, duration, event in sorted(spans, key=lambda span: (span[0], -span[1])):
        end, outer = start + duration, enclosing[event.get("pid"), event.get("tid")]
        while outer and outer[-1][1] <= start:
            outer.pop()
        while outer and outer[-1][1] + ROUNDING < end and outer[-1][2].get("cat") == FRAME != event.get("cat"):
            began, _, frame = outer.pop()
            frame["dur"] = (start - began) / 1000
        if outer and outer[-1][1] < end:
            end = outer[-1][1]
            event["dur"] = (end - start) / 1000
        outer.append((start, end, event))
    return events


def _nanoseconds(microseconds: float) -> int:
    """The profiler's own numbers, of which sums are exact; those of the microseconds of days are not."""
    return round(microseconds * 1000)


def _write(target: Path, content: dict[str, Any], about: Mapping[str, Any]) -> None:
    """Strict JSON in ASCII, whatever is in the names."""
    content.pop("host_name", None)  # traces are passed on
    content |= {"traceName": target.name, "distributedInfo": {"rank": 0, "world_size": 1}, "physarum": dict(about)}
    text = json.dumps(content, separators=(",", ": "), allow_nan=False).encode("ascii")
    if len(text) > LARGEST_TRACE:
        has, may = len(text) / 1e6, LARGEST_TRACE / 1e6
        raise RunError(f"the trace has {has:.0f} MB, more than the {may:.0f} MB that Perfetto opens well: record fewer steps")
    with written_whole(target) as part:
        part.write_bytes(gzip.compress(text, 6) if target.suffix == ".gz" else text)
