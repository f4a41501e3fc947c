"""Colour maps: 256 entries from dark to light, by matplotlib's names."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from physarum.errors import UsageError, did_you_mean


@cache
def colour_table(name: str) -> NDArray[np.uint8]:
    """The colours of a map.

    Args:
        name: One of matplotlib's colour maps.

    Returns:
        uint8 (256, 3), RGB.

    Raises:
        UsageError: There is no such map; the nearest name is in the sentence.
    """
    import matplotlib  # noqa: PLC0415 (slow to import)

    if name not in matplotlib.colormaps:
        raise UsageError(f"there is no colour map {name!r}{did_you_mean(name, matplotlib.colormaps)}: try magma, viridis or bone")
    table: NDArray[np.uint8] = matplotlib.colormaps[name].resampled(256)(np.arange(256), bytes=True)[:, :3]
    return np.ascontiguousarray(table)
