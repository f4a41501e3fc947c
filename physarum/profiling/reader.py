"""Traces as torch.profiler writes them (Chrome's JSON, which Perfetto opens), and what can be counted in them.

A label is an annotation by `record_function`: `step N`, within it the stages, around many steps the name of an implementation. A host event
belongs to the labels that are open on its thread when it starts; a device operation to those of the host call that launched it.
"""

import codecs
import gzip
import json
import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from physarum import labels
from physarum.errors import UsageError
from physarum.files import is_ordinary, shown

LONGEST = 1e17  # microseconds, three thousand years; sums of such are finite
LARGEST = 1 << 29  # bytes once unpacked, five times what a trace of ours may have

GRAPH_LAUNCH = "cudaGraphLaunch"
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", GRAPH_LAUNCH)
COPIES_AND_SETS = ("cudaMemcpy", "cudaMemset", "cuMemcpy", "cuMemset")  # how their names begin, as below
LOADS = ("cuModuleLoad", "cuLibraryLoad", "cudaLibraryLoad")
ALLOCATIONS = ("cudaMalloc", "cudaHostAlloc", "cuMemAlloc", "cuMemHostAlloc", "cuMemAddressReserve", "cuMemCreate", "cuMemMap")
LOADING_OVERHEADS = ("Runtime Triggered Module Loading", "Lazy Function Loading")

PARTS_OF_A_STEP = frozenset((*labels.STAGES, *labels.NOW_AND_THEN))
COMPILER_SPAN = "(dynamo_timed)"  # how the names of what torch.compile times of itself end

# The profiler's categories. Its device-side copies of the labels and its Python frames are of no use here.
LABEL, OPERATOR, OVERHEAD, KERNEL = "user_annotation", "cpu_op", "overhead", "kernel"
INNER_OPERATOR = "cpu_op in cpu_op"  # ours, for an operator that another one calls
CALLS = ("cuda_runtime", "cuda_driver")
HOST = (*CALLS, OPERATOR, LABEL)
DEVICE = (KERNEL, "gpu_memcpy", "gpu_memset")

_STEP = re.compile("step [0-9]{1,18}")
_VERSION = re.compile(r"(_v[0-9]+|_ptsz|_ptds)+$")  # of the entry point in the driver: cudaLaunchKernelExC_ptsz_v11060


class Event(NamedTuple):
    """One span of a trace.

    Attributes:
        name: As the profiler wrote it; that of a CUDA call without its version.
        category: One of HOST, DEVICE or OVERHEAD.
        start: Microseconds.
        duration: Microseconds.
        process: On the host its number.
        thread: On the host its number, on the device the stream.
        correlation: What a host call and the device operations that it launched have in common.
    """

    name: str
    category: str
    start: float
    duration: float
    process: int | str
    thread: int | str
    correlation: int | None = None

    @property
    def track(self) -> tuple[int | str, int | str]:
        """Process and thread; events of one track of the host lie within each other or apart."""
        return self.process, self.thread

    @property
    def end(self) -> float:
        """Microseconds; rounded, since starts may be days, so sums are made of durations."""
        return self.start + self.duration


@dataclass(frozen=True)
class Count:
    """What happened within a step, a stage or a whole trace.

    Attributes:
        host_launches: Calls of LAUNCHES.
        device_operations: Kernels, copies and sets.
        kernels: Those of the device operations that are kernels.
        graph_launches: Those of the host launches that replay a graph, of however many kernels.
        operators: Operators that PyTorch dispatched on the host; those that another operator calls are not counted.
        device_time: Microseconds, the sum over the device operations.
        host_time: Microseconds of the label; for a trace, from its first host event to the end of the last.
    """

    host_launches: int
    device_operations: int
    kernels: int
    graph_launches: int
    operators: int
    device_time: float
    host_time: float


@dataclass(frozen=True)
class Step:
    """One label `step N`.

    Attributes:
        implementation: The innermost label that holds the step; empty where none does.
        number: N.
        whole: All within the step.
        stages: In order of appearance; of stages within each other the innermost has what happens there.
        parts: Microseconds of host time by what they were spent on: `module loading` and `allocation`, as far as the profiler records them,
            `compilation`, `launching` and the `rest`. Each counts once, for the first of these that it lies within.
    """

    implementation: str
    number: int
    whole: Count
    stages: dict[str, Count]
    parts: dict[str, float]


