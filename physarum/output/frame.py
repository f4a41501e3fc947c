"""A frame: the trail of one world as an RGB picture."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from physarum.output.colour import colour_table
from physarum.output.tone import levels, thresholds


class Renderer:
    """Turns trail into pictures with a fixed exposure.

    Args:
        mean: Trail that is shown in a middling tone; see `tone.expected_mean`.
        colormap: One of matplotlib's colour maps.

    Raises:
        UsageError: There is no such colour map.
    """

    def __init__(self, mean: float, colormap: str = "magma") -> None:
        self._table = colour_table(colormap)
        self._thresholds = thresholds(mean)

    def frame(self, trail: Tensor) -> NDArray[np.uint8]:
        """The picture of a world.

        Args:
            trail: float32 (populations, height, width); populations are added up.

        Returns:
            uint8 (height, width, 3), RGB.
        """
        total = trail[0]
        for other in trail[1:]:
            total = total + other
        self._thresholds = self._thresholds.to(trail.device)
        picture: NDArray[np.uint8] = self._table[levels(total, self._thresholds).cpu().numpy()]
        return picture
