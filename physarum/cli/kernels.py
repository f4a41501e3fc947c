"""`physarum kernels`: what each Triton kernel takes of a GPU."""

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from physarum.profiling.resources import Resources


def kernels(
    *,
    capability: Annotated[
        tuple[str, ...] | None,
        Parameter(
            help="compute capability of the GPU, several with commas or by repeating it [8.0,8.6,9.0,10.0]",
            negative=(),
            consume_multiple=False,
        ),
    ] = None,
    as_json: Annotated[bool, Parameter(name="--json", help="print the table as JSON", negative=(), show_default=False)] = False,
) -> int:
    """Show the registers, memory and occupancy of each Triton kernel. Needs no GPU.

    The kernels are compiled for each compute capability. A thread takes 32-bit registers and, where these do not suffice, bytes of stack
    and local memory; a program takes bytes of shared memory. Occupancy is the resident warps as a share of the most that the GPU can hold.
    Low occupancy alone is no fault: diffuse+decay trades it for sums of rows in registers.
    Variants: plain has one population and no maps; every map has two, with food, walls, light and an empty slot; largest is the same with
    cells counted in 64 bits. Fused are products and sums that round once for both: above 0 the bits differ from those of other backends.
    """
    from physarum.profiling.report import aligned  # noqa: PLC0415
    from physarum.profiling.resources import CAPABILITIES, resources  # noqa: PLC0415

    asked = [word.strip() for words in capability for word in words.split(",")] if capability else CAPABILITIES
    taken = resources(asked)
    print(json.dumps([dataclasses.asdict(kernel) for kernel in taken], indent=2) if as_json else aligned(_rows(taken), left=2))
    return 0


def _rows(taken: Sequence["Resources"]) -> list[list[str]]:
    """A row a kernel, below the names of the columns."""
    head = [field.name for field in dataclasses.fields(taken[0])]
    return [head, *([*map(str, dataclasses.astuple(kernel)[:-1]), f"{kernel.occupancy:.0%}"] for kernel in taken)]