class Cost(NamedTuple):
    """All events of one name and implementation; the time is in microseconds.

    A device operation that an operator of PyTorch launched goes by the operator's name, which says more than the kernel's.
    """

    name: str
    category: str
    calls: int
    time_us: float
    implementation: str


@dataclass(frozen=True)
class Trace:
    """The answers.

    Attributes:
        total: All in the trace, within labels or not.
        steps: In order of time.
        unmatched: Host launches without a kernel of theirs (graphs aside), and calls that copy or set without a device operation. Any at
            all means that the profiler dropped records, unless the trace has launches captured into a graph, copies of nothing or copies
            within the host.
        costs: Of the steps after each implementation's first, or of the whole trace where there are none, from the costliest down: device
            operations or, in a trace without any, operators by the time that they did not pass on to operators within them.
    """

    total: Count
    steps: tuple[Step, ...]
    unmatched: int
    costs: tuple[Cost, ...]

    def costliest(self, n: int) -> list[Cost]:
        """The first n of the costs."""
        return list(self.costs[:n])


def read_trace(path: str | PathLike[str]) -> Trace:
    """Read a trace and count. Errors are those of `read_events`."""
    return trace_of(read_events(path))


def read_events(path: str | PathLike[str]) -> list[Event]:
    """Read the events of a trace that are of any use here, in the order of the file.

    Args:
        path: JSON or JSON in gzip, whatever the suffix says: a list of events, or a table with one as `traceEvents`.

    Raises:
        UsageError: The file is missing, damaged, too large or of another kind; nothing is read in part.
    """
    name = shown(path)
    if not is_ordinary(path):
        raise UsageError(f"there is no trace {name}: it is missing or no ordinary file")
    try:
        content = json.loads(_text(Path(path)), strict=False)  # names may hold control characters
        events = content.get("traceEvents") if isinstance(content, dict) else content
        if not isinstance(events, list):
            raise ValueError("it holds no list of events")
        return events_in(events)
    except (EOFError, OSError, RecursionError, ValueError, zlib.error) as error:
        cause = shown(str(getattr(error, "strerror", None) or error))[:200]
        raise UsageError(f"{name} cannot be read as a trace: {cause}") from error


def events_in(found: Iterable[Any]) -> list[Event]:
    """The events of any use among those of a file that has been read.

    Raises:
        ValueError: One that would be missed has no usable time.
    """
    return [event for i, one in enumerate(found) if (event := _event(i, one))]


def trace_of(events: Iterable[Event]) -> Trace:
    """Count in events, in whatever order, of one profiler session: correlations are unique in no more than that."""
    events = list(events)
    placed = _placed(events)
    steps: defaultdict[tuple[Event, str], list[tuple[Event, str]]] = defaultdict(list)
    for event, place in placed:
        if place.step:
            steps[place.step, place.implementation].append((event, place.stage))
    host = [event for event in events if event.category in HOST]
    host_time = max(event.end for event in host) - min(event.start for event in host) if host else 0.0
    firsts: dict[str, Event] = {}
    for label, implementation in sorted(steps, key=lambda key: key[0].start):
        firsts.setdefault(implementation, label)
    later = {label for label, _ in steps}.difference(firsts.values())
    return Trace(
        total=_count([event for event, _ in placed], host_time),
        steps=tuple(_step(*key, steps[key]) for key in sorted(steps, key=lambda key: key[0].start)),
        unmatched=_unmatched(events),
        costs=tuple(_costs([(event, place) for event, place in placed if place.step in later] if later else placed)),
    )


class _Place(NamedTuple):
    """What is around an event, as far as it means something: the innermost label that is around its step, that step, the innermost stage
    in it, and the operator that no other operator called.
    """

    implementation: str = ""
    step: Event | None = None
    stage: str = ""
    operator: str = ""

    def within(self, label: Event) -> "_Place":
        """The place inside a label that stands here."""
        if _STEP.fullmatch(label.name):
            return self._replace(step=label, stage="")
        if PARTS_OF_A_STEP.issuperset(label.name.split("+")):
            return self._replace(stage=label.name)
        return self if self.step or label.name == labels.COMPILE else self._replace(implementation=label.name)


