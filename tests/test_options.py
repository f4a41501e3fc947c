"""Spellings of options and TOML files: each is taken with one meaning or refused with one sentence."""

import dataclasses
import os
import re
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from physarum import Params, UsageError
from physarum.cli.config import read_config
from physarum.cli.options import (
    KEYS,
    ModelOptions,
    OutputOptions,
    RunOptions,
    Settings,
    WorldOptions,
    given_options,
    read_agents,
    read_fps,
    read_seed,
    read_size,
)

NAN, INF = float("nan"), float("inf")


def refusal(given: dict[str, Any]) -> str:
    """The sentence with which settings are refused; it names the option, or what it consists of."""
    with pytest.raises(UsageError) as error:
        Settings().changed(given)
    sentence = str(error.value)
    assert sentence.isprintable()
    assert re.search(rf"\b({next(iter(given))}|width|height)\b", sentence)
    return sentence


# Spellings


@pytest.mark.parametrize("spelling", ["64x48", "64X48", "064x48", [64, 48], (64, 48)])
def test_a_size_is_width_times_height(spelling: Any) -> None:
    assert read_size("size", spelling) == (64, 48)


@pytest.mark.parametrize(
    "spelling",
    [
        "64*48",
        "64,48",
        "64x48x2",
        "64",
        "x",
        "",
        "64x",
        "x48",
        "64 x 48",
        " 64x48",
        "64x48\n",
        "64×48",
        "-64x48",
        "64x-48",
        "6e1x48",
        "6_4x48",
        "64.0x48",
        "0x40x0x40",
        "٦٤x٤٨",
        "1e3",
        "64x48px",
        64,
        [64],
        [64, 48, 2],
        [64.0, 48],
        ["64", "48"],
        [True, 48],
        True,
        64.0,
        {"width": 64},
    ],
)
def test_other_spellings_of_a_size_are_refused(spelling: Any) -> None:
    refusal({"size": spelling})


@pytest.mark.parametrize("spelling", ["0x64", "64x0", "7x64", "64x65537", "999999999x64", [7, 64], [64, 2**70], [-64, 64]])
def test_a_size_out_of_bounds_is_refused_with_the_bounds(spelling: Any) -> None:
    assert "it must be a whole number from 8 to 65536" in refusal({"size": spelling})


@pytest.mark.parametrize(
    ("spelling", "agents"),
    [
        ("1", 1),
        ("500", 500),
        ("1_000", 1000),
        ("1e3", 1000),
        ("1.5e3", 1500),
        ("1k", 1000),
        ("1.5k", 1500),
        ("0.5k", 500),
        ("1.0005M", 1_000_500),
        ("123k", 123_000),
        ("2M", 2_000_000),
        ("2G", 2_000_000_000),
        ("2147483648", 2**31),
        ("1.000", 1),
        (500, 500),
    ],
)
def test_agents_may_be_written_with_a_multiple(spelling: Any, agents: int) -> None:
    assert read_agents("agents", spelling) == agents


@pytest.mark.parametrize(
    "spelling",
    [
        "",
        "k",
        "many",
        "1M5",
        "1kk",
        "1 k",
        "1K5",
        "1.0005k",
        "1.5",
        "0.5",
        ".5k",
        "1,000",
        "1'000",
        "0x7",
        "1e-3",
        "1e+3",
        "1e",
        "e3",
        "-5",
        "+5",
        "1/2",
        "nan",
        "inf",
        "٥",
        "1m",
        "1e3\n",
        "½k",
        1.5,
        1000.0,
        NAN,
        True,
        None,
        [5],
        pytest.param("9" * 5000, id="many 9"),
    ],
)
def test_other_spellings_of_agents_are_refused(spelling: Any) -> None:
    assert "it must be a whole number" in refusal({"agents": spelling})


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "spelling", ["0", "0k", "0e99", "1e30", "9e99", "3G", "2147483649", 0, -5, 2**31 + 1, pytest.param(10**5000, id="huge")]
)
def test_agents_out_of_bounds_are_refused_with_the_bounds(spelling: Any) -> None:
    assert "it must be a whole number from 1 to 2147483648" in refusal({"agents": spelling})


