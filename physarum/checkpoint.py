"""Checkpoints: a batch of worlds and where it stands, in a safetensors file that carries its own SHA-256."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from physarum.errors import UsageError
from physarum.files import is_ordinary, shown, written_whole
from physarum.model.maps import Maps
from physarum.model.params import Params
from physarum.model.state import State, check_state
from physarum.model.world import World, as_worlds, check_reach

FORMAT = "physarum checkpoint 1"
DTYPES = (torch.float32, torch.int64, torch.int32, torch.int16, torch.bool)


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
        # a copy, since worlds may share a map and the library writes no memory twice
        tensors |= {f"{name}.{i}": field.contiguous().clone() for name in Maps._fields if (field := getattr(world, name)) is not None}
    description = json.dumps({"step": state.step, "worlds": described(worlds), "run": dict(run or {})})
    metadata = {"format": FORMAT, "description": description, "sha256": sha256(tensors, description)}
    content = safetensors.torch.save(tensors, metadata)
    with written_whole(path) as part:
        part.write_bytes(content)


def described(worlds: Sequence[World]) -> list[dict[str, Any]]:
    """All of the worlds but their maps, in JSON's types."""
    return [
        {
            "populations": [dataclasses.asdict(p) for p in w.populations],
            "attraction": w.attraction,
            "seed": w.seed,
            "number": w.number,
        }
        for w in worlds
    ]


def map_hashes(worlds: Sequence[World]) -> list[dict[str, str]]:
    """The SHA-256 of each map of each world."""
    return [{name: sha256({name: field}) for name in Maps._fields if (field := getattr(w, name)) is not None} for w in worlds]


def load(path: str | PathLike[str]) -> tuple[tuple[World, ...], State, dict[str, Any]]:
    """Read a checkpoint.

    Returns:
        The worlds, where they stand, and what `save` was given as `run`.

    Raises:
        UsageError: The file is missing, damaged or of another kind; nothing is loaded in part.
    """
    name = shown(path)
    if not is_ordinary(path):
        raise UsageError(f"there is no checkpoint {name}: it is missing or no ordinary file")
    try:
        # by its descriptor, since the library takes no name that is not UTF-8
        with Path(path).open("rb") as opened, safetensors.safe_open(f"/dev/fd/{opened.fileno()}", framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise UsageError(f"{name} is no checkpoint of this version ({FORMAT})")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
    except (safetensors.SafetensorError, OSError) as error:
        raise UsageError(f"{name} is no checkpoint, or it is damaged: {shown(str(error))[:200]}") from error
    strange = {key for key, tensor in tensors.items() if tensor.dtype not in DTYPES}
    if strange:
        raise UsageError(f"{name} holds no state that can be run: {min(strange)} is of a type that a checkpoint never has")
    description = metadata.get("description", "")
    if metadata.get("sha256") != sha256(tensors, description):
        raise UsageError(f"{name} is damaged: its content does not have the SHA-256 that it was written with")
    try:
        return _understood(tensors, json.loads(description))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise UsageError(f"{name} holds no state that can be run: {shown(str(error))[:200]}") from error


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
    foreign = tensors.keys() - names - {f"{name}.{i}" for name in Maps._fields for i in range(len(worlds))}
    if foreign:
        raise ValueError(f"{min(foreign)} has no meaning here")
    state = State(**{name: tensors[name] for name in names}, step=description["step"])
    state = check_state(state, len(worlds), len(as_worlds(worlds)[0].populations))
    check_reach(worlds, state.size)
    Maps.of(worlds, state.size)
    if not isinstance(description["run"], dict):
        raise TypeError("run is no table")
    return worlds, state, description["run"]
