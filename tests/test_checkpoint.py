"""Checkpoints: what is written comes back to the bit, and nothing that is damaged is loaded, not even in part."""

import dataclasses
import json
import os
import stat
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import AWKWARD, NARROW, SIZE, blobs, differing, full_disk, mapped_world, noise
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from physarum import Params, RunError, Simulation, State, UsageError, World, checkpoint

SMALL = (9, 8)


def small(seed: int = 3) -> Simulation:
    """A world whose checkpoint is under 2 kB."""
    sim = Simulation(World((NARROW,), food=noise(1, 8, 9), seed=seed), SMALL, 20, backend="torch")
    sim.run(3)
    return sim


def contents(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description in a checkpoint."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["description"])  # noqa: SIM118


def forged(path: Path, tensors: dict[str, Tensor], description: Any, form: str = checkpoint.FORMAT) -> Path:
    """A file whose SHA-256 is right, whatever it holds."""
    text = description if isinstance(description, str) else json.dumps(description)
    try:
        digest = checkpoint.sha256(tensors, text)
    except TypeError:  # a type that NumPy does not have
        digest = "0" * 64
    save_file(tensors, path, {"format": form, "description": text, "sha256": digest})
    return path


def refusal(path: Path) -> str:
    """The sentence with which a file is refused; it names the file."""
    with pytest.raises(UsageError) as error:
        checkpoint.load(path)
    sentence = str(error.value)
    assert path.name in sentence
    assert sentence.isprintable()
    return sentence


def same_worlds(loaded: Sequence[World], saved: Sequence[World]) -> None:
    for a, b in zip(loaded, saved, strict=True):
        assert (a.populations, a.attraction, a.seed, a.number) == (b.populations, b.attraction, b.seed, b.number)
        for name in ("food", "walls", "light"):
            field, other = getattr(a, name), getattr(b, name)
            assert (field is None) == (other is None)
            if field is not None:
                assert field.dtype == other.dtype
                assert field.numpy().tobytes() == other.numpy().tobytes()


def test_worlds_and_state_come_back_to_the_same_bits(tmp_path: Path) -> None:
    height, width = SIZE[1], SIZE[0]
    odd = Params(sensor_angle=0.1 + 0.2, decay_rate=1e-300, deposit_amount=1 / 3, diffusion=5e-324, rotation_angle=-360)
    worlds = [
        mapped_world(5),
        World((odd, AWKWARD), seed=2**32 - 1, number=7),
        World((AWKWARD, odd), attraction=[[0.1, -1000], [1e-17, 2 / 3]], walls=blobs(8, height, width)[None], seed=1, number=2**32 - 1),
    ]
    sim = Simulation(worlds, SIZE, 300, backend="torch", count=[[300, 17], [0, 300], [1, 299]])
    sim.run(11)
    state = sim.state()
    sim.save(tmp_path / "a")
    loaded, again, run = checkpoint.load(tmp_path / "a")
    same_worlds(loaded, sim.worlds)
    assert differing(state, again) == {}
    assert {name: t.dtype for name, t in again.tensors().items()} == {name: t.dtype for name, t in state.tensors().items()}
    assert run == {}
    assert os.listdir(tmp_path) == ["a"]


def test_a_loaded_batch_goes_on_as_the_one_that_was_saved(tmp_path: Path) -> None:
    sim = Simulation([mapped_world(5), mapped_world(6)], SIZE, 300, backend="torch", count=[[300, 20], [299, 1]])
    sim.run(4)
    sim.save(tmp_path / "a")
    again = Simulation.load(tmp_path / "a", "torch")
    assert again.step == 4
    for run in (sim, again):
        run.run(6)
    assert differing(sim.state(), again.state()) == {}


def test_edited_maps_and_changed_parameters_are_saved(tmp_path: Path) -> None:
    sim = small()
    sim.edit("light", (slice(2, 4), slice(None)), -3.5)
    sim.edit("walls", (slice(0, 1), slice(0, 2)), True)
    sim.set_params(World((NARROW,), attraction=-0.25, seed=99))
    sim.save(tmp_path / "a")
    again = Simulation.load(tmp_path / "a", "torch")
    same_worlds(again.worlds, sim.worlds)
    assert again.worlds[0].seed == 99
    for run in (sim, again):
        run.run(5)
    assert differing(sim.state(), again.state()) == {}


def test_one_world_twice_in_a_batch_is_saved(tmp_path: Path) -> None:
    world = World((NARROW,), food=noise(1, 8, 9), number=4, seed=1)
    sim = Simulation([world, world], SMALL, 20, backend="torch")
    sim.run(2)
    sim.save(tmp_path / "a")
    assert differing(Simulation.load(tmp_path / "a", "torch").state(), sim.state()) == {}


def test_tensors_of_any_layout_are_saved_right(tmp_path: Path) -> None:
    sim = small()
    state = sim.state()
    both = torch.stack([state.x, state.y], -1)
    views = dataclasses.replace(
        state,
        x=both[..., 0],
        y=both[..., 1],
        heading=state.heading.flip(-1).flip(-1),
        id=state.id.repeat_interleave(2, -1)[..., ::2],
        trail=state.trail.transpose(-1, -2).contiguous().transpose(-1, -2),
        count=torch.tensor(20).expand(1, 1),
    )
    assert not any(t.is_contiguous() for t in (views.x, views.y, views.id, views.trail))
    checkpoint.save(tmp_path / "a", sim.worlds, views)
    assert differing(checkpoint.load(tmp_path / "a")[1], state) == {}


def test_what_the_caller_gives_comes_back(tmp_path: Path) -> None:
    sim = small()
    run = {
        "outputs": ["a.png", os.fsdecode(b"bad\xff.mp4"), "ü\n"],
        "size": [9, 8],
        "fps": "30000/1001",
        "image": None,
        "steps": 2**62,
        "x": 0.1,
    }
    checkpoint.save(tmp_path / "a", sim.worlds, sim.state(), run)
    assert checkpoint.load(tmp_path / "a")[2] == run


@pytest.mark.parametrize(
    "name", ["a b.safetensors", "ü ж", "100%d", "-x", "a:b", "new\nline", "no suffix", os.fsdecode(b"bad\xff.safetensors")]
)
def test_any_name_of_a_file_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    sim = small()
    sim.save(name)
    assert os.listdir() == [name]
    assert differing(Simulation.load(name, "torch").state(), sim.state()) == {}


def test_the_folder_is_made(tmp_path: Path) -> None:
    small().save(tmp_path / "new" / "folder" / "a")
    assert os.listdir(tmp_path / "new" / "folder") == ["a"]


def test_a_checkpoint_is_as_readable_as_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "any").touch()
    small().save(tmp_path / "a")
    assert stat.filemode((tmp_path / "a").stat().st_mode) == stat.filemode((tmp_path / "any").stat().st_mode)


