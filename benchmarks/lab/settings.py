"""What every module of the lab is told."""

from dataclasses import dataclass

import torch

SCALES = ("toy", "small", "full")


@dataclass(frozen=True)
class Settings:
    """What is measured, and against what.

    Attributes:
        device: Where.
        trials: How often each case is timed, in turns with the others.
        scale: How large the cases are: "toy" for tests, "small" for a CPU, "full" for a GPU with tens of GB.
        bandwidth: Bytes a second that the device reads and writes while it copies: the roof of what moves bytes.
    """

    device: torch.device
    trials: int
    scale: str
    bandwidth: float
