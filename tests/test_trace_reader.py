"""Traces: what is counted is what happened, to whom it belongs is found by time and correlation, and a damaged file is refused."""

import gzip
import json
import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from physarum import RunError, UsageError
from physarum.profiling import reader
from physarum.profiling.reader import Count, Event, Trace, read_events, read_trace, trace_of
from physarum.profiling.report import check

# A step as three fused kernels do it: the label, the call that launches, the kernel.
FUSED = (
    ("sense+motor", "cuda_runtime", "cudaLaunchKernel"),
    ("deposit", "cuda_driver", "cuLaunchKernelEx"),
    ("diffuse+decay", "cuda_runtime", "cudaLaunchKernelExC"),
)


def raw(category: str, name: str, start: float, duration: float, correlation: int | None = None, **track: Any) -> dict[str, Any]:
    """An event as the profiler writes it."""
    place = {"pid": 0, "tid": 7} if category in reader.DEVICE else {"pid": 1, "tid": 1}
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "cat": category, "name": name, **place, **track, "ts": start, "dur": duration, "args": args}


def session(steps: int = 3) -> list[dict[str, Any]]:
    """Steps of three launches each, a copy, and a graph of four kernels; and what the profiler writes that is not to be counted."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "python"}}]
    correlation = 0
    for number in range(steps):
        start = 1000.0 + 100 * number
        events.append(raw("user_annotation", f"step {number}", start, 90))
        for i, (stage, category, call) in enumerate(FUSED):
            correlation += 1
            events.append(raw("user_annotation", stage, start + 5 + 25 * i, 20))
            events.append(raw(category, call, start + 8 + 25 * i, 3, correlation))
            events.append(raw("kernel", f"{stage}_kernel", start + 12 + 25 * i, 9 - i, correlation))
        events.append(raw("gpu_user_annotation", f"step {number}", start + 12, 80, pid=0, tid=7))
    events.append(raw("cuda_runtime", "cudaMemcpyAsync", 2000, 2, 90))
    events.append(raw("gpu_memcpy", "Memcpy DtoH", 2003, 4, 90))
    events.append(raw("cuda_runtime", "cudaGraphLaunch", 2100, 5, 91))
    events.extend(raw("kernel", "fused_kernel", 2106 + 5 * i, 4, 91) for i in range(4))
    events.append(raw("cuda_runtime", "cudaDeviceSynchronize", 2130, 1, 92))
    events.append(raw("cuda_driver", "cuLaunchHostFunc", 2132, 1, 93))
    events.append({"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 1, "tid": 1, "ts": 1008.0})
    return events


def table(events: list[dict[str, Any]]) -> dict[str, Any]:
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Test GPU"}], "traceEvents": events}


TEXT = json.dumps(table(session()), indent=1)


def events_of(*found: dict[str, Any]) -> list[Event]:
    """Through a list as a file has it, so that names and numbers are made what the reader makes of them."""
    return reader.events_in(found)


def check_session(trace: Trace) -> None:
    """The counts of `session`."""
    total = trace.total
    assert (total.host_launches, total.device_operations, total.kernels, total.graph_launches) == (10, 14, 13, 1)
    assert (total.operators, total.device_time, total.host_time) == (0, 3 * 24 + 4 + 16, 1133)
    assert [step.number for step in trace.steps] == [0, 1, 2]
    assert trace.unmatched == 0
    for step in trace.steps:
        assert step.implementation == ""
        assert step.whole == Count(3, 3, 3, 0, 0, device_time=24, host_time=90)
        assert list(step.stages) == [stage for stage, _, _ in FUSED]
        for i, count in enumerate(step.stages.values()):
            assert count == Count(1, 1, 1, 0, 0, device_time=9 - i, host_time=20)


# Files


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.json", TEXT.encode()),
        ("packed.json.gz", gzip.compress(TEXT.encode())),
        ("packed_in_spite_of_its_name.json", gzip.compress(TEXT.encode())),
        ("plain_in_spite_of_its_name.json.gz", TEXT.encode()),
        ("bom.json", b"\xef\xbb\xbf" + TEXT.encode()),
        ("utf8.json", TEXT.replace("Test GPU", "GPU é").encode()),
        ("latin1.json", TEXT.replace("Test GPU", "GPU é").encode("latin-1")),
        ("bom_and_latin1.json", b"\xef\xbb\xbf" + TEXT.replace("Test GPU", "GPU é").encode("latin-1")),
        ("control_character.json", TEXT.replace("fused_kernel", "fused\x01\nkernel").encode()),
        ("capital_inf.json", TEXT.replace('"correlation": 90', '"correlation": 90, "bandwidth (GB/s)": Infinity').encode()),
        ("capital_nan.json", TEXT.replace('"correlation": 90', '"correlation": 90, "bandwidth (GB/s)": NaN').encode()),
        ("infinite_names.json", TEXT.replace("Test GPU", "inf, -inf and nan").encode()),
        ("bare_list.json", json.dumps(session()).encode()),
        ("list_of_more.json", json.dumps([None, 1, "X", [], {}, *session()]).encode()),
        ("strings.json", json.dumps(table([e | {key: str(e[key]) for key in ("ts", "dur") if key in e} for e in session()])).encode()),
        ("shuffled.json", json.dumps(random.Random(1).sample(session(), len(session()))).encode()),
    ],
)
def test_a_trace_is_read_in_every_form_that_people_met(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    check_session(read_trace(path))


def broken(event: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps(table([*session(), event | changes])).encode()


KERNEL = raw("kernel", "k", 1, 1, 1)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "empty"),
        (gzip.compress(b""), "empty"),
        (b"\x1f", "Expecting value"),
        (b"\x1f\x8b", "ended before"),
        (b"\x89PNG\r\n\x1a\n\0\0", "Expecting value"),
        (b"step 0: 3 launches\n", "Expecting value"),
        (TEXT.encode("utf-16"), "Expecting value"),
        (gzip.compress(TEXT.encode())[:-8] + bytes(8), "CRC"),
        (gzip.compress(b"")[:10] + b"\7" + bytes(99), "decompressing"),
        (gzip.compress(TEXT.encode()) + b"more", "gzipped"),
        (gzip.compress(TEXT[:-1].encode()), "Expecting"),
        (TEXT.replace("fused_kernel", 'fused "kernel"').encode(), "Expecting"),
        (TEXT.replace('"correlation": 90', '"correlation": 90, "bandwidth (GB/s)": inf').encode(), "Expecting value"),
        (TEXT.replace('"correlation": 90', '"correlation": 90, "bandwidth (GB/s)": -inf').encode(), "Expecting value"),
        (TEXT.replace('"correlation": 90', '"correlation": 90, "bandwidth (GB/s)": nan').encode(), "Expecting value"),
        (b"[" * 100_000, "decoding a JSON"),
        (b'{"traceEvents": ' + b'{"a": [' * 100_000, "decoding a JSON"),
        (b"[" + b"9" * 5000 + b"]", "integer string"),
        (b"{}", "no list of events"),
        (b'"traceEvents"', "no list of events"),
        (b'{"traceEvents": {"ph": "X"}}', "no list of events"),
        (broken(KERNEL, ts=None), f"event {len(session())}, a kernel, has no time"),
        (broken(KERNEL, ts="soon"), "has no time"),
        (broken(KERNEL, ts=True), "has no time"),
        (broken(KERNEL, dur=math.inf), "has no time"),
        (broken(KERNEL, dur="nan"), "has no time"),
        (broken(KERNEL, dur=10**400), "has no time"),
        (broken(KERNEL, dur=-1), "has no time"),
        (json.dumps([{"ph": "X", "cat": "user_annotation", "name": "step 0"}]).encode(), "a user_annotation, has no time"),
    ],
)
def test_a_damaged_file_is_refused_in_one_sentence(tmp_path: Path, content: bytes, cause: str) -> None:
    path = tmp_path / "a\ntrace.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        read_trace(path)
    sentence = str(error.value)
    assert "a\\ntrace.json cannot be read as a trace: " in sentence
    assert cause in sentence
    assert sentence.isprintable()


@pytest.mark.parametrize("content", [TEXT.encode(), gzip.compress(TEXT.encode())], ids=["plain", "packed"])
def test_a_cut_file_is_refused_wherever_it_is_cut(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.json"
    for length in {*range(0, len(content), 17), len(content) - 1}:
        path.write_bytes(content[:length])
        with pytest.raises(UsageError, match=r"trace\.json cannot be read as a trace: "):
            read_trace(path)


def unreadable(path: Path) -> None:
    path.write_text(TEXT)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads everything")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: None, unreadable])
def test_what_is_no_file_that_can_be_read_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "trace.json"
    make(path)
    with pytest.raises(UsageError, match=r"trace\.json"):
        read_trace(path)


def test_an_impossible_name_is_refused() -> None:
    with pytest.raises(UsageError, match=r"there is no trace a\\x00b"):
        read_trace("a\0b")


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_a_file_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "bomb.json"
    path.write_bytes(pack(b" " * (8 << 20)))
    read: list[int] = []

    class Counted(gzip.GzipFile):
        def read(self, size: int | None = -1) -> bytes:
            chunk = super().read(size)
            read.append(len(chunk))
            return chunk

    monkeypatch.setattr(gzip, "GzipFile", Counted)
    monkeypatch.setattr(reader, "LARGEST", 3_000_000)
    with pytest.raises(UsageError, match="holds more than 3,000,000 bytes"):
        read_trace(path)
    assert sum(read) < 5_000_000


def test_events_that_do_not_count_may_lack_what_they_like(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    odd: list[Any] = [
        {},
        {"ph": "X"},
        {"ph": "X", "cat": ["kernel"], "ts": {}},
        {"ph": "X", "cat": "python_function", "name": "step"},
        {"ph": "i", "cat": "cpu_op", "name": "mark", "ts": 1},
        {"ph": "M", "cat": "kernel"},
    ]
    path.write_text(json.dumps(odd))
    assert read_trace(path) == trace_of([])
    assert trace_of([]).total == Count(0, 0, 0, 0, 0, 0.0, 0.0)


def test_an_event_has_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    start = 5_196_808_406_497.495  # microseconds; two months after the machine was started, the sum with 0.832 is not exact
    call = raw("cuda_driver", "cuLaunchKernel_ptsz", start, 0.832, 3, tid="main") | {"name": "cuLaunchKernel_ptsz"}
    path.write_text(json.dumps([call, {"ph": "X", "cat": "kernel", "ts": "1e3", "dur": 2, "args": None}]))
    first, second = read_events(path)
    assert first == Event("cuLaunchKernel", "cuda_driver", start, 0.832, 1, "main", 3)
    assert first.end == pytest.approx(start + 0.832, abs=0.001)
    assert second == Event("", "kernel", 1000.0, 2.0, "None", "None", None)


# Names


@pytest.mark.parametrize(
    ("name", "counts"),
    [(name, True) for name in reader.LAUNCHES]
    + [(f"{name}{version}", True) for name in reader.LAUNCHES for version in ("_v7000", "_ptsz", "_ptds", "_ptsz_v11060")]
    + [(name, False) for name in ("cuLaunchHostFunc", "cudaLaunchHostFunc", "cudaMemcpyAsync", "cudaGraphInstantiate", "cuLaunchKernel2")],
)
@pytest.mark.parametrize("category", reader.CALLS)
def test_which_calls_are_host_launches(category: str, name: str, counts: bool) -> None:
    trace = trace_of(events_of(raw(category, name, 0, 1, 1), raw("kernel", "k_v2", 1, 1, 1)))
    assert trace.total.host_launches == counts
    assert trace.costs[0].name == "k_v2"


def test_only_calls_launch() -> None:
    assert (
        trace_of(events_of(raw("cpu_op", "cudaLaunchKernel", 0, 1), raw("user_annotation", "cudaLaunchKernel", 0, 1))).total.host_launches
        == 0
    )


# Labels


def test_steps_belong_to_the_innermost_label_around_them_and_come_in_order_of_time() -> None:
    trace = trace_of(
        events_of(
            raw("user_annotation", "compile, whole step", 500, 400),
            raw("user_annotation", "step 0", 600, 100),
            raw("user_annotation", "torch", 0, 400),
            raw("user_annotation", "inner", 10, 300),
            raw("user_annotation", "step 1", 200, 100),
            raw("user_annotation", "step 0", 20, 100),
            raw("user_annotation", "step 7", 1000, 100),
            raw("user_annotation", "step seven", 1200, 100),
            raw("user_annotation", f"step {'9' * 5000}", 1400, 100),
            raw("user_annotation", "compile kernels", 1600, 100),
            raw("user_annotation", "step 8", 1610, 80),
        )
    )
    assert [(step.implementation, step.number) for step in trace.steps] == [
        ("inner", 0),
        ("inner", 1),
        ("compile, whole step", 0),
        ("", 7),
        ("", 8),
    ]


def test_what_is_a_stage() -> None:
    names = ("sort", "sense+motor", "compile kernels", "dynamo_data: compile_id=0/0", "deposit+", "+", "diffuse+blur", "sense", "decay")
    labels = [raw("user_annotation", name, 10 * i + 1, 8) for i, name in enumerate(names)]
    launches = [raw("cuda_runtime", "cudaLaunchKernel", 10 * i + 2, 1, i) for i in range(len(names))]
    kernels = [raw("kernel", "sense", 500 + i, 1, i) for i in range(len(names))]  # a kernel may bear the name of its stage
    trace = trace_of(events_of(raw("user_annotation", "step 3", 0, 100), *labels, *launches, *kernels))
    (step,) = trace.steps
    assert step.whole.host_launches == step.whole.kernels == len(names)
    assert step.stages == {name: Count(1, 1, 1, 0, 0, device_time=1, host_time=8) for name in ("sort", "sense+motor", "sense", "decay")}


def test_a_stage_that_comes_twice_in_a_step_is_one_and_the_innermost_has_it() -> None:
    trace = trace_of(
        events_of(
            raw("user_annotation", "step 0", 0, 100),
            raw("user_annotation", "deposit", 50, 10),
            raw("cuda_runtime", "cudaLaunchKernel", 51, 1, 2),
            raw("user_annotation", "deposit", 10, 30),
            raw("cuda_runtime", "cudaLaunchKernel", 11, 1, 1),
            raw("user_annotation", "sort", 20, 10),
            raw("cuda_runtime", "cudaLaunchKernel", 21, 1, 3),
        )
    )
    stages = trace.steps[0].stages
    assert {name: (count.host_launches, count.host_time) for name, count in stages.items()} == {"deposit": (2, 40), "sort": (1, 10)}


def test_stages_outside_a_step_are_in_the_total_alone() -> None:
    trace = trace_of(events_of(raw("user_annotation", "sense", 0, 10), raw("cpu_op", "aten::add", 1, 2)))
    assert trace.total.operators == 1
    assert trace.steps == ()
    assert trace.costs[0].implementation == ""


def test_threads_are_told_apart() -> None:
    found = []
    for process, thread, launches in ((1, 1, 4), (1, "1", 3), (2, 1, 2)):  # at the same time
        track: dict[str, Any] = {"pid": process, "tid": thread}
        found.append(raw("user_annotation", f"step {launches}", launches, 50, **track))
        found.append(raw("user_annotation", "sense", 10, 30, **track))
        for i in range(launches):
            found.append(raw("cuda_runtime", "cudaLaunchKernel", 11 + i, 1, 10 * launches + i, **track))
            found.append(raw("kernel", "k", 20 + i, 0.5, 10 * launches + i))
    trace = trace_of(events_of(*found))
    assert trace.total.host_launches == 9
    assert [step.number for step in trace.steps] == [2, 3, 4]
    for step in trace.steps:
        assert step.whole.host_launches == step.stages["sense"].host_launches == step.number
        assert step.whole.kernels == step.stages["sense"].kernels == step.number


def test_labels_may_begin_and_end_together() -> None:
    trace = trace_of(
        events_of(
            raw("cuda_runtime", "cudaLaunchKernel", 0, 5, 1),
            raw("user_annotation", "sense", 0, 10),
            raw("user_annotation", "step 0", 0, 20),
            raw("user_annotation", "torch", 0, 40),
            raw("cuda_runtime", "cudaLaunchKernel", 10, 10, 2),
            raw("user_annotation", "motor", 10, 10),
            raw("user_annotation", "step 1", 20, 20),
            raw("user_annotation", "decay", 20, 20),
            raw("cuda_runtime", "cudaLaunchKernel", 20, 20, 3),
            raw("cuda_runtime", "cudaLaunchKernel", 40, 1, 4),
        )
    )
    assert [(step.implementation, step.whole.host_launches, list(step.stages)) for step in trace.steps] == [
        ("torch", 2, ["sense", "motor"]),
        ("torch", 1, ["decay"]),
    ]
    assert all(count.host_launches == 1 for step in trace.steps for count in step.stages.values())
    assert trace.total.host_launches == 4


def test_what_ends_after_its_label_by_rounding_still_belongs_to_it() -> None:
    trace = trace_of(
        events_of(
            raw("user_annotation", "torch", 0, 100),
            raw("user_annotation", "step 0", 0, 50),
            raw("user_annotation", "sense", 10, 20.001),
            raw("cuda_runtime", "cudaLaunchKernel", 15, 15.002, 1),
            raw("user_annotation", "motor", 30, 20.001),
            raw("cuda_runtime", "cudaLaunchKernel", 40, 10.002, 2),
            raw("user_annotation", "step 1", 50, 50.001),
            raw("cuda_runtime", "cudaLaunchKernel", 99, 1.001, 3),
            raw("cuda_runtime", "cudaLaunchKernel", 100.5, 1, 4),
        )
    )
    assert [(step.implementation, step.whole.host_launches) for step in trace.steps] == [("torch", 2), ("torch", 1)]
    assert {name: count.host_launches for name, count in trace.steps[0].stages.items()} == {"sense": 1, "motor": 1}
    assert trace.steps[1].stages == {}


# The device


def test_a_device_operation_belongs_to_the_labels_of_its_launch_whenever_it_runs() -> None:
    trace = trace_of(
        events_of(
            raw("kernel", "late", 900, 7, 1),
            raw("gpu_memset", "Memset (Device)", 15, 2, 2),  # while step 0 is open on the host
            raw("kernel", "of nobody", 16, 1),
            raw("user_annotation", "torch", 0, 50),
            raw("user_annotation", "step 0", 0, 50),
            raw("user_annotation", "sense", 10, 10),
            raw("cuda_runtime", "cudaLaunchKernel", 11, 1, 1),
            raw("cuda_runtime", "cudaDeviceSynchronize", 13, 1),  # of no operation
            raw("cuda_runtime", "cudaMemsetAsync", 60, 1, 2),
        )
    )
    assert trace.steps[0].whole == Count(1, 1, 1, 0, 0, device_time=7, host_time=50)
    assert trace.steps[0].stages == {"sense": Count(1, 1, 1, 0, 0, device_time=7, host_time=10)}
    assert trace.total == Count(1, 3, 2, 0, 0, device_time=10, host_time=61)
    assert {cost.name: cost.implementation for cost in trace.costs} == {"late": "torch", "Memset (Device)": "", "of nobody": ""}
    assert trace.unmatched == 0


def test_a_graph_is_one_launch_of_many_kernels() -> None:
    kernels = [raw("kernel", "k", 20 + i, 0.5, 1) for i in range(4)]
    trace = trace_of(events_of(raw("user_annotation", "step 64", 0, 10), raw("cuda_runtime", "cudaGraphLaunch", 1, 2, 1), *kernels))
    assert trace.steps[0].whole == Count(1, 4, 4, 1, 0, device_time=2, host_time=10)
    assert trace.unmatched == 0


def test_launches_without_a_record_are_counted() -> None:
    trace = trace_of(
        events_of(
            raw("cuda_runtime", "cudaLaunchKernel", 1, 1, 1),  # lost
            raw("cuda_runtime", "cudaLaunchKernel", 2, 1, 2),
            raw("kernel", "k", 20, 1, 2),
            raw("cuda_driver", "cuLaunchKernelEx", 3, 1),  # cannot be matched
            raw("kernel", "k", 21, 1),
            raw("cuda_runtime", "cudaLaunchKernel", 4, 1, 4),  # a copy is not what it launched
            raw("gpu_memcpy", "Memcpy DtoD", 22, 1, 4),
            raw("cuda_runtime", "cudaGraphLaunch", 5, 1, 5),  # may be empty
            raw("cuda_runtime", "cudaMemcpyAsync", 6, 1, 6),  # lost
            raw("cuda_runtime", "cudaMemsetAsync", 7, 1, 7),
            raw("gpu_memset", "Memset (Device)", 23, 1, 7),
            raw("cuda_driver", "cuMemcpyHtoD_v2", 8, 1, 8),  # lost
            raw("cuda_runtime", "cudaMemcpyAsync", 9, 1, 9),
            raw("kernel", "a copy by a kernel", 24, 1, 9),
            raw("cuda_runtime", "cudaMemcpyAsync", 10, 1),  # cannot be matched
            raw("gpu_memcpy", "Memcpy DtoH", 25, 1),
            raw("cuda_runtime", "cudaMalloc", 11, 1, 10),
        )
    )
    assert trace.unmatched == 6


# Costs


def test_the_costliest_on_the_device() -> None:
    found = []
    for i, (name, duration, start) in enumerate([("a", 1, 10), ("b", 5, 20), ("a", 3, 30), ("a", 100, 210), ("c", 4, 220)]):
        found.append(raw("cuda_runtime", "cudaLaunchKernel", start, 1, i))
        found.append(raw("kernel", name, start + 500, duration, i))
    found += [raw("user_annotation", "torch", 0, 100), raw("user_annotation", "triton", 200, 100)]
    trace = trace_of(events_of(*found))
    assert trace.costliest(2) == [("a", "kernel", 1, 100, "triton"), ("b", "kernel", 1, 5, "torch")]
    assert trace.costliest(9)[2:] == [("a", "kernel", 2, 4, "torch"), ("c", "kernel", 1, 4, "triton")]


def test_what_an_operator_launches_goes_by_its_name() -> None:
    trace = trace_of(
        events_of(
            raw("cpu_op", "Torch-Compiled Region: 0/0", 0, 100),
            raw("cpu_op", "aten::to", 10, 20),
            raw("cpu_op", "aten::copy_", 12, 10),
            raw("cuda_runtime", "cudaLaunchKernel", 14, 2, 1),
            raw("kernel", "void elementwise_kernel<128, 4>(int)", 50, 7, 1),
            raw("cuda_driver", "cuLaunchKernelEx", 40, 2, 2),
            raw("kernel", "triton_poi_fused_add_1", 60, 5, 2),
        )
    )
    assert trace.costliest(9) == [("aten::to", "cpu_op", 1, 7, ""), ("triton_poi_fused_add_1", "kernel", 1, 5, "")]


def test_the_costliest_are_sought_in_later_steps_where_there_are_any() -> None:
    found = []
    for i, (label, kernel, duration) in enumerate([("step 0", "autotuned", 900), ("step 1", "a", 3), ("step 2", "a", 4)]):
        start = 100.0 * i
        found += [raw("user_annotation", label, start, 50), raw("cuda_runtime", "cudaLaunchKernel", start + 1, 1, i)]
        found.append(raw("kernel", kernel, start + 2, duration, i))
    outer = raw("user_annotation", "triton", 0, 1000)
    assert trace_of(events_of(outer, *found)).costliest(9) == [("a", "kernel", 2, 7, "triton")]
    assert trace_of(events_of(outer, *found[:3])).costliest(9) == [("autotuned", "kernel", 1, 900, "triton")]


def test_the_costliest_on_the_host_by_what_operators_do_themselves() -> None:
    trace = trace_of(
        events_of(
            raw("user_annotation", "torch", 0, 100),
            raw("cpu_op", "aten::to", 0, 50),
            raw("cpu_op", "aten::_to_copy", 5, 40),
            raw("cpu_op", "aten::empty", 10, 10),
            raw("cpu_op", "aten::copy_", 20, 25),  # where the one before it ends
            raw("cpu_op", "aten::empty", 60, 10),
            raw("cpu_op", "aten::empty", 70, 3, tid=2),
            raw("cpu_op", "aten::empty", 30, 4, tid=2),  # beside the others, not within them
        )
    )
    assert trace.costliest(9) == [
        ("aten::copy_", "cpu_op", 1, 25, "torch"),
        ("aten::empty", "cpu_op", 2, 20, "torch"),
        ("aten::to", "cpu_op", 1, 10, "torch"),
        ("aten::empty", "cpu_op", 2, 7, ""),
        ("aten::_to_copy", "cpu_op", 1, 5, "torch"),
    ]
    assert trace.total.operators == 4


# What a first step is made of


def test_no_microsecond_of_a_step_counts_twice() -> None:
    trace = trace_of(
        events_of(
            raw("user_annotation", "step 0", 0, 1000),
            raw("user_annotation", "sense", 0, 900),
            # compilation, 100 to 400: one in another, and two that overlap; 80 of it are loading and allocation
            raw("cpu_op", "entire_frame_compile (dynamo_timed)", 100, 200),
            raw("cpu_op", "backend_compile (dynamo_timed)", 150, 100),
            raw("user_annotation", "compile kernels", 250, 150),
            # module loading: 50 within compilation, 30 across its end, 40 within a launch and once more in the profiler's words, 5 apart
            raw("cuda_driver", "cuModuleLoadData", 200, 50, 1),
            raw("cuda_driver", "cuLibraryLoadData", 390, 30, 2),
            raw("cuda_runtime", "cudaLaunchKernel", 440, 80, 3),
            raw("cuda_runtime", "cudaLibraryLoadData_v12000", 450, 40, 4),
            raw("overhead", "Runtime Triggered Module Loading", 455, 30, pid=-1, tid=0),
            raw("overhead", "Lazy Function Loading", 600, 5, pid=-1, tid=0),
            raw("overhead", "Activity Buffer Request", 620, 100, pid=-1, tid=0),
            # allocation: 20 within compilation, 10 within loading, 8 apart, 7 until the step ends
            raw("cuda_runtime", "cudaMalloc", 300, 20, 5),
            raw("cuda_driver", "cuMemAlloc_v2", 460, 10, 6),
            raw("cuda_runtime", "cudaHostAlloc", 800, 8, 7),
            raw("cuda_driver", "cuMemCreate", 993, 17, 8),
            raw("cuda_driver", "cuModuleGetFunction", 850, 10, 9),
            raw("cpu_op", "cudaMalloc", 870, 10),
            # a step later, and on another thread
            raw("user_annotation", "step 1", 2000, 10),
            raw("overhead", "Lazy Function Loading", 3000, 5, pid=-1, tid=0),
            raw("cuda_runtime", "cudaMalloc", 500, 100, 10, tid=2),
        )
    )
    assert trace.steps[0].parts == {"module loading": 125, "allocation": 35, "compilation": 220, "launching": 40, "rest": 580}
    assert trace.steps[1].parts == {"module loading": 0, "allocation": 0, "compilation": 0, "launching": 0, "rest": 10}


@pytest.mark.parametrize("start", [0.1, 5_196_808_406_497.495])
@pytest.mark.parametrize("allocating", ["all the time", "while loading"])
def test_parts_are_never_negative_and_add_up_however_the_numbers_round(start: float, allocating: str) -> None:
    chance = random.Random(7)
    for _ in range(50):
        duration = round(1000 * chance.random(), 3)
        found = [raw("user_annotation", "step 0", start, duration)]
        for name in ("x (dynamo_timed)", "cuModuleLoad") * 9:
            span = start + duration * chance.random(), duration * chance.random() / 9
            found.append(raw("cuda_runtime", name, *span))
            if name == "cuModuleLoad":
                found.append(raw("cuda_runtime", "cudaMalloc", *(span if allocating == "while loading" else (start, duration))))
        (step,) = trace_of(events_of(*found)).steps
        assert min(step.parts.values()) >= 0
        assert sum(step.parts.values()) == pytest.approx(duration, abs=0.002)


def test_operators_are_those_that_no_other_operator_calls() -> None:
    """torch.compile's marks are recorded in the same category; they are none, and what they hold counts."""
    trace = trace_of(
        events_of(
            raw("user_annotation", "compile", 0, 100),
            raw("user_annotation", "step 0", 0, 100),
            raw("cpu_op", "Torch-Compiled Region: 0/0", 0, 90),
            raw("cpu_op", "aten::to", 1, 50),
            raw("cpu_op", "aten::_to_copy", 5, 40),
            raw("cpu_op", "aten::copy_", 20, 25),
            raw("cpu_op", "aten::empty", 51, 10),
            raw("cpu_op", "aten::empty", 20, 10, tid=2),  # outside the step
            raw("cpu_op", "compile_inner (dynamo_timed)", 70, 10),
        )
    )
    assert trace.steps[0].whole.operators == 2
    assert trace.total.operators == 3
    assert [cost.name for cost in trace.costliest(9)] == [
        "Torch-Compiled Region: 0/0", "aten::copy_", "aten::_to_copy", "aten::empty", "aten::empty", "aten::to"
    ]  # fmt: skip