# Writing fails


def test_a_full_disk_leaves_the_former_checkpoint(tmp_path: Path) -> None:
    small(1).save(tmp_path / "a")
    former = (tmp_path / "a").read_bytes()
    with full_disk(1000), pytest.raises(RunError, match=r"cannot write .*a: .*[Ff]ile too large") as error:
        small(2).save(tmp_path / "a")
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == former


@pytest.mark.parametrize(("raised", "seen"), [(OSError(28, "No space left on device"), RunError), (KeyboardInterrupt(), KeyboardInterrupt)])
def test_a_failure_while_flushing_leaves_the_former_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, seen: type[BaseException]
) -> None:
    small(1).save(tmp_path / "a")
    former = (tmp_path / "a").read_bytes()

    def fail(descriptor: int) -> None:
        raise raised

    monkeypatch.setattr("physarum.files.os.fsync", fail)
    with pytest.raises(seen):
        small(2).save(tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == former


def test_the_name_is_given_only_to_what_has_been_flushed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = small(1)
    sim.save(tmp_path / "a")
    former, flushed = (tmp_path / "a").read_bytes(), []
    fsync = os.fsync

    def look(descriptor: int) -> None:
        assert (tmp_path / "a").read_bytes() == former
        flushed.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr("physarum.files.os.fsync", look)
    sim.run(1)
    sim.save(tmp_path / "a")
    assert (tmp_path / "a").stat().st_ino in flushed
    assert (tmp_path / "a").read_bytes() != former


def test_where_no_file_can_be_that_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "a", tmp_path / "folder", tmp_path / ("long" * 64)):
        with pytest.raises(RunError, match="cannot write"):
            small().save(path)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