def _text(path: Path) -> str:
    data = bytearray()
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        stream = gzip.GzipFile(fileobj=file) if packed else file
        while chunk := stream.read(1 << 20):
            data += chunk
            if len(data) > LARGEST:
                raise ValueError(f"it holds more than {LARGEST:,} bytes")
    if not data:
        raise ValueError("it is empty")
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode()
    except UnicodeDecodeError:  # the name of a device or kernel in the encoding of some system; any byte has a meaning in this one
        return data.decode("latin-1")


def _event(index: int, found: Any) -> Event | None:
    """An event of the file, None if it is of no use here; one that would be missed raises ValueError."""
    if not isinstance(found, dict) or found.get("ph") != "X":
        return None
    category, name, args = found.get("cat"), str(found.get("name", "")), found.get("args")
    if category not in (*HOST, *DEVICE, OVERHEAD):
        return None
    start, duration = _number(found.get("ts")), _number(found.get("dur"))
    if start is None or duration is None or not 0 <= duration <= LONGEST or abs(start) > LONGEST:
        raise ValueError(f"event {index}, a {category}, has no time that can be used")
    process, thread = (value if isinstance(value, int) else str(value) for value in (found.get("pid"), found.get("tid")))
    correlation = _number(args.get("correlation")) if isinstance(args, dict) else None
    name = _VERSION.sub("", name) if category in CALLS else name
    return Event(name, category, start, duration, process, thread, None if correlation is None else int(correlation))


def _number(value: Any) -> float | None:
    """A finite number, also one that some tool has made a string of."""
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _placed(events: list[Event]) -> list[tuple[Event, _Place]]:
    """All events with their places: the host's by thread and time, then the device's."""
    threads = defaultdict(list)
    for event in events:
        if event.category in HOST:
            threads[event.track].append(event)
    # the profiler does not record which thread had to wait while a module was loaded, so every thread that had a label then did
    loading = [event for event in events if event.category == OVERHEAD and event.name in LOADING_OVERHEADS]
    placed = [pair for thread in threads.values() for pair in _swept(thread + loading)]
    calls: dict[int | None, _Place] = {event.correlation: place for event, place in placed if event.category in CALLS}
    calls.pop(None, None)
    placed.extend((event, calls.get(event.correlation, _Place())) for event in events if event.category in DEVICE)
    return placed


def _swept(thread: list[Event]) -> Iterator[tuple[Event, _Place]]:
    """The events of one thread in order of time, with their places; a label's own is within it.

    Only where it starts matters: by rounding an event may end after the label that holds it.
    """
    open_labels: list[tuple[float, _Place]] = []
    operator, operator_ends = "", -math.inf
    for event in sorted(thread, key=lambda event: (event.start, -event.duration, event.category != LABEL)):
        while open_labels and open_labels[-1][0] <= event.start:
            open_labels.pop()
        place = open_labels[-1][1] if open_labels else _Place()
        if event.category == LABEL:
            place = place.within(event)
            open_labels.append((event.end, place))
        within_operator = event.start < operator_ends
        if event.category == OPERATOR and within_operator:
            event = event._replace(category=INNER_OPERATOR)  # noqa: PLW2901 (the same event, known better)
        elif event.category == OPERATOR and "::" in event.name:
            operator, operator_ends = event.name, event.end
        yield event, place._replace(operator=operator) if within_operator else place


def _step(label: Event, implementation: str, inside: list[tuple[Event, str]]) -> Step:
    """A step from what lies within its label, each with its stage."""
    stages: defaultdict[str, list[Event]] = defaultdict(list)
    host_times: defaultdict[str, float] = defaultdict(float)
    for event, stage in inside:
        if stage:
            stages[stage].append(event)
            host_times[stage] += event.duration if event.category == LABEL and event.name == stage else 0.0
    events = [event for event, _ in inside]
    return Step(
        implementation=implementation,
        number=int(label.name.removeprefix("step ")),
        whole=_count(events, label.duration),
        stages={stage: _count(held, host_times[stage]) for stage, held in stages.items()},
        parts=_parts(label, events),
    )


