"""The command line: exit codes, streams, sentences, names of files, signals."""

import hashlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from cases import AWKWARD
from PIL import Image

from physarum import Params, Simulation, World, cli
from physarum.output.picture import read_picture

SMALL = ("--size", "64x48", "--agents", "300", "--backend", "torch")
RUN = ("run", *SMALL, "--steps", "6", "--seed", "1")

LONG = "long" * 64  # longer than a name may be

Called = tuple[int, str, str]
Caller = Callable[..., Called]


@pytest.fixture
def physarum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Caller:
    """The command line in this process, in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Called:
        capsys.readouterr()
        code = cli.call(arguments)
        return code, *capsys.readouterr()

    return call


def process(*arguments: str, **more: Any) -> subprocess.Popen[bytes]:
    """The same as a program of its own."""
    environment = os.environ | more.pop("environment", {})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.Popen([sys.executable, "-m", "physarum", *arguments], env=environment, **pipes)


def refused(called: Called, *words: str) -> str:
    """The one sentence of a usage error, which says these words; nothing stands on stdout."""
    code, out, err = called
    assert code == 2
    assert out == ""
    (sentence,) = err.splitlines()
    assert sentence.startswith("physarum: ")
    assert sentence.isprintable()
    for word in words:
        assert word in sentence
    return sentence


def manifest(output: str | Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(f"{output}.json").read_bytes().decode("utf-8"))
    return content


def played(path: str | Path) -> int:
    """How many frames a player shows."""
    with av.open(f"file:{path}") as container:
        return sum(1 for _ in container.decode(video=0))


def save_picture(path: Path, **options: Any) -> None:
    """64 x 48, black but for a white corner at the top left and a grey bar at the bottom."""
    grey = np.zeros((48, 64), np.uint8)
    grey[:16, :24], grey[40:] = 255, 128
    Image.fromarray(grey).save(path, **options)


# Results and streams


def test_results_go_to_stdout_and_everything_else_to_stderr(physarum: Caller) -> None:
    code, out, err = physarum(*RUN, "--every", "2", "-o", "a.mp4", "-o", "b.png", "--output", "c.npz", "-o=folder/d.png")
    assert code == 0
    assert out == "wrote a.mp4 (4 frames, 0.1 s)\nwrote b.png\nwrote c.npz\nwrote folder/d.png\n"
    assert err == "physarum: seed 1\n"
    written = {"a.mp4", "b.png", "c.npz", "a.mp4.json", "b.png.json", "c.npz.json", "folder"}
    assert set(os.listdir()) == written
    assert sorted(os.listdir("folder")) == ["d.png", "d.png.json"]


def test_without_a_name_the_picture_takes_the_next_free_one(physarum: Caller) -> None:
    for _ in range(2):
        assert physarum(*RUN)[0] == 0
    assert physarum(*RUN)[1] == "wrote outputs/physarum-3.png\n"
    assert sorted(os.listdir("outputs")) == [f"physarum-{n}.png{end}" for n in (1, 2, 3) for end in ("", ".json")]


def test_the_same_command_gives_the_same_state_and_the_same_picture_bit_by_bit(physarum: Caller) -> None:
    for name in ("a", "b"):
        assert physarum(*RUN, "-o", f"{name}.png", "-o", f"{name}.npz")[0] == 0
    assert Path("a.png").read_bytes() == Path("b.png").read_bytes()
    assert Path("a.npz").read_bytes() == Path("b.npz").read_bytes()
    assert manifest("a.png")["state_sha256"] == manifest("b.png")["state_sha256"]
    physarum(*RUN[:-1], "2", "-o", "c.png")
    assert manifest("a.png")["state_sha256"] != manifest("c.png")["state_sha256"]


def test_the_command_line_reaches_the_bits_of_the_python_interface(physarum: Caller) -> None:
    model = {"sensor-angle": 33, "rotation-angle": 51, "sensor-distance": 9.3, "step-size": 0.83, "deposit-amount": 3.3}
    model |= {"diffusion": 0.37, "decay-rate": 0.07, "attraction": -0.3}
    options = [text for name, value in model.items() for text in (f"--{name}", str(value))]
    assert physarum("run", *SMALL, "--steps", "40", "--seed", "9", *options, "-o", "a.npz")[0] == 0
    sim = Simulation(World((AWKWARD,), attraction=-0.3, seed=9), (64, 48), 300, backend="torch")
    sim.run(40)
    with np.load("a.npz") as arrays:
        for name, tensor in sim.state().tensors().items():
            assert arrays[name].tobytes() == tensor.cpu().numpy().tobytes()


def test_the_manifest_keeps_every_setting(physarum: Caller) -> None:
    physarum(*RUN, "--decay-rate", "0.25", "--fps", "29.97", "--colormap", "bone", "-o", "a.png")
    found = manifest("a.png")["settings"]
    assert found["decay_rate"] == 0.25
    assert (found["size"], found["agents"], found["seed"], found["steps"]) == ([64, 48], 300, 1, 6)
    assert (found["fps"], found["colormap"], found["backend"], found["outputs"]) == ("29.97", "bone", "torch", ["a.png"])


def test_help_and_version_go_to_stdout(physarum: Caller) -> None:
    for arguments, words in (
        (("--help",), ("run", "resume")),
        (("run", "--help"), ("--decay-rate", "--output", "-o")),
        (("--version",), ("0.1.0",)),
    ):
        code, out, err = physarum(*arguments)
        assert (code, err) == (0, "")
        for word in words:
            assert word in out


# What is refused


REFUSED_RUNS = {
    "--decay-rate nan": ("decay_rate is nan: it must be a number from 0 to 1",),
    "--decay-rate -nan": ("decay_rate is nan: it must be a number from 0 to 1",),
    "--decay-rate inf": ("decay_rate is inf", "from 0 to 1"),
    "--decay-rate -1e-3": ("decay_rate is -0.001: it must be a number from 0 to 1",),
    "--decay-rate=-1e-3": ("decay_rate is -0.001",),
    "--decay-rate -.5": ("decay_rate is -0.5",),
    "--decay-rate 1.0000001": ("decay_rate is 1.0000001",),
    "--decay-rate abc": ("--decay-rate", "abc"),
    "--decay-rate ''": ("--decay-rate",),
    "--decay-rate true": ("--decay-rate", "true"),
    "--decay-rate 0,1": ("--decay-rate", "0,1"),
    "--decay-rate": ("--decay-rate", "requires an argument"),
    "--decay-rate 0.1 --decay-rate 0.2": ("--decay-rate", "multiple times"),
    "--sensor-angle 360.1": ("sensor_angle is 360.1: it must be a number from -360 to 360",),
    "--deposit-amount 1e7": ("deposit_amount",),
    "--step-size 47": ("step_size is 47", "64 x 48 cells", "shorter than 47 cells"),
    "--attraction 1001": ("attraction is 1001",),
    "--image-strength -1": ("image_strength is -1",),
    "--steps -1": ("steps is -1: it must be a whole number from 0",),
    "--steps 2.5": ("steps", "2.5"),
    "--steps 0.4": ("steps", "0.4"),
    "--steps many": ("steps", "many"),
    "--steps nan": ("steps", "nan"),
    "--steps 99999999999999999999": ("steps",),
    "--every 0": ("every is 0: it must be a whole number from 1",),
    "--every 2.5": ("every", "2.5"),
    "--checkpoint c --checkpoint-every 2.5": ("checkpoint", "2.5"),
    "--checkpoint c --checkpoint-every 0": ("checkpoint_every is 0: it must be a whole number from 1",),
    "--checkpoint-every 5": ("needs --checkpoint",),
    "--fps 0": ("fps is '0'", "30000/1001"),
    "--colormap magmaa": ("there is no colour map 'magmaa'", "did you mean magma?"),
    "--device gpu": ("there is no device 'gpu'",),
    "--device cuda:99": ("cuda:99",),
    "--device cpu:1": ("there is no device 'cpu:1'",),
    "--decay-rat 0.1": ("Unknown option: --decay-rat", "Did you mean --decay-rate?"),
    "--decay-rat=0.1": ("--decay-rat", "Did you mean --decay-rate?"),
    "--colourmap bone": ("--colourmap", "Did you mean --colormap?"),
    "--overwrit": ("--overwrit", "Did you mean --overwrite?"),
    "coral": ("coral",),
    "-o a.gif": ("a.gif", "it must end in .png, .mp4, .npz"),
    "-o picture": ("picture", "it must end in .png, .mp4, .npz"),
    "-o a.npz -o ./a.npz": ("a.npz", "twice"),
    "-o": ("-o", "requires an argument"),
    "--image missing.png": ("missing.png does not exist",),
    "--image .": ("is a folder",),
    "--config missing.toml": ("there is no config missing.toml",),
    "--config .": ("no ordinary file",),
    "-o file/a.png": ("file/a.png",),
    "-o file/a.mp4": ("file/a.mp4",),
    f"-o {LONG}.png": ("longlong",),
    f"--checkpoint {LONG}": ("longlong",),
    f"--config {LONG}": ("longlong",),
    f"--image {LONG}": ("longlong",),
}


@pytest.mark.parametrize("arguments", REFUSED_RUNS)
def test_what_cannot_be_is_one_sentence_and_nothing_is_written(physarum: Caller, arguments: str) -> None:
    Path("file").touch()
    refused(physarum("run", *SMALL, "-o", "a.png", *shlex.split(arguments)), *REFUSED_RUNS[arguments])
    assert os.listdir() == ["file"]


REFUSED_WORLDS = {
    "--backend tritn": ("there is no backend 'tritn'", "torch, compile"),
    "--backend compiel": ("did you mean compile?",),
    "--backend ''": ("backend",),
    "--size 64": ("size is '64': it must be WIDTHxHEIGHT",),
    "--size 0x64": ("width is 0: it must be a whole number from 8 to 65536",),
    "--size 64x64x2": ("size is '64x64x2'",),
    "--size 64,64": ("size is '64,64'",),
    "--agents 0": ("agents is 0: it must be a whole number from 1",),
    "--agents -5": ("agents is '-5'",),
    "--agents 1M5": ("agents is '1M5'", "50k or 1.5M"),
    "--agents 1e30": ("agents is 1000000000000000000000000000000",),
    "--seed -1": ("seed is -1: it must be a whole number from 0 to 4294967295",),
    "--seed 4294967296": ("seed is 4294967296",),
    "--seed 1e3": ("seed is '1e3'", "or random"),
}


@pytest.mark.parametrize("arguments", REFUSED_WORLDS)
def test_a_world_that_cannot_be_is_one_sentence_and_nothing_is_written(physarum: Caller, arguments: str) -> None:
    refused(physarum("run", "--steps", "3", *shlex.split(arguments), "-o", "a.png"), *REFUSED_WORLDS[arguments])
    assert os.listdir() == []


def test_a_run_that_does_not_fit_is_one_sentence_and_nothing_is_written(physarum: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("physarum.backends.memory.available_bytes", lambda device: 10**9)
    refused(physarum("run", "--size", "65536x65536", "-o", "a.png", "-o", "a.mp4"), "1.0 GB are free", "a world of")
    refused(physarum("run", "--size", "64x48", "--agents", "2G", "-o", "a.png"), "1.0 GB are free")
    assert os.listdir() == []


REFUSED_COMMANDS = {
    "rn": ("rn", "run"),
    "coral": ("coral", "run, resume"),
    "--frobnicate": ("--frobnicate",),
    "resume": ("file", "requires an argument"),
    "resume missing": ("there is no checkpoint missing",),
    "resume .": ("no ordinary file",),
    "resume -x": ("-x",),
    f"resume {LONG}": ("longlong",),
    "resume a b": ("b",),
    "resume a --decay-rate 0.1": ("--decay-rate",),
}


@pytest.mark.parametrize("arguments", REFUSED_COMMANDS)
def test_a_wrong_command_is_one_sentence(physarum: Caller, arguments: str) -> None:
    refused(physarum(*shlex.split(arguments)), *REFUSED_COMMANDS[arguments])
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"sensor_angel = 30", ("my.toml has the unknown key 'sensor_angel' (did you mean sensor_angle?)",)),
        (b"[physics]\ngravity = 9.81", ("my.toml has the unknown key 'physics'",)),
        (b"seed = 1\nseed = 2\n", ("my.toml is not TOML", "line 2")),
        (b"seed = 7\n# caf\xe9\n", ("my.toml is not UTF-8 in line 2",)),
        (b"decay_rate = nan", ("decay_rate is nan",)),
        (b"decay_rate = '0.1'", ("decay_rate is '0.1'",)),
        (b"seed = " + b"1" * 5000, ("my.toml",)),
        (b"a = " + b"[" * 20_000, ("my.toml",)),
        (b"image = 'missing.png'", ("missing.png does not exist",)),
    ],
)
def test_a_config_that_cannot_be_is_one_sentence_and_nothing_is_written(physarum: Caller, content: bytes, words: tuple[str, ...]) -> None:
    Path("my.toml").write_bytes(content)
    refused(physarum(*RUN, "--config", "my.toml", "-o", "a.png"), *words)
    assert os.listdir() == ["my.toml"]


def test_a_damaged_picture_is_refused_before_anything_is_simulated(physarum: Caller) -> None:
    save_picture(Path("whole.png"))
    data = Path("whole.png").read_bytes()
    for name, content in {
        "cut.png": data[: len(data) // 2],
        "empty.png": b"",
        "text.png": b"text",
        "damaged.png": data.replace(b"IDAT", b"IDAX"),
    }.items():
        Path(name).write_bytes(content)
        refused(physarum(*RUN, "--image", name, "-o", "a.png", "-o", "a.mp4"), name)
    assert sorted(os.listdir()) == ["cut.png", "damaged.png", "empty.png", "text.png", "whole.png"]


@pytest.mark.timeout(30)
def test_a_pipe_is_refused_without_waiting(physarum: Caller) -> None:
    os.mkfifo("pipe")
    for arguments in (("--image", "pipe"), ("--config", "pipe")):
        refused(physarum(*RUN, *arguments, "-o", "a.png"), "pipe")
    refused(physarum("resume", "pipe"), "pipe")
    assert os.listdir() == ["pipe"]


def test_a_missing_compiler_is_said_before_anything_is_written(physarum: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent")
    refused(
        physarum("run", "--size", "64x48", "--backend", "compile", "--device", "cpu", "-o", "a.mp4"),
        "C++ compiler",
        "/nonexistent",
        "install",
    )
    assert os.listdir() == []


# Numbers


@pytest.mark.parametrize(
    ("option", "text", "value"), [("sensor-angle", "-.5", -0.5), ("sensor-angle", "-45", -45), ("attraction", "-1e-3", -0.001)]
)
def test_negative_numbers_are_values_and_no_options(physarum: Caller, option: str, text: str, value: float) -> None:
    assert physarum(*RUN, f"--{option}", text, "-o", "a.png")[0] == 0
    assert manifest("a.png")["settings"][option.replace("-", "_")] == value


@pytest.mark.parametrize(("text", "agents"), [("1e3", 1000), ("1k", 1000), ("1.5k", 1500), ("1_000", 1000)])
def test_agents_may_be_written_with_a_multiple(physarum: Caller, text: str, agents: int) -> None:
    assert physarum("run", "--size", "64X48", "--agents", text, "--steps", "0", "-o", "a.npz")[0] == 0
    with np.load("a.npz") as arrays:
        assert arrays["x"].shape == (1, 1, agents)
        assert arrays["trail"].shape == (1, 1, 48, 64)


def test_a_random_seed_is_printed_and_gives_the_same_state_again(physarum: Caller) -> None:
    seeds = set()
    for name in ("a", "b"):
        code, _, err = physarum("run", *SMALL, "--steps", "6", "--seed", "random", "-o", f"{name}.png")
        assert code == 0
        found = re.fullmatch(r"physarum: seed (\d+)\n", err)
        assert found
        seeds.add(found[1])
        physarum("run", *SMALL, "--steps", "6", "--seed", found[1], "-o", f"{name}2.png")
        assert manifest(f"{name}.png")["settings"]["seed"] == int(found[1])
        assert manifest(f"{name}.png")["state_sha256"] == manifest(f"{name}2.png")["state_sha256"]
    assert len(seeds) == 2


def test_a_seed_means_the_same_in_a_config_and_on_the_command_line(physarum: Caller) -> None:
    Path("my.toml").write_text("seed = 7\n")
    Path("text.toml").write_text("seed = '7'\n")
    hashes = set()
    for name, arguments in {
        "a": ("--seed", "7"),
        "b": ("--config", "my.toml"),
        "c": ("--config", "text.toml"),
        "d": ("--seed=007",),
    }.items():
        assert physarum("run", *SMALL, "--steps", "6", *arguments, "-o", f"{name}.png")[2] == "physarum: seed 7\n"
        hashes.add(manifest(f"{name}.png")["state_sha256"])
    assert len(hashes) == 1


def test_the_command_line_goes_over_the_config(physarum: Caller) -> None:
    Path("my.toml").write_text(
        "seed = 7\ndecay_rate = 0.3\nsteps = 4\nsize = [64, 48]\nagents = '300'\nbackend = 'torch'\ncolormap = 'bone'\n"
    )
    assert physarum("run", "--config", "my.toml", "--decay-rate", "0.0", "--steps=0", "-o", "a.png")[0] == 0
    found = manifest("a.png")["settings"]
    assert (found["seed"], found["decay_rate"], found["steps"], found["colormap"]) == (7, 0.0, 0, "bone")


# Pictures


def test_a_run_starts_with_the_picture_upright_and_not_mirrored(physarum: Caller) -> None:
    save_picture(Path("photo.png"))
    assert physarum("run", "--agents", "300", "--backend", "torch", "--steps", "0", "--image", "photo.png", "-o", "a.npz")[0] == 0
    with np.load("a.npz") as arrays:
        trail = arrays["trail"][0, 0]
    assert trail.shape == (48, 64), "without --size the world takes the picture's"
    assert (trail[:16, :24] == 50).all(), "white is ten deposits"
    assert (trail[:40, 24:] == 0).all()
    assert (trail[16:40] == 0).all()
    assert (trail[40:] == trail[40, 0]).all()
    assert 10 < trail[40, 0] < 12, "linear light"
    assert (trail == read_picture("photo.png")[0].numpy() * np.float32(50)).all()


def test_the_strength_of_a_picture_is_the_trail_at_its_white(physarum: Caller) -> None:
    save_picture(Path("photo.png"))
    physarum("run", *SMALL, "--steps", "0", "--image", "photo.png", "--image-strength", "3", "-o", "a.npz")
    with np.load("a.npz") as arrays:
        assert arrays["trail"].max() == 3


def test_what_was_done_to_a_picture_is_said(physarum: Caller) -> None:
    save_picture(Path("photo.png"))
    code, _, err = physarum("run", "--size", "32x32", "--agents", "10", "--steps", "0", "--image", "photo.png", "-o", "a.npz")
    assert code == 0
    assert err.startswith("physarum: photo.png: the picture of 64x48 pixels was scaled to 32x32")
    assert len(err.splitlines()) == 2


def test_a_relative_picture_in_a_config_is_relative_to_the_config(physarum: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("folder").mkdir()
    save_picture(Path("folder/photo.png"))
    Path("folder/my.toml").write_text("image = 'photo.png'\n")
    assert physarum("run", *SMALL, "--steps", "0", "--config", "folder/my.toml", "-o", "a.npz")[0] == 0
    with np.load("a.npz") as arrays:
        assert arrays["trail"].max() == 50


def test_an_empty_world_is_a_valid_black_picture(physarum: Caller) -> None:
    code, _, err = physarum(*RUN, "--deposit-amount", "0", "-o", "a.png", "-o", "a.mp4", "--colormap", "gray")
    assert (code, err) == (0, "physarum: seed 1\n")
    with Image.open("a.png") as image:
        assert np.asarray(image).max() == 0
    assert played("a.mp4") == 2


# Files


def test_what_exists_is_replaced_only_when_asked(physarum: Caller) -> None:
    Path("a.png").write_text("precious")
    sentence = refused(physarum(*RUN, "-o", "a.png"), "a.png exists")
    assert "--overwrite" in sentence
    assert os.listdir() == ["a.png"]
    for flag in ("--overwrite", "-y"):
        assert physarum(*RUN, "-o", "a.png", flag)[0] == 0
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "option", "arguments"),
    [
        ("photo.png", "--image", ("-o", "photo.png")),
        ("photo.png", "--image", ("-o", "./folder/../photo.png")),
        ("photo.png", "--image", ("-o", "a.png", "--checkpoint", "photo.png")),
        ("my.toml", "--config", ("-o", "a.png", "--checkpoint", "my.toml")),
        ("a.png.json", "--image", ("-o", "a.png")),
        ("a.png.json", "--config", ("-o", "a.png")),
        ("a.partial.mp4", "--image", ("-o", "a.mp4")),
    ],
)
@pytest.mark.parametrize("overwrite", [(), ("-y",)])
def test_an_input_is_never_overwritten(
    physarum: Caller, name: str, option: str, arguments: tuple[str, ...], overwrite: tuple[str, ...]
) -> None:
    Path("folder").mkdir()
    if option == "--image":
        save_picture(Path(name), format="PNG")
    else:
        Path(name).write_text("decay_rate = 0.2\n")
    before = Path(name).read_bytes()
    refused(physarum(*RUN, option, name, *arguments, *overwrite), name)
    assert Path(name).read_bytes() == before
    assert sorted(os.listdir()) == sorted([name, "folder"])


ODD_NAMES = ["ü ж", "a:b", "http:x", "100%d", "%s", "-x", "new\nline", "a b", "'quoted\"", os.fsdecode(b"bad\xff"), "~", "a.b", "*"]


@pytest.mark.parametrize("stem", ODD_NAMES)
def test_odd_names_are_taken_literally(physarum: Caller, stem: str) -> None:
    names = [f"{stem}{suffix}" for suffix in (".png", ".mp4", ".npz")]
    code, out, err = physarum(*RUN, *(f"--output={name}" for name in names), f"--checkpoint={stem}.state")
    assert (code, err) == (0, "physarum: seed 1\n")
    assert len(out.splitlines()) == 3
    assert all(line.isprintable() for line in out.splitlines())
    assert set(os.listdir()) == {*names, *(f"{name}.json" for name in names), f"{stem}.state"}
    for name in names:
        assert manifest(name)["output"] == name
        assert manifest(name)["settings"]["outputs"] == names
    assert played(names[1]) == 2
    code, _, err = physarum("resume", "--steps=8", "-o=again.png", "--", f"{stem}.state")
    assert (code, err) == (0, "physarum: seed 1, from step 6\n")


def test_odd_names_of_pictures_are_taken_literally(physarum: Caller) -> None:
    for stem in ODD_NAMES:
        save_picture(Path(f"{stem}.png"))
        code, _, err = physarum("run", *SMALL, "--steps", "0", f"--image={stem}.png", "-o", "out.npz", "-y")
        assert (code, err) == (0, "physarum: seed 0\n")
        assert manifest("out.npz")["settings"]["image"] == f"{stem}.png"


# Resuming


def finished(physarum: Caller, *arguments: str) -> None:
    assert physarum("run", *SMALL, "--seed", "5", "--decay-rate", "0.2", "--every", "3", *arguments)[0] == 0


def test_a_resumed_run_has_the_options_and_reaches_the_bits_of_the_whole_one(physarum: Caller) -> None:
    finished(physarum, "--steps", "20", "--fps", "12", "--colormap", "bone", "-o", "whole.mp4", "-o", "whole.png")
    finished(physarum, "--steps", "8", "--fps", "12", "--colormap", "bone", "-o", "a.mp4", "--checkpoint", "c")
    code, out, err = physarum("resume", "c", "--steps", "20")
    assert (code, out, err) == (0, "wrote a-2.mp4 (4 frames, 0.3 s)\n", "physarum: seed 5, from step 8\n")
    whole, again = manifest("whole.mp4"), manifest("a-2.mp4")
    assert whole["state_sha256"] == again["state_sha256"]
    other = {"outputs": 0, "mean_trail": 0}
    assert {**whole["settings"], **other} == {**again["settings"], **other}
    assert again["mean_trail"] == manifest("a.mp4")["mean_trail"], "both parts have one exposure"
    assert (again["first_step"], again["step"], again["frames"], again["every"], again["fps"]) == (8, 20, 4, 3, "12")
    assert played("a.mp4") + played("a-2.mp4") == played("whole.mp4")
    assert physarum("resume", "c", "--steps", "20", "-o", "again.png")[0] == 0
    assert manifest("again.png")["state_sha256"] == whole["state_sha256"]


def test_each_resumption_of_a_video_gets_the_next_name(physarum: Caller) -> None:
    finished(physarum, "--steps", "3", "-o", "a.MP4", "-o", "b-7.mp4", "-o", "v1.5.mp4", "--checkpoint", "c")
    for steps, names in ((6, ("a-2.MP4", "b-8.mp4", "v1.5-2.mp4")), (9, ("a-3.MP4", "b-9.mp4", "v1.5-3.mp4"))):
        code, out, _ = physarum("resume", "c", "--checkpoint", "c", "--steps", str(steps))
        assert code == 0
        assert [line.split()[1] for line in out.splitlines()] == list(names)


def test_a_picture_that_exists_is_not_replaced_by_a_resumed_run(physarum: Caller) -> None:
    finished(physarum, "--steps", "3", "-o", "a.png", "--checkpoint", "c")
    before = Path("a.png").read_bytes()
    refused(physarum("resume", "c", "--steps", "6"), "a.png exists")
    assert Path("a.png").read_bytes() == before
    assert physarum("resume", "c", "--steps", "6", "-y")[0] == 0
    assert manifest("a.png")["step"] == 6


def test_a_checkpoint_may_be_renewed_by_the_run_that_goes_on_from_it(physarum: Caller) -> None:
    finished(physarum, "--steps", "3", "-o", "a.png", "--checkpoint", "c")
    assert physarum("resume", "c", "--steps", "6", "-o", "b.png", "--checkpoint", "c")[0] == 0
    assert physarum("resume", "c", "--steps", "9", "-o", "d.png", "--checkpoint", "./c")[2] == "physarum: seed 5, from step 6\n"
    Path("other").write_text("precious")
    refused(physarum("resume", "c", "--steps", "12", "-o", "e.png", "--checkpoint", "other"), "other exists")


def test_a_run_cannot_be_resumed_to_an_earlier_step(physarum: Caller) -> None:
    finished(physarum, "--steps", "6", "-o", "a.png", "--checkpoint", "c")
    code, out, err = physarum("resume", "c", "--steps", "5", "-o", "b.png", "-o", "b.mp4")
    assert (code, out) == (2, "")
    assert "steps is 5: the world has already completed 6" in err
    assert sorted(os.listdir()) == ["a.png", "a.png.json", "c"]


def test_a_damaged_checkpoint_is_one_sentence(physarum: Caller) -> None:
    finished(physarum, "--steps", "3", "-o", "a.png", "--checkpoint", "c")
    content = bytearray(Path("c").read_bytes())
    content[-7] ^= 1
    Path("c").write_bytes(content)
    refused(physarum("resume", "c", "--steps", "6", "-o", "b.png"), "c is damaged", "SHA-256")
    assert sorted(os.listdir()) == ["a.png", "a.png.json", "c"]


def test_a_state_saved_in_python_can_be_resumed_and_is_described_rightly(physarum: Caller) -> None:
    sim = Simulation(World((Params(deposit_amount=0.25, decay_rate=0.3),), attraction=-2, seed=11), (64, 48), 300, backend="torch")
    sim.run(4)
    sim.save("c")
    assert physarum("resume", "c", "--steps", "9", "--backend", "torch", "-o", "a.png")[0] == 0
    found = manifest("a.png")
    sim.run(5)
    sim.save("d")
    assert physarum("resume", "d", "--steps", "9", "-o", "b.png")[0] == 0
    assert found["state_sha256"] == manifest("b.png")["state_sha256"]
    settings = found["settings"]
    assert (settings["deposit_amount"], settings["decay_rate"], settings["attraction"], settings["seed"]) == (0.25, 0.3, -2.0, 11)
    with Image.open("a.png") as image:
        assert np.asarray(image).max() > 100, "exposed for its own deposits"


def test_a_resumed_run_never_works_for_nothing(physarum: Caller) -> None:
    """Without outputs it takes a name of its own or is refused."""
    sim = Simulation(World(seed=11), (64, 48), 300, backend="torch")
    sim.save("c")
    code, out, _ = physarum("resume", "c", "--steps", "4")
    assert (code == 2) != ("wrote " in out)


# As a program of its own


def grown(path: Path, running: subprocess.Popen[bytes]) -> None:
    """Wait until a file has content."""
    end = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size > 0):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_with_a_video_that_plays_and_a_checkpoint_to_go_on_from(
    tmp_path: Path, physarum: Caller, number: signal.Signals, code: int
) -> None:
    running = process("run", *SMALL, "--steps", "1000000", "--every", "1", "--seed", "3", "-o", "a.mp4", "-o", "a.png", cwd=tmp_path)
    grown(tmp_path / "a.partial.mp4", running)
    running.send_signal(number)
    out, err = running.communicate(timeout=30)
    assert running.returncode == code
    assert sorted(os.listdir()) == ["a.mp4", "a.mp4.checkpoint.safetensors", "a.mp4.json"]
    found = manifest("a.mp4")
    step = found["step"]
    assert (found["interrupted"], found["frames"], played("a.mp4")) == (True, step + 1, step + 1)
    assert out.decode().startswith(f"wrote a.mp4 ({step + 1} frames, ")
    words = f"stopped after {step} of 1000000 steps; to go on: physarum resume a.mp4.checkpoint.safetensors"
    assert err.decode().splitlines() == ["physarum: seed 3", f"physarum: {words}"]
    assert physarum("resume", "a.mp4.checkpoint.safetensors", "--steps", str(step + 20))[0] == 0
    assert physarum("run", *SMALL, "--steps", str(step + 20), "--seed", "3", "-o", "whole.png")[0] == 0
    assert manifest("a-2.mp4")["state_sha256"] == manifest("a.png")["state_sha256"] == manifest("whole.png")["state_sha256"]
    assert played("a-2.mp4") == 20


SLOW = """
import time
from physarum.cli import main
from physarum.output.video import VideoWriter