# Damage


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small checkpoint."""
    path = tmp_path_factory.mktemp("good") / "a"
    sim = small()
    checkpoint.save(path, sim.worlds, sim.state(), {"steps": 5, "outputs": ["a.png"]})
    return path.read_bytes()


def test_every_flipped_bit_is_noticed(tmp_path: Path, good: bytes) -> None:
    path = tmp_path / "flipped"
    assert len(good) > 1500
    for place in range(len(good)):
        damaged = bytearray(good)
        damaged[place] ^= 1 << (place * 5 % 8)
        path.write_bytes(damaged)
        refusal(path)


def test_every_cut_is_noticed(tmp_path: Path, good: bytes) -> None:
    path = tmp_path / "cut"
    for length in range(len(good)):
        path.write_bytes(good[:length])
        refusal(path)
    for extra in (b"\0", b"more"):
        path.write_bytes(good + extra)
        refusal(path)


def test_swapped_bytes_are_noticed(tmp_path: Path, good: bytes) -> None:
    header = 8 + struct.unpack("<Q", good[:8])[0]
    body = bytearray(good[header:])
    body[0], body[-1], body[4:8], body[-8:-4] = body[-1], body[0], body[-8:-4], body[4:8]
    path = tmp_path / "swapped"
    path.write_bytes(good[:header] + body)
    assert "SHA-256" in refusal(path)


@pytest.mark.timeout(20)
def test_what_is_no_ordinary_file_is_refused_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "file").touch()
    for name in ("folder", "pipe", "link", "missing", "file/inside", "long" * 64):
        assert "checkpoint" in refusal(tmp_path / name)


def header(tensors: dict[str, Any], length: int | None = None, body: bytes = b"") -> bytes:
    """A safetensors file with this header, and a length of its header as told."""
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


FOREIGN = {
    "empty": b"",
    "seven bytes": b"\0" * 7,
    "text": b"sensor_angle = 30\n" * 50,
    "page": b"<!DOCTYPE html><html><head><title>Sign in</title></head><body></body></html>\n" * 20,
    "PNG": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(300),
    "zip": b"PK\3\4" + bytes(300),
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "header of 1 GB": header({}, 10**9),
    "header of 99 MB": header({}, 99 * 10**6),
    "header of 2^63": header({}, 2**63),
    "header of 2^64 - 1": header({}, 2**64 - 1),
    "header of 0": header({}, 0),
    "header is no JSON": struct.pack("<Q", 4) + b"{{{{",
    "header is a list": struct.pack("<Q", 2) + b"[]",
    "header is nested": struct.pack("<Q", 200_000) + b"[" * 200_000,
    "header is no UTF-8": struct.pack("<Q", 6) + b'{"\xff":1}'[:6],
    "no tensors": header({}),
    "offsets outside": header({"x": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}, body=bytes(40)),
    "offsets backwards": header({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, body=bytes(4)),
    "offsets of 2^63": header({"x": {"dtype": "F32", "shape": [2**61], "data_offsets": [0, 2**63]}}, body=bytes(40)),
    "a shape that overflows": header({"x": {"dtype": "F32", "shape": [2**62, 2**62, 16], "data_offsets": [0, 0]}}),
    "negative offsets": header({"x": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, body=bytes(4)),
    "tensors overlap": header({n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "xy"}, body=bytes(4)),
    "metadata is no text": header(
        {"__metadata__": {"format": 7}, "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, body=bytes(4)
    ),
    "unknown type": header({"x": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}, body=bytes(4)),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "foreign.safetensors"
    path.write_bytes(FOREIGN[kind])
    began = time.perf_counter()
    refusal(path)
    assert time.perf_counter() - began < 5


def test_safetensors_of_other_programs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    for metadata in (None, {}, {"format": "pt"}, {"format": "physarum checkpoint 2"}, {"format": "physarum"}):
        save_file({"x": torch.zeros(3)}, path, metadata)
        assert f"no checkpoint of this version ({checkpoint.FORMAT})" in refusal(path)


@pytest.mark.parametrize("lost", ["format", "description", "sha256"])
def test_no_part_of_the_metadata_may_be_missing_or_changed(tmp_path: Path, good: bytes, lost: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(good)
    tensors, _ = contents(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    save_file(tensors, path, metadata)
    checkpoint.load(path)
    save_file(tensors, path, {name: value for name, value in metadata.items() if name != lost})
    refusal(path)
    save_file(tensors, path, metadata | {lost: metadata[lost] + " "})
    refusal(path)


@pytest.mark.parametrize("name", ["count", "food.0", "heading", "id", "trail", "x", "y"])
def test_no_tensor_may_be_missing_or_renamed(tmp_path: Path, good: bytes, name: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(good)
    tensors, description = contents(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    lost = tensors.pop(name)
    save_file(tensors, path, metadata)
    assert "SHA-256" in refusal(path)
    save_file(tensors | {f"{name}x": lost}, path, metadata)
    assert "SHA-256" in refusal(path)
    if name != "food.0":  # a world may have no food
        assert name in refusal(forged(path, tensors, description))


@pytest.mark.parametrize("name", ["z", "food", "food.1", "walls.00", "smell.0", "step"])
def test_a_tensor_that_has_no_meaning_here_is_not_passed_over(tmp_path: Path, good: bytes, name: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(good)
    tensors, description = contents(path)
    assert name in refusal(forged(path, tensors | {name: torch.zeros(8, 9)}, description))


def everywhere(value: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: torch.full_like(tensor, value)


NAN = float("nan")
IMPOSSIBLE_TENSORS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "an agent beyond the right side": ("x", everywhere(9.0)),
    "an agent left of the world": ("x", everywhere(-1e-9)),
    "an agent below": ("y", everywhere(8.0)),
    "an agent nowhere": ("y", everywhere(NAN)),
    "an id twice": ("id", lambda t: t.clamp(min=1)),
    "an id beyond": ("id", lambda t: t + 1),
    "trail that is no number": ("trail", everywhere(NAN)),
    "trail without end": ("trail", everywhere(float("inf"))),
    "trail below 0": ("trail", everywhere(-1.0)),
    "more agents than slots": ("count", everywhere(21)),
    "fewer agents than none": ("count", everywhere(-1)),
    "x of float64": ("x", lambda t: t.double()),
    "x of float16": ("x", lambda t: t.half()),
    "x of bfloat16": ("x", lambda t: t.bfloat16()),
    "trail of int32": ("trail", lambda t: t.int()),
    "heading of int32": ("heading", lambda t: t.int()),
    "id of int64": ("id", lambda t: t.long()),
    "count of float": ("count", lambda t: t.float()),
    "food of bfloat16": ("food.0", lambda t: t.bfloat16()),
    "one x too few": ("x", lambda t: t[..., 1:].clone()),
    "no axis of worlds": ("x", lambda t: t[0].clone()),
    "two worlds": ("trail", lambda t: torch.cat([t, t])),
    "a trail of 7 rows": ("trail", lambda t: t[..., 1:, :].clone()),
    "an empty trail": ("trail", lambda t: t[..., :0].clone()),
    "no agents": ("x", lambda t: t[..., :0].clone()),
    "a count too many": ("count", lambda t: torch.cat([t, t])),
    "food that is no number": ("food.0", everywhere(NAN)),
    "food below 0": ("food.0", everywhere(-1.0)),
    "food of another size": ("food.0", lambda t: t[1:].clone()),
    "food for two populations": ("food.0", lambda t: torch.stack([t, t])),
    "food in a row": ("food.0", lambda t: t[0].clone()),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE_TENSORS)
def test_tensors_that_cannot_be_are_refused_though_their_hash_is_right(tmp_path: Path, good: bytes, kind: str) -> None:
    path = tmp_path / "impossible.safetensors"
    path.write_bytes(good)
    tensors, description = contents(path)
    name, change = IMPOSSIBLE_TENSORS[kind]
    refusal(forged(path, tensors | {name: change(tensors[name])}, description))


def changed(**world: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda d: d | {"worlds": [d["worlds"][0] | world]}


def changed_population(**params: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda d: changed(populations=[d["worlds"][0]["populations"][0] | params])(d)


IMPOSSIBLE_DESCRIPTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no JSON": lambda d: "{",
    "nothing": lambda d: "",
    "nested without end": lambda d: "[" * 100_000,
    "a number of many digits": lambda d: "1" * 10_000,
    "null": lambda d: None,
    "a list": lambda d: [],
    "no worlds": lambda d: d | {"worlds": []},
    "worlds in a text": lambda d: d | {"worlds": "ab"},
    "two worlds": lambda d: d | {"worlds": d["worlds"] * 2},
    "worlds of unequal populations": lambda d: d | {"worlds": [d["worlds"][0], d["worlds"][0] | {"populations": []}]},
    "no step": lambda d: {name: value for name, value in d.items() if name != "step"},
    "a step below 0": lambda d: d | {"step": -1},
    "a step that is no whole number": lambda d: d | {"step": 3.0},
    "a step that is true": lambda d: d | {"step": True},
    "a step beyond counting": lambda d: d | {"step": 2**70},
    "a run that is no table": lambda d: d | {"run": None},
    "no run": lambda d: {name: value for name, value in d.items() if name != "run"},
    "no populations": changed(populations=[]),
    "two populations": lambda d: changed(populations=d["worlds"][0]["populations"] * 2, attraction=[[1, 0], [0, 1]])(d),
    "a seed that is text": changed(seed="3"),
    "a seed too large": changed(seed=2**32),
    "a number below 0": changed(number=-1),
    "attraction of a wrong shape": changed(attraction=[[1.0, 2.0]]),
    "attraction that is no number": changed(attraction=[[NAN]]),
    "a parameter that is no number": changed_population(decay_rate=NAN),
    "a parameter out of range": changed_population(decay_rate=1.5),
    "a parameter unknown": changed_population(gravity=9.81),
    "a step longer than the world": changed_population(step_size=7.0),
    "a sensor beyond the world": changed_population(sensor_distance=7.0),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE_DESCRIPTIONS)
def test_descriptions_that_cannot_be_are_refused_though_their_hash_is_right(tmp_path: Path, good: bytes, kind: str) -> None:
    path = tmp_path / "impossible.safetensors"
    path.write_bytes(good)
    tensors, description = contents(path)
    refusal(forged(path, tensors, IMPOSSIBLE_DESCRIPTIONS[kind](description)))


def test_a_forged_file_that_is_possible_is_read(tmp_path: Path, good: bytes) -> None:
    """Or the refusals above would prove nothing."""
    path = tmp_path / "a"
    path.write_bytes(good)
    tensors, description = contents(path)
    state = checkpoint.load(path)[1]
    forged(path, tensors, changed_population(step_size=6.5)(description))
    worlds, again, run = checkpoint.load(path)
    assert worlds[0].populations[0].step_size == 6.5
    assert differing(state, again) == {}
    assert run == {"steps": 5, "outputs": ["a.png"]}


def test_the_hash_tells_apart_what_differs_in_name_type_shape_bits_or_text() -> None:
    zeros = torch.zeros(6)
    variants: list[tuple[dict[str, Tensor], str]] = [
        ({"a": zeros}, ""),
        ({"b": zeros}, ""),
        ({"a": zeros.view(2, 3)}, ""),
        ({"a": zeros.view(torch.int32)}, ""),
        ({"a": -zeros}, ""),
        ({"a": zeros, "b": zeros}, ""),
        ({"a": zeros}, "text"),
    ]
    assert len({checkpoint.sha256(*variant) for variant in variants}) == len(variants)
    pair = {"a": zeros, "b": torch.ones(2)}
    assert checkpoint.sha256(pair) == checkpoint.sha256(dict(reversed(pair.items())))
    grid = torch.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert checkpoint.sha256({"a": grid.T}) == checkpoint.sha256({"a": grid.T.contiguous()}) != checkpoint.sha256({"a": grid.view(3, 2)})


def test_the_hash_of_a_state_is_the_same_on_every_machine() -> None:
    width, height = SMALL
    ids = torch.arange(3, dtype=torch.int32).view(1, 1, 3)
    place = torch.tensor([[[0.5, 1.25, 2.0]]])
    state = State(place, place, ids.short(), ids, torch.ones(1, 1, height, width), torch.tensor([[3]]))
    assert checkpoint.sha256(state.tensors()) == "6b5af3182f8fe419e76fd9aec88858103599a0837a4feb8d9c4dbb2526f8f9b9"