def test_a_trace_of_a_gpu_has_the_known_counts() -> None:
    """Three steps each of eager PyTorch and of Triton on an H200, recorded by `physarum trace`."""
    trace = read_trace(Path(__file__).parent / "traces" / "h200.json.gz")
    assert trace.unmatched == 0
    assert (trace.total.host_launches, trace.total.kernels, trace.total.device_operations) == (992, 992, 1033)
    assert [(step.implementation, step.number) for step in trace.steps] == [("torch", n) for n in range(3)] + [
        ("triton", n) for n in range(3, 6)
    ]
    for step in trace.steps[:3]:
        assert {name: count.host_launches for name, count in step.stages.items()} == {
            "sense": 185, "motor": 84, "deposit": 27, "diffuse": 10, "decay": 7
        }  # fmt: skip
    for step in trace.steps[4:]:
        assert {name: count.kernels for name, count in step.stages.items()} == {"sense+motor": 1, "deposit": 1, "diffuse+decay": 1}
    check(trace, {"triton": 3}, alike=True)
    with pytest.raises(RunError, match="saw 3 kernels in step 3 of triton, which has 4"):
        check(trace, {"triton": 4})


def test_a_record_lost_from_a_trace_of_a_gpu_is_noticed() -> None:
    events = read_events(Path(__file__).parent / "traces" / "h200.json.gz")
    kernels = [event for event in events if event.category == "kernel"]
    for lost in (kernels[0], kernels[-1], kernels[500]):
        trace = trace_of([event for event in events if event is not lost])
        assert trace.unmatched == 1
        with pytest.raises(RunError, match="lost records"):
            check(trace, {})