@pytest.mark.parametrize(
    ("spelling", "seed"), [("7", 7), ("007", 7), ("0", 0), ("4294967295", 2**32 - 1), (7, 7), (0, 0), (2**32 - 1, 2**32 - 1)]
)
def test_a_seed_is_a_whole_number(spelling: Any, seed: int) -> None:
    assert read_seed("seed", spelling) == seed


@pytest.mark.parametrize(
    "spelling",
    [
        "",
        "-1",
        "4294967296",
        "9" * 39,
        pytest.param("9" * 5000, id="many 9"),
        "1e3",
        "7.0",
        "7.5",
        "0x7",
        "1_000",
        "1k",
        "seven",
        "Random",
        "RANDOM",
        " 7",
        "7\n",
        "+7",
        "٧",
        "nan",
        -1,
        2**32,
        pytest.param(10**5000, id="huge"),
        7.0,
        7.5,
        NAN,
        INF,
        True,
        None,
        [7],
    ],
)
def test_another_seed_is_refused_with_the_bounds(spelling: Any) -> None:
    assert "it must be a whole number from 0 to 4294967295" in refusal({"seed": spelling})


def test_a_random_seed_is_drawn_anew_from_all_of_them() -> None:
    seeds = {read_seed("seed", "random") for _ in range(200)}
    assert len(seeds) > 190
    assert min(seeds) >= 0
    assert max(seeds) <= 2**32 - 1
    assert max(seeds) > 2**31


@pytest.mark.parametrize(
    ("spelling", "rate"),
    [
        ("30", Fraction(30)),
        ("29.97", Fraction(2997, 100)),
        ("30000/1001", Fraction(30000, 1001)),
        ("0.5", Fraction(1, 2)),
        ("1000", Fraction(1000)),
        ("1000.0", Fraction(1000)),
        ("1/10", Fraction(1, 10)),
        (30, Fraction(30)),
        (29.97, Fraction(2997, 100)),
        (12.5, Fraction(25, 2)),
        (0.1, Fraction(1, 10)),
    ],
)
def test_a_rate_stays_exact(spelling: Any, rate: Fraction) -> None:
    assert Fraction(read_fps("fps", spelling)) == rate


@pytest.mark.parametrize(
    "spelling",
    [
        "0",
        "0.0",
        "0/1",
        "1001",
        "1000.1",
        "1e9",
        "1e1",
        "nan",
        "inf",
        "-30",
        "",
        "30fps",
        "1/0",
        "1/-1",
        "30/",
        "/1",
        "1/2/3",
        ".5",
        "30.",
        "3_0",
        "30\n",
        " 30",
        "٣٠",
        "1000001/1000",
        0,
        0.0,
        1000000000.0,
        -1,
        NAN,
        INF,
        True,
        None,
        [30],
        "30000:1001",
    ],
)
def test_another_rate_is_refused(spelling: Any) -> None:
    assert "it must be a number" in refusal({"fps": spelling})


@pytest.mark.parametrize("name", ["steps", "every"])
@pytest.mark.parametrize("value", [-1, 2**62 + 1, 1.0, 2.5, NAN, INF, True, "10", None, [1]])
def test_steps_are_whole_numbers(name: str, value: Any) -> None:
    least = {"steps": 0, "every": 1}[name]
    assert f"it must be a whole number from {least} to {2**62}" in refusal({name: value})
    assert getattr(Settings().changed({name: least}), name) == least


@pytest.mark.parametrize("name", [*(f.name for f in dataclasses.fields(Params)), "attraction", "image_strength"])
@pytest.mark.parametrize("value", [NAN, INF, -INF, True, False, "0.1", "abc", [0.1], 1e10, -1e10, pytest.param(10**400, id="huge")])
def test_numbers_are_numbers_within_their_bounds(name: str, value: Any) -> None:
    assert re.match(rf"{name} is .*: it must be a number from ", refusal({name: value}))