close = VideoWriter.close
VideoWriter.close = lambda self: time.sleep(60) or close(self)
main()
"""


def test_a_second_signal_ends_at_once_and_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    words = (*RUN[:-4], "--steps", "1000000", "--every", "1", "-o", "a.mp4")
    running = subprocess.Popen([sys.executable, "-c", SLOW, *words], cwd=tmp_path, stderr=subprocess.PIPE)
    grown(tmp_path / "a.partial.mp4", running)
    running.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert running.poll() is None
    began = time.monotonic()
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=30)
    assert time.monotonic() - began < 1
    assert running.returncode in (143, -signal.SIGTERM)
    assert err == b"physarum: seed 0\n"
    assert not (tmp_path / "a.mp4").exists()
    assert not (tmp_path / "a.mp4.json").exists()
    assert played(tmp_path / "a.partial.mp4") > 20


def test_what_is_told_to_be_typed_goes_on_with_the_run(tmp_path: Path) -> None:
    running = process("run", *SMALL, "--steps", "1000000", "--every", "1", "-o=-it's.mp4", cwd=tmp_path)
    grown(tmp_path / "-it's.partial.mp4", running)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    told = err.decode().rstrip().split("to go on: physarum ")[1]
    script = f'"{sys.executable}" -m physarum {told} --steps 0'
    ended = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "the world has already completed" in ended.stderr


def test_help_comes_in_half_a_second_without_pytorch() -> None:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "physarum", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.5
    script = """
