"""Checkpoints: a batch of worlds and where it stands, in a safetensors file that carries its own SHA-256."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from physarum.errors import UsageError
from physarum.files import shown, written_whole
from physarum.model.maps import Maps
from physarum.model.params import Params
from physarum.model.state import State, check_state
from physarum.model.world import World

FORMAT = "physarum checkpoint 1"


def save(path: str | PathLike[str], worlds: Sequence[World], state: State, run: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint to a temporary name, flush it and rename it.

    Args:
        path: The file.
        worlds: The batch; the trails that it started from are not kept, since the state holds the trail.
        state: Where it stands.
        run: What the caller wants to find again, of JSON's types.

    Raises:
        RunError: The file cannot be written.
    """
    tensors = {name: tensor.cpu().contiguous() for name, tensor in state.tensors().items()}
    for i, world in enumerate(worlds):
        tensors |= {f"{name}.{i}": field for name in Maps._fields if (field := getattr(world, name)) is not None}
    description = json.dumps(
        {
            "step": state.step,
            "worlds": [
                {
                    "populations": [dataclasses.asdict(p) for p in w.populations],
                    "attraction": w.attraction,
                    "seed": w.seed,
                    "number": w.number,
                }
                for w in worlds
            ],
            "run": dict(run or {}),
        }
    )
    metadata = {"format": FORMAT, "description": description, "sha256": sha256(tensors, description)}
    with written_whole(path) as part:
        save_file(tensors, part, metadata)


def load(path: str | PathLike[str]) -> tuple[tuple[World, ...], State, dict[str, Any]]:
    """Read a checkpoint.

    Returns:
        The worlds, where they stand, and what `save` was given as `run`.

    Raises:
        UsageError: The file is missing, damaged or of another kind; nothing is loaded in part.
    """
    name = shown(path)
    if not Path(path).is_file():
        raise UsageError(f"there is no checkpoint {name}: it is missing or no ordinary file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise UsageError(f"{name} is no checkpoint of this version ({FORMAT})")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{name} is no checkpoint, or it is damaged: {str(error).splitlines()[0]}") from error
    description = metadata.get("description", "")
    if metadata.get("sha256") != sha256(tensors, description):
        raise UsageError(f"{name} is damaged: its content does not have the SHA-256 that it was written with")
    try:
        return _understood(tensors, json.loads(description))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{name} holds no state that can be run: {error}") from error


def sha256(tensors: Mapping[str, Tensor], description: str = "") -> str:
    """The hash of tensors with their names, types and shapes, and of a text."""
    digest = hashlib.sha256(description.encode())
    for name, tensor in sorted(tensors.items()):
        array = tensor.cpu().contiguous().numpy()
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view("u1").data)
    return digest.hexdigest()


def _understood(tensors: dict[str, Tensor], description: dict[str, Any]) -> tuple[tuple[World, ...], State, dict[str, Any]]:
    worlds = tuple(
        World(
            populations=tuple(Params(**p) for p in w["populations"]),
            attraction=w["attraction"],
            seed=w["seed"],
            number=w["number"],
            **{name: tensors.get(f"{name}.{i}") for name in Maps._fields},
        )
        for i, w in enumerate(description["worlds"])
    )
    names = {f.name for f in dataclasses.fields(State)} - {"step"}
    state = State(**{name: tensors[name] for name in names}, step=description["step"])
    check_state(state, len(worlds), len(worlds[0].populations))
    return worlds, state, description["run"]
