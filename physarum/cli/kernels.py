"""`physarum kernels`: what each Triton kernel takes of a GPU."""

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from physarum.profiling.kernels import Resources


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
    """Compile the Triton kernels, for which no GPU is needed, and tell what each takes of one.

    A thread takes 32-bit registers, and where these do not suffice bytes of stack and local memory; a program takes bytes of shared memory.
    The registers decide the occupancy: the share of the warps for which the GPU has room that can be there at once. Fused are products and
    sums that round once for both: above 0 the bits differ from those of other backends.
    """
    from physarum.profiling.kernels import CAPABILITIES, resources  # noqa: PLC0415

    asked = [word.strip() for words in capability for word in words.split(",")] if capability else CAPABILITIES
    taken = resources(asked)
    print(json.dumps([dataclasses.asdict(kernel) for kernel in taken], indent=2) if as_json else _table(taken))
    return 0


def _table(taken: Sequence["Resources"]) -> str:
    """A line a kernel; words to the left, numbers to the right."""
    head = [field.name for field in dataclasses.fields(taken[0])]
    rows = [[*map(str, dataclasses.astuple(kernel)[:-1]), f"{kernel.occupancy:.0%}"] for kernel in taken]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in (head, *rows)
    )