def _count(events: list[Event], host_time: float) -> Count:
    calls = Counter(event.name for event in events if event.category in CALLS)
    categories = Counter(event.category for event in events)
    return Count(
        host_launches=sum(calls[name] for name in LAUNCHES),
        device_operations=sum(categories[category] for category in DEVICE),
        kernels=categories[KERNEL],
        graph_launches=calls[GRAPH_LAUNCH],
        operators=sum(event.category == OPERATOR and "::" in event.name for event in events),  # the others are marks of torch.compile
        device_time=math.fsum(event.duration for event in events if event.category in DEVICE),
        host_time=host_time,
    )


def _unmatched(events: list[Event]) -> int:
    operations = {event.correlation for event in events if event.category in DEVICE} - {None}
    kernels = {event.correlation for event in events if event.category == KERNEL} - {None}
    calls = [event for event in events if event.category in CALLS]
    launches = sum(event.name in LAUNCHES and event.name != GRAPH_LAUNCH and event.correlation not in kernels for event in calls)
    return launches + sum(event.name.startswith(COPIES_AND_SETS) and event.correlation not in operations for event in calls)


def _costs(placed: list[tuple[Event, _Place]]) -> list[Cost]:
    costly = [(event, place) for event, place in placed if event.category in DEVICE]
    times = [event.duration for event, _ in costly]
    if not costly:
        operators = (OPERATOR, INNER_OPERATOR)
        costly = [(event, place) for event, place in placed if event.category in operators and not event.name.endswith(COMPILER_SPAN)]
        times = _own_times([event for event, _ in costly])
    found = defaultdict(list)
    for (event, place), time in zip(costly, times, strict=True):
        by_operator = event.category in DEVICE and place.operator
        category = OPERATOR if by_operator or event.category == INNER_OPERATOR else event.category
        found[place.operator if by_operator else event.name, category, place.implementation].append(time)
    costs = (Cost(name, category, len(t), math.fsum(t), implementation) for (name, category, implementation), t in found.items())
    return sorted(costs, key=lambda cost: (-cost.time_us, cost.implementation, cost.name))


def _own_times(operators: list[Event]) -> list[float]:
    """The duration of each operator without those directly within it; they come by thread and time."""
    times = [operator.duration for operator in operators]
    outer: list[int] = []  # the operators that are open
    for i, operator in enumerate(operators):
        while outer and (operators[outer[-1]].track != operator.track or operators[outer[-1]].end <= operator.start):
            outer.pop()
        if outer:
            times[outer[-1]] -= operator.duration
        outer.append(i)
    return times


def _parts(label: Event, events: list[Event]) -> dict[str, float]:
    by_part = defaultdict(list)
    for event in events:
        by_part[_part(event)].append(event)
    parts: dict[str, float] = {}
    spans: list[Event] = []
    for part in ("module loading", "allocation", "compilation", "launching"):
        spans += by_part[part]
        parts[part] = max(0.0, _covered(spans, label.end) - sum(parts.values()))  # rounding may make less than nothing
    return parts | {"rest": max(0.0, label.duration - sum(parts.values()))}


def _part(event: Event) -> str | None:
    """What an event spends the host's time on; torch.compile marks what it does as operators."""
    is_call = event.category in CALLS
    if event.name.endswith(COMPILER_SPAN) or (event.category == LABEL and event.name == labels.COMPILE):
        return "compilation"
    if event.category == OVERHEAD or (is_call and event.name.startswith(LOADS)):
        return "module loading"
    if is_call and event.name in LAUNCHES:
        return "launching"
    return "allocation" if is_call and event.name.startswith(ALLOCATIONS) else None


def _covered(spans: Iterable[Event], end: float) -> float:
    """Microseconds before `end` that lie within at least one of the spans."""
    covered, reached = 0.0, -math.inf
    for span in sorted(spans, key=lambda span: span.start):
        stop = min(span.end, end)
        covered += max(0.0, stop - max(span.start, reached))
        reached = max(reached, stop)
    return covered
