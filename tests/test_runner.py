"""The loop of a run: which steps become frames, what is written, and what is left when it is stopped or fails."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from cases import AWKWARD, differing, full_disk, mapped_world
from PIL import Image

from physarum import RunError, Simulation, State, UsageError, World, __version__, checkpoint, runner
from physarum.output.frame import Renderer
from physarum.output.names import check_outputs
from physarum.output.video import VideoWriter
from physarum.runner import Outcome, Plan, run

SIZE = (64, 48)
MEAN = 4.0


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[np.ndarray]]:
    """Every frame that is handed to a video, by the video's name."""
    frames: dict[str, list[np.ndarray]] = {}
    write = VideoWriter.write

    def watched(self: VideoWriter, frame: np.ndarray) -> None:
        frames.setdefault(self.path.name, []).append(frame.copy())
        write(self, frame)

    monkeypatch.setattr(VideoWriter, "write", watched)
    return frames


def simulation(steps: int = 0, seed: int = 3) -> Simulation:
    sim = Simulation(World((AWKWARD,), seed=seed), SIZE, 200, backend="torch")
    sim.run(steps)
    return sim


def frame_at(step: int) -> np.ndarray:
    return Renderer(MEAN).frame(simulation(step).trail[0])


def plan(steps: int, *outputs: Path, **more: Any) -> Plan:
    return Plan(steps, outputs, **({"mean": MEAN, "every": 1} | more))


def played(path: Path) -> int:
    """How many frames a player shows."""
    with av.open(f"file:{path}") as container:
        return sum(1 for _ in container.decode(video=0))