@pytest.mark.parametrize("name", ["colormap", "backend", "device", "image"])
@pytest.mark.parametrize("value", ["", "a\0b", 7, True, None, ["magma"]])
def test_names_are_names(name: str, value: Any) -> None:
    assert f"{name} is" in refusal({name: value})


def test_edges_of_the_bounds_are_allowed() -> None:
    given = {
        "decay_rate": 1,
        "diffusion": 0,
        "deposit_amount": 1e6,
        "sensor_angle": -360,
        "rotation_angle": 360,
        "step_size": 0,
        "attraction": -1000,
    }
    found = Settings().changed(given)
    assert (found.params.decay_rate, found.params.diffusion, found.params.sensor_angle, found.attraction) == (1, 0, -360, -1000)
    assert Settings().changed({"decay_rate": -0.0}).params.decay_rate == 0
    assert Settings().changed({"decay_rate": 5e-324}).params.decay_rate == 5e-324


# Layers


def test_what_is_given_later_goes_over_what_was_given_before() -> None:
    first = Settings().changed({"seed": 3, "decay_rate": 0.2, "size": "64x48", "agents": "1k"})
    second = first.changed({"seed": "7", "step_size": 0.5})
    assert (second.seed, second.size, second.agents, second.params.decay_rate, second.params.step_size) == (7, (64, 48), 1000, 0.2, 0.5)
    assert first.seed == 3
    assert second.changed({}) == second


def test_settings_come_back_from_their_own_json() -> None:
    settings = Settings().changed(
        {"seed": 3, "decay_rate": 0.2, "size": "64x48", "agents": "1k", "fps": 29.97, "image": "a.png", "colormap": "bone"}
    )
    assert Settings().changed({name: value for name, value in settings.as_json().items() if value is not None}) == settings
    assert set(settings.as_json()) == set(KEYS)


def test_only_what_is_given_on_the_command_line_counts() -> None:
    assert given_options(ModelOptions(), WorldOptions(), RunOptions(), OutputOptions()) == {}
    groups = (
        ModelOptions(decay_rate=0.0),
        WorldOptions(seed="0"),
        RunOptions(steps="0", checkpoint="c", checkpoint_every="2"),
        OutputOptions(output=("a",)),
    )
    given = given_options(*groups)
    assert set(given) == {"decay_rate", "seed", "steps"}
    assert Settings().changed({"seed": 3, "steps": 9}).changed(given) == Settings().changed({"decay_rate": 0.0, "seed": 0, "steps": 0})


def test_the_picture_is_white_at_ten_deposits_unless_told() -> None:
    assert Settings().white == 50
    assert Settings().changed({"deposit_amount": 2}).white == 20
    assert Settings().changed({"image_strength": 0}).white == 0


# TOML


def config(tmp_path: Path, content: str | bytes) -> dict[str, Any]:
    path = tmp_path / "my.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_config(str(path))


def config_refusal(tmp_path: Path, content: str | bytes) -> str:
    """The sentence with which a file, or a value in it, is refused within two seconds."""
    began = time.perf_counter()
    with pytest.raises(UsageError) as error:
        Settings().changed(config(tmp_path, content))
    assert time.perf_counter() - began < 2
    sentence = " ".join(str(error.value).split())
    assert sentence.isprintable()
    return sentence


GOOD = "sensor_angle = 30.0\nseed = 7\nsize = '64x48'\nagents = '1.5k'\n"


@pytest.mark.parametrize(
    "content",
    [
        GOOD.encode(),
        b"\xef\xbb\xbf" + GOOD.encode(),
        GOOD.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode(),
        GOOD.strip().encode(),
        ("# Größe, размер, 大きさ\n" + GOOD).encode(),
    ],
)
def test_every_editor_may_have_saved_it(tmp_path: Path, content: bytes) -> None:
    assert config(tmp_path, content) == {"sensor_angle": 30.0, "seed": 7, "size": "64x48", "agents": "1.5k"}


@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf", b"# only a comment", b"\r\n\r\n", b" " * 1000])
def test_an_empty_file_changes_nothing(tmp_path: Path, content: bytes) -> None:
    assert config(tmp_path, content) == {}