import sys
from physarum.cli import main
sys.argv = ["physarum", "run", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code
print(*sorted({"torch", "triton", "matplotlib", "av", "numpy"} & set(sys.modules)))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments", [("--help",), ("run", "--help"), ("--version",), (*RUN, "-o", "a.npz")], ids=lambda a: " ".join(a[:2])
)
def test_a_reader_that_has_left_is_no_fault(tmp_path: Path, arguments: tuple[str, ...], unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    running = process(*arguments, stdout=writer, environment={"PYTHONUNBUFFERED": unbuffered}, cwd=tmp_path)
    os.close(writer)
    _, err = running.communicate(timeout=30)
    assert running.returncode in (0, 141, -signal.SIGPIPE)
    assert err.decode() in ("", "physarum: seed 1\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [("--help",), (*RUN, "-o", "a.npz")], ids=lambda a: a[0])
def test_a_full_stdout_is_a_failure_with_a_sentence(tmp_path: Path, arguments: tuple[str, ...], unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        running = process(*arguments, stdout=full, environment={"PYTHONUNBUFFERED": unbuffered}, cwd=tmp_path)
        _, err = running.communicate(timeout=30)
    assert running.returncode == 1
    assert err.decode().splitlines()[-1].startswith("physarum: cannot print the results: ")
    assert "Traceback" not in err.decode()


@pytest.mark.parametrize("arguments", [("--help",), (*RUN, "-o", "a.npz")], ids=lambda a: a[0])
def test_a_closed_stdout_is_a_failure_with_a_sentence(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    running = process(*arguments, preexec_fn=lambda: os.close(1), cwd=tmp_path)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 1
    assert err.decode().splitlines()[-1].startswith("physarum: cannot print the results")
    assert "Traceback" not in err.decode()


def test_a_closed_stderr_does_not_end_a_run(tmp_path: Path) -> None:
    running = process(*RUN, "-o", "a.npz", preexec_fn=lambda: os.close(2), cwd=tmp_path)
    out, _ = running.communicate(timeout=30)
    assert running.returncode == 0
    assert out == b"wrote a.npz\n", "what belongs on stderr is not printed among the results"
    assert sorted(os.listdir(tmp_path)) == ["a.npz", "a.npz.json"]


@pytest.mark.parametrize("gone", ["pipe", "full"])
def test_a_stderr_that_takes_nothing_changes_neither_the_result_nor_the_exit_code(tmp_path: Path, gone: str) -> None:
    for arguments, code in (((*RUN, "-o", "a.npz"), 0), ((*RUN, "--seed", "x"), 2)):
        if gone == "full":
            writer = os.open("/dev/full", os.O_WRONLY)
        else:
            reader, writer = os.pipe()
            os.close(reader)
        running = process(*arguments, stderr=writer, cwd=tmp_path)
        os.close(writer)
        running.communicate(timeout=30)
        assert running.returncode == code
    assert sorted(os.listdir(tmp_path)) == ["a.npz", "a.npz.json"]


@pytest.mark.parametrize("signals", [1, 2])
def test_a_terminal_gets_its_cursor_back(tmp_path: Path, signals: int) -> None:
    ours, theirs = pty.openpty()
    words = (*RUN[:-4], "--steps", "1000000", "--every", "1", "-o", "a.mp4")
    script = SLOW if signals == 2 else "from physarum.cli import main; main()"
    running = subprocess.Popen([sys.executable, "-c", script, *words], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    sent = 0
    with suppress(OSError):  # EIO at the end
        while piece := os.read(ours, 65536):
            shown += piece
            if sent < signals and b"\x1b[?25l" in shown and (tmp_path / "a.partial.mp4").exists():
                running.send_signal(signal.SIGINT)
                sent += 1
                if signals == 2:
                    time.sleep(0.5)  # the first would be one with the second
                    running.send_signal(signal.SIGINT)
                    sent += 1
    os.close(ours)
    assert running.wait(30) in (130, -signal.SIGINT)
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l"), "the last word is to show it"


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
    ids=["ascii", "C", "latin-1"],
)
def test_a_terminal_that_knows_few_letters_gets_them_escaped(tmp_path: Path, environment: dict[str, str]) -> None:
    name = os.fsencode("ü ж ") + b"\xff.png"
    running = process(*RUN, "-o", os.fsdecode(name), environment=environment, cwd=tmp_path)
    out, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (0, b"physarum: seed 1\n")
    assert out.startswith(b"wrote ")
    assert set(os.listdir(os.fsencode(tmp_path))) == {name, name + b".json"}
    assert os.fsencode(manifest(tmp_path / os.fsdecode(name))["output"]) == name


def test_help_can_be_read_on_a_terminal_that_knows_few_letters() -> None:
    for command in ("run", "resume"):
        running = process(command, "--help", environment={"PYTHONIOENCODING": "ascii"})
        out, err = running.communicate(timeout=30)
        assert (running.returncode, err) == (0, b"")
        assert b"--checkpoint-every" in out


@pytest.mark.parametrize(("arguments", "code"), [((*RUN, "-o", "a.png"), 0), ((*RUN, "--seed", "x"), 2), (("resume", "missing"), 2)])
def test_the_exit_code_is_that_of_the_program(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    running = process(*arguments, cwd=tmp_path)
    _, err = running.communicate(timeout=30)
    assert running.returncode == code
    assert len(err.decode().splitlines()) == 1


def test_a_run_that_cannot_be_finished_exits_with_1(physarum: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("physarum.files.os.fsync", fail)
    code, out, err = physarum(*RUN, "-o", "a.png")
    assert (code, out) == (1, "")
    assert err.splitlines() == ["physarum: seed 1", "physarum: cannot write a.png: No space left on device"]
    assert os.listdir() == []


def test_the_picture_of_a_run_is_the_same_on_every_machine(physarum: Caller) -> None:
    assert physarum("run", *SMALL, "--steps", "60", "--seed", "2", "-o", "a.png", "-o", "a.npz")[0] == 0
    with Image.open("a.png") as image:
        assert hashlib.sha256(np.asarray(image).tobytes()).hexdigest() == "170b3a8291c481f5e7f5a5189d13d8f67326d22e35550781962c3b1c550a6655"
    assert manifest("a.npz")["state_sha256"] == "088bce7a2a9cba9296c44a8485e08eeae72333db7440f8c04506460e2df14e0d"


def test_a_successor_does_not_show_the_start_again(physarum: Caller) -> None:
    assert physarum("run", *SMALL, "--steps", "0", "--every", "2", "-o", "a.mp4", "--checkpoint", "c")[0] == 0
    assert physarum("resume", "c", "--steps", "8")[0] == 0
    assert (played(Path("a.mp4")), played(Path("a-2.mp4"))) == (1, 4)
    assert physarum("resume", "c", "--steps", "8", "-o", "b.mp4")[0] == 0
    assert played(Path("b.mp4")) == 5, "a video of its own shows it"


def test_a_complete_run_is_not_resumed_for_nothing(physarum: Caller) -> None:
    assert physarum("run", *SMALL, "--steps", "4", "-o", "a.mp4", "--checkpoint", "c")[0] == 0
    refused(physarum("resume", "c"), "the run is complete with 4 steps: give --steps to go on")
    assert physarum("resume", "c", "-o", "b.png")[0] == 0


def test_a_picture_shows_where_agents_leave_nothing(physarum: Caller) -> None:
    save_picture(Path("photo.png"), format="PNG")
    assert physarum("run", "--image", "photo.png", "--deposit-amount", "0", "--steps", "0", "-o", "a.png")[0] == 0
    with Image.open("a.png") as image:
        assert np.asarray(image).max() > 200


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")])
def test_a_memory_that_is_not_enough_is_a_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_out(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", run_out)
    assert cli.call(["run"]) == 1
    assert capsys.readouterr().err == "physarum: the memory is not enough: try a smaller --size or fewer --agents\n"


def test_another_failure_of_pytorch_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        cli.call(["run"])
