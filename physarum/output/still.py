"""Still pictures: fitting one to a world, writing PNG."""

import os

import imageio.v3 as iio
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from physarum.errors import UsageError
from physarum.files import written_whole


def fit_picture(picture: Tensor, size: tuple[int, int] | None, longest: int = 1024, shortest: int = 8) -> tuple[Tensor, str | None]:
    """Fit a picture to a world.

    With a size, the picture is scaled to cover the world and cropped at the centre. Without, it keeps its shape; its long side is brought
    down to `longest`, its short side up to `shortest`, and only a picture too thin for both is stretched across.

    Args:
        picture: Float32 (height, width).
        size: (width, height) of the world in cells, or None to follow the picture.
        longest: Most cells of the long side without a size.
        shortest: Fewest cells of either side without a size.

    Returns:
        The fitted picture, float32 (height, width), within the range of the given one; and a sentence about what was done, or None if
        it is unchanged.
    """
    height, width = picture.shape
    if size is None:
        scale = min(longest / max(width, height), max(1.0, shortest / min(width, height)))
        new_width, new_height = (max(shortest, round(side * scale)) for side in (width, height))
        kept_width, kept_height = float(width), float(height)
        how = ", stretched across because it is so thin" if round(min(width, height) * scale) < shortest else ""
    else:
        new_width, new_height = size
        # The largest part of the picture that has the world's shape.
        kept_width = min(width, height * new_width / new_height)
        kept_height = min(height, width * new_height / new_width)
        how = _cut_off(kept_width / width, kept_height / height)
    if (new_width, new_height) == (width, height):
        return picture, None
    # Pillow sums in float64 and rounds once a pass; torch's antialiased kernels sum in float32, in an order that depends on the processor.
    # Hamming averages over an area as wide as a cell, almost as sharp as a box; it has no negative lobes, so 0 to 1 stays 0 to 1.
    fitted = Image.fromarray(picture.numpy()).resize(
        (new_width, new_height),
        Image.Resampling.HAMMING,
        box=((width - kept_width) / 2, (height - kept_height) / 2, (width + kept_width) / 2, (height + kept_height) / 2),
    )
    note = f"the picture of {width}x{height} pixels was scaled to {new_width}x{new_height}{how}"
    return torch.from_numpy(np.array(fitted)), note


def write_png(path: str | os.PathLike[str], pixels: NDArray[np.uint8]) -> None:
    """Write an 8-bit PNG, whole or not at all.

    Args:
        path: The file to write; an existing one is replaced.
        pixels: uint8, (height, width, 3) for sRGB or (height, width) for grey.

    Raises:
        UsageError: The array has another type or shape.
        RunError: The file cannot be written.
    """
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3) or pixels.size == 0:
        raise UsageError(f"a PNG takes uint8 of (height, width, 3) or (height, width), not {pixels.dtype} of {pixels.shape}")
    # As an open file, so that no name is taken for a pattern or an address.
    with written_whole(path) as part, part.open("wb") as file:
        iio.imwrite(file, pixels, plugin="pillow", extension=".png")


def _cut_off(kept_width: float, kept_height: float) -> str:
    """What cropping took, for the note; the arguments are shares of the sides, 0 to 1."""
    for kept, side in ((kept_width, "width"), (kept_height, "height")):
        if kept < 0.9995:
            return f", with {min(1 - kept, 0.999):.1%} of its {side} cut off, half at either end"
    return ""