def test_every_option_has_its_key(tmp_path: Path) -> None:
    lines = {f.name: "0.5" for f in dataclasses.fields(Params)} | {"attraction": "-1", "size": "[64, 48]", "agents": "500", "seed": "7"}
    lines |= {"image": "'a.png'", "image_strength": "3", "steps": "10", "every": "2", "fps": "29.97", "colormap": "'bone'"}
    lines |= {"backend": "'torch'", "device": "'cpu'"}
    assert set(lines) == set(KEYS)
    settings = Settings().changed(config(tmp_path, "\n".join(f"{name} = {value}" for name, value in lines.items())))
    assert settings.params == Params(*[0.5] * 7)
    assert dataclasses.replace(settings, params=Params(), image=None) == Settings(
        Params(), -1.0, (64, 48), 500, 7, None, 3.0, 10, 2, "29.97", "bone", "torch", "cpu"
    )


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("# café\n".encode("latin-1") + GOOD.encode(), "line 1"),
        (GOOD.encode() + "# café\n".encode("latin-1"), "line 5"),
        (GOOD.replace("\n", "\r\n").encode() + "# café\r\n".encode("latin-1"), "line 5"),
        (GOOD.encode("utf-16"), "line 1"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "line 1"),
    ],
)
def test_another_encoding_is_refused_with_the_line(tmp_path: Path, content: bytes, line: str) -> None:
    sentence = config_refusal(tmp_path, content)
    assert "my.toml" in sentence
    assert line in sentence
    assert "UTF-8" in sentence


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('{"seed": 7}', "line 1"),
        ("seed: 7", "line 1"),
        ("seed = 7\nsteps 3", "line 2"),
        ("seed = 1\nseed = 2\n", "line 2"),
        ("seed = \n", "line 1"),
        ("seed = 7 steps = 3", "line 1"),
        ("seed = 0777", "line 1"),
        ("seed = 7\n[\n", "line 2"),
        ("colormap = 'magma", ""),
        ("colormap = magma", "line 1"),
        ("seed = 7\0", "line 1"),
        ("seed = 7\rsteps = 3\r", "line 1"),
        ("seed = 2024-13-45", "line 1"),
        ('colormap = "\\uD800"', "line 1"),
        ("size = [64, 48", ""),
    ],
)
def test_what_is_no_toml_is_refused_with_the_line(tmp_path: Path, content: str, line: str) -> None:
    sentence = config_refusal(tmp_path, content)
    assert "my.toml is not TOML" in sentence
    assert line in sentence


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "content",
    [
        "a = " + "[" * 20_000,
        "a = " + "[" * 20_000 + "]" * 20_000,
        "a = " + "{a = " * 20_000,
        "[" * 20_000,
        "seed = " + "1" * 5000,
        "seed = -" + "1" * 500_000,
        "a" + ".a" * 20_000 + " = 1",
        "[a" + ".a" * 20_000 + "]",
        "k" * 500_000 + " = 1",
        'a = "' + "\\" * 500_000,
        "\n".join(f"k{i} = {i}" for i in range(30_000)),
        "#" * 2**20 + "\n",
        "#" * 2**27 + "\n",
    ],
    ids=[
        "open",
        "closed",
        "tables",
        "header",
        "digits",
        "more digits",
        "dots",
        "dotted header",
        "key",
        "slashes",
        "keys",
        "1 MB",
        "128 MB",
    ],
)
def test_absurd_files_are_refused_at_once(tmp_path: Path, content: str) -> None:
    sentence = config_refusal(tmp_path, content)
    assert "my.toml" in sentence
    assert len(sentence) < 500


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("sensor_angel", "sensor_angle"),
        ("Decay_Rate", "decay_rate"),
        ("SEED", "seed"),
        ("decay-rate", "decay_rate"),
        ("image-strength", "image_strength"),
        ("colourmap", "colormap"),
        ("color_map", "colormap"),
        ("step", "steps"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(tmp_path: Path, key: str, near: str) -> None:
    assert config_refusal(tmp_path, f"{key} = 1").endswith(f"my.toml has the unknown key '{key}' (did you mean {near}?)")


@pytest.mark.parametrize(
    "content",
    [
        "gravity = 9.81",
        "[physics]\ngravity = 9.81",
        "[[a]]",
        "__class__ = 1",
        "params = 1",
        '"" = 1',
        '"a\\nb" = 1',
        "output = 'a.png'",
        "config = 'a'",
        "checkpoint = 'a'",
        "overwrite = true",
        "white = 1",
        '"ключ" = 1',
    ],
)
def test_what_is_no_option_is_refused(tmp_path: Path, content: str) -> None:
    assert "my.toml has the unknown key" in config_refusal(tmp_path, content)


@pytest.mark.parametrize(
    "value",
    [
        "nan",
        "+nan",
        "-nan",
        "inf",
        "-inf",
        "1e999",
        "true",
        "'0.1'",
        "'nan'",
        "[0.1]",
        "{a = 0.1}",
        "1979-05-27",
        "07:32:00",
        "-1e-3",
        "1.0000001",
        "2",
    ],
)
def test_a_wrong_value_is_named_with_its_rule(tmp_path: Path, value: str) -> None:
    sentence = config_refusal(tmp_path, f"decay_rate = {value}")
    assert re.fullmatch(r"decay_rate is .+: it must be a number from 0 to 1", sentence)


@pytest.mark.parametrize(
    "line",
    [
        "seed = 99999999999999999999999",
        "seed = -1",
        pytest.param("seed = 0x" + "f" * 5000, id="a seed of 5000 digits"),
        pytest.param("decay_rate = 1" + "0" * 400, id="a rate of 400 digits"),
        pytest.param("decay_rate = 0x" + "f" * 5000, id="a rate of 5000 digits"),
        "seed = 7.0",
        "seed = true",
        "seed = nan",
        "seed = 1979-05-27",
        "agents = 1e3",
        "agents = true",
        "steps = 10.0",
        "steps = '10'",
        "steps = true",
        "every = 0",
        "size = 64",
        "size = '64'",
        "size = [64]",
        "size = [64.0, 64.0]",
        "fps = 0",
        "fps = nan",
        "colormap = 7",
        "image = 7",
        "image = true",
        "image = ['a.png']",
        "backend = false",
        "seed.a = 1",
        "size = {}",
    ],
)
def test_a_value_of_another_kind_is_refused(tmp_path: Path, line: str) -> None:
    sentence = config_refusal(tmp_path, line)
    assert "must be" in sentence
    assert re.match(r"(size|width|height|" + re.split(r"[ .]", line)[0] + r") is ", sentence)


def test_numbers_of_toml_may_be_written_as_toml_has_it(tmp_path: Path) -> None:
    found = Settings().changed(config(tmp_path, "seed = 0x7\nagents = 1_000\ndecay_rate = 1e-3\nattraction = -1\ndiffusion = 1"))
    assert (found.seed, found.agents, found.params.decay_rate, found.attraction, found.params.diffusion) == (7, 1000, 0.001, -1.0, 1.0)


def test_a_relative_picture_is_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "my.toml").write_text("image = 'a.png'")
    monkeypatch.chdir(tmp_path)
    for name in ("folder/my.toml", str(tmp_path / "folder" / "my.toml")):
        assert Path(read_config(name)["image"]).resolve() == tmp_path / "folder" / "a.png"
    (tmp_path / "folder" / "my.toml").write_text("image = '/elsewhere/a.png'")
    assert read_config("folder/my.toml")["image"] == "/elsewhere/a.png"


@pytest.mark.timeout(20)
def test_what_is_no_ordinary_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing", tmp_path, tmp_path / "pipe", tmp_path / "file" / "inside", tmp_path / ("long" * 64)):
        with pytest.raises(UsageError, match="config") as error:
            read_config(str(path))
        assert path.name in str(error.value)
    with pytest.raises(UsageError, match="config"):
        read_config("a\0b")
