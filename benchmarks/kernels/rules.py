"""What is known of a kernel, and the rules that say what to look at next, each with its reason."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Code:
    """What the compiler made of a kernel.

    Attributes:
        registers: 32-bit registers a thread.
        stack: Bytes a thread; above 0 it spills registers to memory.
        local: Bytes a thread of memory of its own besides the stack; 0 too, unless it spills.
        shared: Bytes of shared memory a program.
        occupancy: Share of a multiprocessor's warps that can be there at once, 0 to 1.
        limited_by: What keeps more warps away.
        flop: Additions, subtractions and multiplications in float32 that a program does, counted in its PTX; no kernel has a loop there.
    """

    registers: int
    stack: int
    local: int
    shared: int
    occupancy: float
    limited_by: str
    flop: int


@dataclass(frozen=True)
class Times:
    """How long a kernel takes and what it must do meanwhile.

    Attributes:
        us: Microseconds on the device.
        host_us: Microseconds that the host takes to launch it.
        programs: Launched.
        at_once: Programs for which the device has room at once.
        bytes: That it must move.
        l2_bytes: Of the L2 cache.
        roof_share: Bytes a second that it must move as a share of those that a copy moves.
        intensity: FLOP a byte.
        ridge: FLOP a byte above which arithmetic takes longer than memory on this machine.
    """

    us: float
    host_us: float
    programs: int
    at_once: int
    bytes: float
    l2_bytes: int
    roof_share: float
    intensity: float
    ridge: float


@dataclass(frozen=True)
class Counters:
    """What Nsight Compute counted; in per cent of the peak, unless said otherwise.

    Attributes:
        dram: Throughput of device memory.
        l2: Throughput of the busiest part of the L2 cache.
        l2_sectors: Sectors through the L2 cache.
        l1_hit: Per cent of sectors that the L1 cache had.
        sm: Throughput of the busiest part of the multiprocessors.
        issue: Share of cycles in which a scheduler issues an instruction.
        occupancy: Warps that were there.
        sectors_a_load: Of 32 bytes, that an instruction which loads from global memory asks for.
        excess: Share of the sectors asked of L2 that would be spared if lanes beside each other reached bytes beside each other, 0 to 1.
        stalls: What warps waited for, in words, the longest first, and cycles of warps for an instruction issued.
    """

    dram: float
    l2: float
    l2_sectors: float
    l1_hit: float
    sm: float
    issue: float
    occupancy: float
    sectors_a_load: float
    excess: float
    stalls: tuple[tuple[str, float], ...]

    @property
    def longest(self) -> str:
        """The three longest stalls."""
        return ", ".join(f"{words} ({warps:.1f})" for words, warps in self.stalls[:3])


class Rule(NamedTuple):
    """When something is to be looked at, and why; `look` may name what the kernel is known by, such as {us}."""

    name: str
    applies: Callable[[Any], bool]
    look: str


CODE_RULES = (
    Rule(
        "spills",
        lambda k: k.stack + k.local > 0,
        "{k.stack} bytes of stack and {k.local} of local memory a thread are registers that go through memory: "
        "give a thread fewer elements, by a smaller block or more warps",
    ),
    Rule(
        "few warps",
        lambda k: k.occupancy < 0.5,
        "room for {k.occupancy:.0%} of the warps, limited by {k.limited_by}: fewer warps hide less of the wait for memory, "
        "unless each has many loads under way",
    ),
)
TIME_RULES = (
    Rule(
        "launch-bound",
        lambda k: k.us < k.host_us,
        "the host takes {k.host_us:.1f} us to launch what the device does in {k.us:.1f}: no faster kernel shows; replay a graph of steps",
    ),
    Rule(
        "small grid",
        lambda k: k.programs < k.at_once,
        "{k.programs} programs where {k.at_once} have room at once: part of the device is idle; smaller blocks, or more worlds in a batch",
    ),
    Rule(
        "held by L2",
        lambda k: k.bytes < k.l2_bytes,
        "what it moves fits the L2 cache, whose rate is above that of memory: judge its share of the roof at a larger size",
    ),
    Rule(
        "compute-bound",
        lambda k: k.intensity > k.ridge,
        "{k.intensity:.1f} FLOP a byte, above the ridge at {k.ridge:.1f}: fewer operations before fewer bytes",
    ),
    Rule(
        "at the roof",
        lambda k: k.bytes >= k.l2_bytes and k.roof_share >= 0.8,
        "{k.roof_share:.0%} of a copy's rate: only fewer bytes help, by smaller types or by a stage that is fused into another",
    ),
    Rule(
        "below the roof",
        lambda k: k.bytes >= k.l2_bytes and k.us >= k.host_us and k.intensity <= k.ridge and k.roof_share < 0.8,
        "its bytes explain {k.roof_share:.0%} of its time: the counters tell the rest, requests to L2, instructions or waiting",
    ),
)
COUNTER_RULES = (
    Rule(
        "scattered",
        lambda k: k.excess > 0.3 and k.dram < 70,
        "{k.excess:.0%} of the sectors it asks for are in excess: lanes beside each other reach cells apart; look at the order of agents",
    ),
    Rule(
        "L2-request-bound",
        lambda k: k.l2 >= 70 and k.dram < 70,
        "L2 at {k.l2:.0f} % while memory is at {k.dram:.0f} %: fewer or fuller requests, by a better L1 hit rate (now {k.l1_hit:.0f} %), "
        "coalescing or fewer atomics",
    ),
    Rule("memory-bound", lambda k: k.dram >= 70, "memory at {k.dram:.0f} %: fewer bytes"),
    Rule("issue-bound", lambda k: k.issue >= 70, "instructions are issued in {k.issue:.0f} % of the cycles: fewer instructions an element"),
    Rule(
        "waiting",
        lambda k: max(k.dram, k.l2, k.sm, k.issue) < 60,
        "nothing is at 60 %, so that latency is all: more warps, or more loads under way in each; it waits for {k.longest}",
    ),
)


def findings(rules: Sequence[Rule], known: Code | Times | Counters | None) -> list[str]:
    """What the rules say of a kernel, in order; nothing where nothing is known."""
    return [f"{rule.name}: {rule.look.format(k=known)}" for rule in rules if known is not None and rule.applies(known)]
