"""The state of a run as NumPy arrays in an NPZ file."""

from os import PathLike
from typing import Any

import numpy as np

from physarum.files import written_whole
from physarum.model.state import State


def write_npz(path: str | PathLike[str], state: State) -> None:
    """Write trail, x, y, heading, id, count and step under these names, with all their axes; whole or not at all.

    Raises:
        RunError: The file cannot be written.
    """
    arrays: dict[str, Any] = {name: tensor.cpu().numpy() for name, tensor in state.tensors().items()}
    with written_whole(path) as part, part.open("wb") as file:
        np.savez(file, step=np.int64(state.step), **arrays)
