"""Whether a run fits the memory there is."""

from collections.abc import Sequence
from pathlib import Path

import torch

from physarum.backends.torch_backend import TorchBackend
from physarum.errors import UsageError
from physarum.model.maps import map_bytes
from physarum.model.world import World

CGROUP = Path("/sys/fs/cgroup")


def check_memory(backend: type[TorchBackend], device: torch.device, worlds: Sequence[World], size: tuple[int, int], agents: int) -> None:
    """See that a run fits, before anything is allocated.

    Args:
        backend: Which advances it.
        device: Where.
        worlds: The batch.
        size: (width, height) in cells.
        agents: Slots a population.

    Raises:
        UsageError: It does not, with the bytes needed, the bytes there are, and the largest world of the same shape that would fit.
    """
    needed = backend.bytes_needed(len(worlds), len(worlds[0].populations), size, agents) + map_bytes(worlds, size)
    available = available_bytes(device)
    if available is None or needed <= available:
        return
    shrink = (available / needed) ** 0.5
    fits = "x".join(str(int(side * shrink)) for side in size)
    raise UsageError(
        f"the run needs about {needed / 1e9:.1f} GB on {device}, where {available / 1e9:.1f} GB are free: "
        f"at the same density a world of {fits} fits"
    )


def available_bytes(device: torch.device) -> int | None:
    """Free memory of a GPU, or of this machine or container; None where it cannot be told."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # held by PyTorch for its next arrays
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    free = [v for v in (_available_to_machine(), _available_to_container()) if v is not None]
    return min(free, default=None)


def _available_to_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _available_to_container() -> int | None:
    try:
        limit, used, statistics = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current", "memory.stat"))
    except OSError:
        return None
    files = next((int(line.split()[1]) for line in statistics.splitlines() if line.startswith("inactive_file ")), 0)  # given back at need
    return None if limit == "max" else max(0, int(limit) - int(used) + files)