def strict(path: Path) -> dict[str, Any]:
    """A JSON file read as the standard has it: no NaN, no infinity, UTF-8."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    content: dict[str, Any] = json.loads(path.read_bytes().decode("utf-8"), parse_constant=refuse)
    return content


def same_frames(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    assert [f.tobytes() for f in a] == [f.tobytes() for f in b]


# Frames


@pytest.mark.parametrize(("steps", "every"), [(0, 1), (0, 5), (1, 1), (7, 1), (10, 5), (11, 5), (9, 5), (3, 5), (20, 7), (5, 2**62)])
def test_there_is_a_frame_at_the_start_and_one_every_so_many_steps(
    tmp_path: Path, drawn: dict[str, list[np.ndarray]], steps: int, every: int
) -> None:
    outcome = run(simulation(), plan(steps, tmp_path / "a.mp4", every=every))
    assert outcome.step == steps
    assert not outcome.interrupted
    assert outcome.checkpoint is None
    assert len(drawn["a.mp4"]) == played(tmp_path / "a.mp4") == 1 + steps // every
    same_frames(drawn["a.mp4"], [frame_at(step) for step in range(0, steps + 1, every)])
    assert sorted(os.listdir(tmp_path)) == ["a.mp4", "a.mp4.json"]


def test_two_videos_get_the_same_frames(tmp_path: Path, drawn: dict[str, list[np.ndarray]]) -> None:
    run(simulation(), plan(9, tmp_path / "a.mp4", tmp_path / "b.MP4", every=2))
    assert len(drawn["a.mp4"]) == 5
    same_frames(drawn["a.mp4"], drawn["b.MP4"])
    assert played(tmp_path / "b.MP4") == 5


def test_odd_sizes_are_said_to_be_padded(tmp_path: Path) -> None:
    notes: list[str] = []
    sim = Simulation(AWKWARD, (61, 83), 50, backend="torch")
    run(sim, plan(1, tmp_path / "a.mp4"), note=notes.append)
    assert len(notes) == 1
    assert "a.mp4 is 62x84" in notes[0]


def test_a_picture_shows_the_end_and_equals_the_last_frame(tmp_path: Path, drawn: dict[str, list[np.ndarray]]) -> None:
    run(simulation(), plan(10, tmp_path / "a.mp4", tmp_path / "a.PNG", tmp_path / "b.png", every=5))
    for name in ("a.PNG", "b.png"):
        with Image.open(tmp_path / name) as image:
            assert (image.format, image.mode, image.size) == ("PNG", "RGB", SIZE)
            same_frames([np.asarray(image)], [drawn["a.mp4"][-1]])
    same_frames([frame_at(10)], [drawn["a.mp4"][-1]])
    assert frame_at(10).max() > 100, "there is something to see"


def test_the_colour_map_and_the_exposure_are_those_of_the_plan(tmp_path: Path) -> None:
    run(simulation(), dataclasses.replace(plan(10, tmp_path / "a.png"), colormap="bone", mean=9.0))
    with Image.open(tmp_path / "a.png") as image:
        same_frames([np.asarray(image)], [Renderer(9.0, "bone").frame(simulation(10).trail[0])])


def test_an_unknown_colour_map_is_refused_before_the_run(tmp_path: Path) -> None:
    sim = simulation()
    with pytest.raises(UsageError, match="did you mean magma"):
        run(sim, dataclasses.replace(plan(5, tmp_path / "a.mp4"), colormap="magmaa"))
    assert sim.step == 0
    assert os.listdir(tmp_path) == []


# Arrays and manifests


def test_arrays_hold_the_state_under_its_names_with_all_axes(tmp_path: Path) -> None:
    sim = Simulation([mapped_world(5), mapped_world(6)], (61, 83), 40, backend="torch", count=[[40, 3], [0, 40]])
    run(sim, plan(6, tmp_path / "a.npz"))
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        arrays = dict(file)
    found = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    agents = (2, 2, 40)
    assert found == {
        "x": (agents, np.float32),
        "y": (agents, np.float32),
        "heading": (agents, np.int16),
        "id": (agents, np.int32),
        "trail": ((2, 2, 83, 61), np.float32),
        "count": ((2, 2), np.int64),
        "step": ((), np.int64),
    }
    assert arrays["step"] == 6
    for name, tensor in sim.state().tensors().items():
        assert arrays[name].tobytes() == tensor.cpu().numpy().tobytes()


def test_the_manifest_tells_what_made_the_result(tmp_path: Path) -> None:
    settings = {"seed": 3, "size": [64, 48], "image": None, "outputs": ["a.mp4", os.fsdecode(b"bad\xff.png")]}
    names = [tmp_path / "a.mp4", tmp_path / os.fsdecode(b"bad\xff.png"), tmp_path / "c.npz"]
    sim = simulation()
    outcome = run(sim, plan(11, *names, every=5, fps=Fraction(30000, 1001), settings=settings))
    assert len(outcome.written) == 3
    assert all(sentence.isprintable() for sentence in outcome.written)
    for path in names:
        found = strict(Path(f"{path}.json"))
        assert found["output"] == path.name
        assert found["settings"] == settings
        assert (found["first_step"], found["step"], found["interrupted"]) == (0, 11, False)
        (world,) = found["worlds"]
        assert (world["seed"], world["number"], world["populations"]) == (3, 0, [dataclasses.asdict(AWKWARD)])
        assert (found["size"], found["backend"], found["device"]) == ([64, 48], "torch", str(sim.device))
        assert found["mean_trail"] == MEAN
        assert found["state_sha256"] == checkpoint.sha256(simulation(11).state().tensors())
        assert found["versions"]["physarum"] == __version__
        assert set(found["versions"]) >= {"python", "platform", "torch", "numpy", "matplotlib", "imageio", "pillow", "av", "safetensors"}
        assert found["seconds"] >= 0
    video = strict(tmp_path / "a.mp4.json")
    assert (video["frames"], video["every"], Fraction(video["fps"])) == (3, 5, Fraction(30000, 1001))
    assert "frames" not in strict(tmp_path / "c.npz.json")


def test_a_run_without_outputs_only_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sim = simulation()
    assert run(sim, plan(9)) == Outcome(9, False, (), None)
    assert differing(sim.state(), simulation(9).state()) == {}
    assert os.listdir() == []


def test_progress_rises_to_the_end(tmp_path: Path) -> None:
    told: list[int] = []
    run(simulation(2), plan(40, tmp_path / "a.png"), progress=told.append)
    assert told == sorted(set(told))
    assert told[0] > 2
    assert told[-1] == 40


def test_a_run_cannot_end_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="steps is 5: the world has already completed 6"):
        run(simulation(6), plan(5, tmp_path / "a.mp4", tmp_path / "a.png"))
    assert os.listdir(tmp_path) == []


# Stopping


def stop_at(sim: Simulation, step: int) -> Callable[[], bool]:
    return lambda: sim.step >= step


def test_stopping_ends_between_two_steps_with_a_video_that_plays_and_a_checkpoint_beside_it(
    tmp_path: Path, drawn: dict[str, list[np.ndarray]]
) -> None:
    sim = simulation()
    outputs = [tmp_path / name for name in ("a.mp4", "a.png", "a.npz")]
    outcome = run(sim, plan(1000, *outputs, every=3, settings={"every": 3}), stop_at(sim, 13))
    assert outcome.interrupted
    assert 13 <= outcome.step == sim.step <= 15, "no further than the frame after the signal"
    assert outcome.checkpoint == tmp_path / "a.mp4.checkpoint.safetensors"
    assert sorted(os.listdir(tmp_path)) == ["a.mp4", "a.mp4.checkpoint.safetensors", "a.mp4.json"]
    assert len(drawn["a.mp4"]) == played(tmp_path / "a.mp4") == 1 + outcome.step // 3
    found = strict(tmp_path / "a.mp4.json")
    assert (found["interrupted"], found["step"], found["frames"]) == (True, outcome.step, 1 + outcome.step // 3)
    assert found["state_sha256"] == checkpoint.sha256(simulation(outcome.step).state().tensors())
    _, state, settings = checkpoint.load(outcome.checkpoint)
    assert differing(state, simulation(outcome.step).state()) == {}
    assert settings == {"every": 3}


@pytest.mark.parametrize("stop", [1, 6, 13, 39])
def test_a_resumed_run_reaches_the_same_bits_and_draws_the_remaining_frames(
    tmp_path: Path, drawn: dict[str, list[np.ndarray]], stop: int
) -> None:
    whole, first = simulation(), simulation()
    run(whole, plan(40, tmp_path / "whole.mp4", every=3))
    stopped = run(first, plan(40, tmp_path / "first.mp4", every=3), stop_at(first, stop))
    assert stopped.interrupted
    assert stopped.checkpoint is not None
    second = Simulation.load(stopped.checkpoint, "torch")
    run(second, plan(40, tmp_path / "second.mp4", tmp_path / "second.npz", every=3))
    assert differing(second.state(), whole.state()) == {}
    same_frames(drawn["first.mp4"] + drawn.get("second.mp4", []), drawn["whole.mp4"])
    assert strict(tmp_path / "second.npz.json")["first_step"] == stopped.step
    if "second.mp4" in drawn:
        assert played(tmp_path / "second.mp4") == len(drawn["second.mp4"])
    else:
        assert not list(tmp_path.glob("second*mp4*")), "without frames there is no video"


def test_stopping_before_the_first_step_keeps_the_start(tmp_path: Path) -> None:
    outcome = run(simulation(), plan(40, tmp_path / "a.mp4"), lambda: True)
    assert (outcome.step, outcome.interrupted) == (0, True)
    assert played(tmp_path / "a.mp4") == 1
    assert outcome.checkpoint is not None
    assert differing(checkpoint.load(outcome.checkpoint)[1], simulation().state()) == {}


def test_a_stop_after_the_last_step_is_no_interruption(tmp_path: Path) -> None:
    sim = simulation()
    outcome = run(sim, plan(9, tmp_path / "a.png"), stop_at(sim, 9))
    assert not outcome.interrupted
    assert sorted(os.listdir(tmp_path)) == ["a.png", "a.png.json"]


def test_a_stopped_run_writes_its_checkpoint_where_that_is_planned(tmp_path: Path) -> None:
    sim = simulation()
    outcome = run(sim, plan(40, tmp_path / "a.png", checkpoint=tmp_path / "here"), stop_at(sim, 5))
    assert outcome.checkpoint == tmp_path / "here"
    assert outcome.written == ()
    assert os.listdir(tmp_path) == ["here"]


def test_a_stop_does_not_overwrite_a_file_that_nobody_named(tmp_path: Path) -> None:
    """Be the run refused or its state saved elsewhere."""
    precious = tmp_path / "a.png.checkpoint.safetensors"
    precious.write_text("of an earlier run")
    try:
        check_outputs((tmp_path / "a.png",))
    except UsageError:
        return
    sim = simulation()
    outcome = run(sim, plan(40, tmp_path / "a.png"), stop_at(sim, 5))
    assert precious.read_text() == "of an earlier run"
    assert outcome.checkpoint is not None
    assert differing(checkpoint.load(outcome.checkpoint)[1], sim.state()) == {}


def test_a_planned_checkpoint_holds_the_end(tmp_path: Path) -> None:
    outcome = run(simulation(), plan(8, checkpoint=tmp_path / "c", settings={"steps": 8}))
    assert outcome.checkpoint == tmp_path / "c"
    _, state, settings = checkpoint.load(tmp_path / "c")
    assert differing(state, simulation(8).state()) == {}
    assert settings == {"steps": 8}


def test_checkpoints_are_written_every_so_many_steps_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states: dict[int, State] = {}
    save = checkpoint.save

    def watched(path: Path, worlds: tuple[World, ...], state: State, settings: dict[str, Any]) -> None:
        states[state.step] = state
        save(path, worlds, state, settings)
        assert differing(checkpoint.load(path)[1], state) == {}

    monkeypatch.setattr(runner.checkpoint, "save", watched)
    run(simulation(), plan(20, tmp_path / "a.mp4", every=5, checkpoint=tmp_path / "c", checkpoint_every=7))
    assert list(states) == [7, 14, 20]
    for step, state in states.items():
        assert differing(state, simulation(step).state()) == {}
    assert played(tmp_path / "a.mp4") == 5


# Failing


@pytest.mark.parametrize("count", [0, 5])
@pytest.mark.parametrize("error", [RunError("no more"), ZeroDivisionError("no more"), KeyboardInterrupt()])
def test_a_failing_encoder_keeps_the_frames_of_every_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, count: int
) -> None:
    write = VideoWriter.write

    def failing(self: VideoWriter, frame: np.ndarray) -> None:
        if self.path.name == "b.mp4" and self.frames == count:
            raise error
        write(self, frame)

    monkeypatch.setattr(VideoWriter, "write", failing)
    notes: list[str] = []
    with pytest.raises(type(error)) as raised:
        run(simulation(), plan(40, tmp_path / "a.mp4", tmp_path / "b.mp4", tmp_path / "c.png", every=2), note=notes.append)
    assert raised.value is error
    left = ["a.partial.mp4", "b.partial.mp4"][: 1 + (count > 0)]
    if count and not isinstance(error, KeyboardInterrupt):
        assert "the state at step 10 is kept in " in notes.pop()
        assert differing(checkpoint.load(tmp_path / "a.mp4.checkpoint.safetensors")[1], simulation(10).state()) == {}
        left.append("a.mp4.checkpoint.safetensors")
    assert len(notes) == 1 + (count > 0), "a video without frames is not worth a word"
    for note, name, kept in zip(notes, ("a", "b"), (count + 1, count), strict=False):
        assert f"the first {kept} frames of " in note
        assert f"{name}.partial.mp4, which plays" in note
        assert played(tmp_path / f"{name}.partial.mp4") == kept
    assert sorted(os.listdir(tmp_path)) == sorted(left)


def test_a_failing_simulation_keeps_the_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation()
    advance = sim.run

    def failing(steps: int) -> None:
        if sim.step >= 6:
            raise MemoryError("no more")
        advance(steps)

    monkeypatch.setattr(sim, "run", failing)
    notes: list[str] = []
    with pytest.raises(MemoryError):
        run(sim, plan(40, tmp_path / "a.mp4", every=2), note=notes.append)
    assert "the first 4 frames of" in notes[0]
    assert sorted(os.listdir(tmp_path)) == ["a.mp4.checkpoint.safetensors", "a.partial.mp4"]
    assert differing(checkpoint.load(tmp_path / "a.mp4.checkpoint.safetensors")[1], simulation(6).state()) == {}
    assert played(tmp_path / "a.partial.mp4") == 4


def test_a_full_disk_keeps_the_video_and_names_it(tmp_path: Path) -> None:
    with (
        full_disk(60_000),
        pytest.raises(RunError, match=r"cannot write .*a\.mp4: .*; the first \d+ frames of .* are kept in .*a\.partial\.mp4, which plays"),
    ):
        run(simulation(), plan(2000, tmp_path / "a.mp4"))
    assert sorted(os.listdir(tmp_path)) == ["a.mp4.checkpoint.safetensors", "a.partial.mp4"]
    assert played(tmp_path / "a.partial.mp4") > 20


def test_a_checkpoint_that_finds_no_room_keeps_the_video(tmp_path: Path) -> None:
    sim = Simulation(AWKWARD, (256, 256), 10, backend="torch")
    notes: list[str] = []
    with full_disk(100_000), pytest.raises(RunError, match=r"cannot write .*c: "):
        run(sim, plan(20, tmp_path / "a.mp4", checkpoint=tmp_path / "c", checkpoint_every=10, every=2), note=notes.append)
    assert "the first 6 frames of" in notes[0]
    assert os.listdir(tmp_path) == ["a.partial.mp4"]


def test_a_picture_that_finds_no_room_leaves_none(tmp_path: Path) -> None:
    with full_disk(100), pytest.raises(RunError, match=r"cannot write .*a\.png"):
        run(simulation(), plan(5, tmp_path / "a.png"))
    assert os.listdir(tmp_path) == []


def test_a_video_that_cannot_be_made_leaves_nothing_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sim = simulation()
    with pytest.raises((RunError, UsageError), match=r"b\.mp4"):
        run(sim, plan(5, tmp_path / "a.mp4", tmp_path / "file" / "b.mp4"))
    assert sim.step == 0
    assert os.listdir(tmp_path) == ["file"]


# What may be written


def refusal(*outputs: Path, **more: Any) -> str:
    with pytest.raises(UsageError) as error:
        check_outputs(outputs, **more)
    sentence = str(error.value)
    assert sentence.isprintable()
    return sentence


@pytest.mark.parametrize("name", ["a.gif", "a", "a.", ".png", "a.png.txt", "a.jpg", "a.tar.gz", "png", "", "a.png ", "a.ｐｎｇ"])
def test_a_suffix_that_says_nothing_is_refused_with_those_that_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(Path(name)).endswith("it must end in .png, .mp4, .npz")


def test_the_case_of_a_suffix_does_not_matter(tmp_path: Path) -> None:
    check_outputs(tuple(tmp_path / f"a.{suffix}" for suffix in ("PNG", "Mp4", "npZ")))


def test_what_exists_is_replaced_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    assert "a.png exists: add --overwrite" in refusal(tmp_path / "a.png")
    check_outputs((tmp_path / "a.png",), overwrite=True)
    (tmp_path / "c").touch()
    assert "c exists: add --overwrite" in refusal(tmp_path / "b.png", checkpoint=tmp_path / "c")
    check_outputs((tmp_path / "b.png",), tmp_path / "c", overwrite=True)


def test_a_manifest_is_not_written_over_a_file_that_nobody_named(tmp_path: Path) -> None:
    (tmp_path / "a.png.json").touch()
    assert "a.png.json" in refusal(tmp_path / "a.png")
    check_outputs((tmp_path / "a.png",), overwrite=True)


def test_a_folder_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    for more in ({}, {"overwrite": True}):
        assert "a.png is a folder" in refusal(tmp_path / "a.png", **more)
        assert "is a folder" in refusal(tmp_path / "b.png", checkpoint=tmp_path, **more)


def test_where_no_file_can_be_that_is_said_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "a.png", tmp_path / ("long" * 64 + ".png"), tmp_path / ("long" * 61 + ".png")):
        assert path.name in refusal(path)
        assert path.name in refusal(tmp_path / "b.png", checkpoint=path)


def test_an_input_is_never_overwritten_whatever_it_is_called(tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    photo.touch()
    (tmp_path / "linked.png").symlink_to(photo)
    (tmp_path / "hard.png").hardlink_to(photo)
    (tmp_path / "folder").mkdir()
    (tmp_path / "way").symlink_to(tmp_path)
    names = [
        photo,
        tmp_path / "linked.png",
        tmp_path / "hard.png",
        tmp_path / "folder" / ".." / "photo.png",
        tmp_path / "way" / "photo.png",
    ]
    for name in names:
        assert "is an input of this run, which is never overwritten" in refusal(name, inputs=(photo,), overwrite=True)
        assert "is an input of this run" in refusal(photo, inputs=(name,), overwrite=True)


@pytest.mark.parametrize(("name", "output"), [("a.png.json", "a.png"), ("a.partial.mp4", "a.mp4"), ("a.png.part", "a.png")])
def test_an_input_is_not_lost_to_a_file_that_comes_with_an_output(tmp_path: Path, name: str, output: str) -> None:
    """Be it refused or spared."""
    (tmp_path / name).write_text("precious")
    try:
        check_outputs((tmp_path / output,), inputs=(tmp_path / name,), overwrite=True)
    except UsageError:
        return
    run(simulation(), plan(2, tmp_path / output))
    assert (tmp_path / name).read_text() == "precious"


def test_no_file_is_named_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "way").symlink_to(tmp_path)
    for other in (Path("a.png"), Path("./a.png"), tmp_path / "a.png", Path("folder/../a.png"), Path("way/a.png")):
        assert "twice" in refusal(Path("a.png"), other)
    assert "twice" in refusal(Path("a.npz"), checkpoint=tmp_path / "a.npz")
    check_outputs((Path("a.png"), Path("folder/a.png"), Path("a.npz")), Path("a"))


def test_a_video_is_not_lost_to_the_partial_name_of_another(tmp_path: Path) -> None:
    """Be it refused or both written."""
    for i, names in enumerate((("a.mp4", "a.partial.mp4"), ("a.partial.mp4", "a.mp4"))):
        outputs = tuple(tmp_path / str(i) / name for name in names)
        try:
            check_outputs(outputs)
        except UsageError:
            continue
        run(simulation(), plan(6, *outputs))
        assert [played(path) for path in outputs] == [7, 7]
        shutil.rmtree(tmp_path / str(i))
