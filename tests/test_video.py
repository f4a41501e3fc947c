"""MP4 writing: what is in the file, and what is left when a run ends early."""

import collections
import os
import shutil
import signal
import subprocess
import sys
from fractions import Fraction

import av
import numpy as np
import pytest
from cases import full_disk

from physarum.errors import RunError, UsageError
from physarum.output import video
from physarum.output.video import VideoWriter, exact_rate


def frames_of(path):
    """RGB frames, uint8 (height, width, 3), as a player that obeys the tags shows them."""
    with av.open(f"file:{path}") as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def noise(count, width=64, height=48):
    """Frames that do not compress."""
    rng = np.random.default_rng(3)
    return list(rng.integers(0, 256, (count, height, width, 3), dtype=np.uint8))


def numbered(count, width=64, height=48):
    """Flat frames of growing brightness, so that order and number show."""
    return [np.full((height, width, 3), 20 + 3 * index, np.uint8) for index in range(count)]


def write(path, frames):
    """A video of these frames at 30 a second."""
    height, width, _ = frames[0].shape
    with VideoWriter(path, (width, height), 30) as writer:
        for frame in frames:
            writer.write(frame)
    return writer


def test_every_frame_arrives_in_order(tmp_path, capfd):
    writer = write(tmp_path / "a.mp4", numbered(70))
    assert writer.frames == 70
    assert writer.note is None
    assert os.listdir(tmp_path) == ["a.mp4"]
    shown = frames_of(tmp_path / "a.mp4")
    assert len(shown) == 70
    for frame, wanted in zip(shown, numbered(70), strict=True):
        assert frame.shape == (48, 64, 3)
        assert abs(frame.mean() - wanted.mean()) < 2
    assert capfd.readouterr() == ("", "")


def test_frames_are_neither_turned_nor_mirrored(tmp_path):
    scene = np.zeros((48, 64, 3), np.uint8)
    scene[:16, :16] = 255
    scene[32:, :16] = (255, 0, 0)
    write(tmp_path / "a.mp4", [scene])
    (shown,) = frames_of(tmp_path / "a.mp4")
    np.testing.assert_allclose(shown[4:12, 4:12], 255, atol=4)
    np.testing.assert_allclose(shown[36:44, 4:12, 0], 255, atol=4)
    np.testing.assert_allclose(shown[36:44, 4:12, 1:], 0, atol=4)
    np.testing.assert_allclose(shown[:, 24:], 0, atol=4)


def test_flat_colours_come_back_and_are_tagged(tmp_path):
    levels = (0, 128, 255)
    colours = [(red, green, blue) for red in levels for green in levels for blue in levels]
    write(tmp_path / "a.mp4", [np.full((32, 32, 3), colour, np.uint8) for colour in colours])
    for shown, colour in zip(frames_of(tmp_path / "a.mp4"), colours, strict=True):
        assert abs(shown.astype(int) - colour).max() <= 4
    with av.open(str(tmp_path / "a.mp4")) as container:
        codec = container.streams.video[0].codec_context
        assert codec.name == "h264"
        assert codec.pix_fmt == "yuv420p"
        # 1 stands for BT.709 in the first three (ITU-T H.273) and for the limited range in the last.
        assert (codec.color_primaries, codec.color_trc, codec.colorspace, codec.color_range) == (1, 1, 1, 1)


@pytest.mark.parametrize(("given", "padded"), [((61, 83), (62, 84)), ((8, 9), (8, 10)), ((9, 8), (10, 8)), ((1, 1), (2, 2))])
def test_odd_sides_are_padded_by_their_edge(tmp_path, given, padded):
    (frame,) = noise(1, *given)
    with VideoWriter(tmp_path / "odd.mp4", given, 30, crf=0) as writer:
        writer.write(frame)
    assert writer.size == padded
    assert f"odd.mp4 is {padded[0]}x{padded[1]}" in writer.note
    assert f"{given[0]}x{given[1]}" in writer.note
    assert ("column" in writer.note, "row" in writer.note) == (given[0] % 2 == 1, given[1] % 2 == 1)
    with av.open(str(tmp_path / "odd.mp4")) as container:
        (shown,) = (picture.to_ndarray() for picture in container.decode(video=0))
    luma = shown[: padded[1], : padded[0]].astype(int)
    assert (luma[:, given[0] - 1] == luma[:, padded[0] - 1]).all()
    assert (luma[given[1] - 1] == luma[padded[1] - 1]).all()
    # Nothing is rescaled: each pixel keeps its place. Limited range: 16 to 235.
    wanted = 16 + 219 / 255 * (frame @ [0.2126, 0.7152, 0.0722])
    assert abs(luma[: given[1], : given[0]] - wanted).max() <= 2


@pytest.mark.parametrize(
    ("given", "exact"),
    [
        (29.97, Fraction(30_000, 1001)),
        (Fraction(2997, 100), Fraction(30_000, 1001)),
        (23.976, Fraction(24_000, 1001)),
        (59.94, Fraction(60_000, 1001)),
        (30, Fraction(30)),
        (12.5, Fraction(25, 2)),
        (33.3, Fraction(333, 10)),
        (119.88, Fraction(120_000, 1001)),
        (1000, Fraction(1000)),
        (1 / 1001, Fraction(1, 1001)),
    ],
)
def test_rates_are_exact(tmp_path, given, exact):
    assert exact_rate(given) == exact
    with VideoWriter(tmp_path / "a.mp4", (64, 48), given) as writer:
        for index in range(60):  # enough for frames to be encoded out of order
            writer.write(np.full((48, 64, 3), 4 * index, np.uint8))
    assert writer.rate == exact
    with av.open(str(tmp_path / "a.mp4")) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == exact
        assert stream.start_time == 0
        assert stream.duration * stream.time_base == 60 / exact
        assert stream.codec_context.has_b_frames
        assert [frame.pts * stream.time_base for frame in container.decode(video=0)] == [index / exact for index in range(60)]


@pytest.mark.parametrize("fps", [0, -1, 1000.5, float("nan"), float("inf"), 1e-9])
def test_other_rates_are_refused(tmp_path, fps):
    with pytest.raises(UsageError, match=r"frames a second cannot be shown; the rate must be from 1/1001 to 1000"):
        VideoWriter(tmp_path / "a.mp4", (16, 16), fps)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("size", "crf"), [((0, 8), 18), ((16_386, 8), 18), ((16_384, 16_384), 18), ((8, 8), -1), ((8, 8), 52)])
def test_what_h264_does_not_take_is_refused_at_the_start(tmp_path, capfd, size, crf):
    with pytest.raises(UsageError, match=r"a\.mp4"):
        VideoWriter(tmp_path / "a.mp4", size, 30, crf)
    assert os.listdir(tmp_path) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "frame", [np.zeros((64, 48, 3), np.uint8), np.zeros((48, 64), np.uint8), np.zeros((48, 64, 4), np.uint8), np.zeros((48, 64, 3), float)]
)
def test_other_frames_are_refused(tmp_path, frame):
    writer = VideoWriter(tmp_path / "a.mp4", (64, 48), 30)
    with pytest.raises(UsageError, match=r"takes frames of uint8 \(48, 64, 3\)"):
        writer.write(frame)
    writer.abandon()


@pytest.mark.parametrize("view", [np.asfortranarray, lambda frame: frame[::-1, ::-1], lambda frame: np.repeat(frame, 2, axis=1)[:, ::2]])
def test_frames_may_be_views(tmp_path, view):
    (frame,) = noise(1)
    for name, given in (("view.mp4", view(frame)), ("copy.mp4", np.ascontiguousarray(view(frame)))):
        write(tmp_path / name, [given])
    assert (frames_of(tmp_path / "view.mp4")[0] == frames_of(tmp_path / "copy.mp4")[0]).all()


ODD_NAMES = ["a:b.mp4", "http:x.mp4", "100%d.mp4", "-out.mp4", "нет фото.mp4", os.fsdecode(b"bad\xff.mp4"), "new\nline.mp4", "none"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_taken_literally(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    writer = write(name, numbered(3, 17, 16))
    assert os.listdir() == [name]
    assert len(frames_of(name)) == 3
    assert writer.note.isprintable()


def test_folders_are_made_and_an_old_video_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "new" / "folder" / "a.mp4"
    for count in (3, 5):
        with VideoWriter(path, (64, 48), 30) as writer:
            for frame in numbered(count):
                writer.write(frame)
            assert path.exists() == (count == 5)
        assert len(frames_of(path)) == count
    assert os.listdir(path.parent) == ["a.mp4"]


def test_where_no_file_can_be_that_is_said_at_the_start(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        VideoWriter(tmp_path / "folder.mp4", (64, 48), 30)
    for path in (tmp_path / "file" / "a.mp4", tmp_path / ("long" * 63 + ".mp4")):
        with pytest.raises(RunError, match="cannot write"):
            VideoWriter(path, (64, 48), 30)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.mp4"]


def test_without_frames_there_is_no_file(tmp_path):
    with VideoWriter(tmp_path / "a.mp4", (64, 48), 30):
        pass
    assert os.listdir(tmp_path) == []


def test_abandoning_leaves_nothing(tmp_path):
    writer = VideoWriter(tmp_path / "a.mp4", (64, 48), 30)
    for frame in noise(80):
        writer.write(frame)
    assert os.listdir(tmp_path) == ["a.partial.mp4"]
    writer.abandon()
    assert os.listdir(tmp_path) == []
    with pytest.raises(UsageError, match="is closed"):
        writer.write(noise(1)[0])


def test_a_failure_elsewhere_can_keep_every_frame(tmp_path):
    writer = VideoWriter(tmp_path / "a.mp4", (64, 48), 30)
    for frame in numbered(7):
        writer.write(frame)
    assert "the first 7 frames of" in writer.keep()
    assert writer.keep() is None
    writer.close()
    assert os.listdir(tmp_path) == ["a.partial.mp4"]
    assert len(frames_of(tmp_path / "a.partial.mp4")) == 7
    empty = VideoWriter(tmp_path / "empty.mp4", (64, 48), 30)
    assert empty.keep() is None
    assert os.listdir(tmp_path) == ["a.partial.mp4"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_block_abandons_the_video(tmp_path, error):
    def frames():
        yield noise(1)[0]
        raise error

    with pytest.raises(error), VideoWriter(tmp_path / "a.mp4", (64, 48), 30) as writer:
        collections.deque(map(writer.write, frames()))
    assert os.listdir(tmp_path) == []


def test_closing_in_the_middle_keeps_the_frames_so_far(tmp_path):
    writer = VideoWriter(tmp_path / "a.mp4", (64, 48), 30)
    for frame in numbered(7):
        writer.write(frame)
    writer.close()
    writer.close()
    assert len(frames_of(tmp_path / "a.mp4")) == 7


def test_the_index_stands_in_front(tmp_path):
    write(tmp_path / "a.mp4", noise(40))
    data = (tmp_path / "a.mp4").read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")
    assert b"moof" not in data


def test_a_killed_run_leaves_a_video_that_plays(tmp_path):
    script = """
import os, signal, sys
import numpy as np
from physarum.output.video import VideoWriter

writer = VideoWriter(sys.argv[1], (64, 48), 30)
for index in range(150):
    writer.write(np.full((48, 64, 3), index, np.uint8))
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", script, tmp_path / "a.mp4"], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGKILL, b"", b"")
    assert os.listdir(tmp_path) == ["a.partial.mp4"]
    # The encoder looks ahead some 50 frames, and a fragment is a second long.
    assert 60 <= len(frames_of(tmp_path / "a.partial.mp4")) <= 150


def test_a_full_disk_keeps_what_plays(tmp_path, capfd):
    with full_disk(400_000), pytest.raises(RunError) as caught:
        write(tmp_path / "a.mp4", noise(400))
    assert os.listdir(tmp_path) == ["a.partial.mp4"]
    kept = len(frames_of(tmp_path / "a.partial.mp4"))
    with av.open(str(tmp_path / "a.partial.mp4")) as container:
        assert container.streams.video[0].start_time == 0
    assert 30 <= kept < 400
    assert f"a.mp4: File too large; the first {kept} frames of " in str(caught.value)
    assert str(caught.value).endswith("a.partial.mp4, which plays")
    assert capfd.readouterr() == ("", "")


def test_a_disk_that_is_full_at_once_leaves_nothing(tmp_path):
    with full_disk(2000), pytest.raises(RunError, match=r"none of the frames of .*a.mp4 could be kept"):
        write(tmp_path / "a.mp4", noise(400))
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fills_up_while_closing_keeps_every_frame(tmp_path, monkeypatch):
    copy = video._copy

    def copy_on_a_full_disk(*arguments):
        with full_disk(20_000):
            copy(*arguments)

    monkeypatch.setattr(video, "_copy", copy_on_a_full_disk)
    with pytest.raises(RunError, match=r"the first 40 frames of .*a.mp4 are kept"):
        write(tmp_path / "a.mp4", noise(40))
    assert os.listdir(tmp_path) == ["a.partial.mp4"]
    assert len(frames_of(tmp_path / "a.partial.mp4")) == 40


def test_a_video_that_came_out_otherwise_is_not_given_its_name(tmp_path, monkeypatch):
    write(tmp_path / "short.mp4", noise(1))
    monkeypatch.setattr(video, "_copy", lambda source, target, rate: shutil.copy(tmp_path / "short.mp4", target))
    with pytest.raises(RunError, match=r"a.mp4 came out as \(1, .* should be \(2, "):
        write(tmp_path / "a.mp4", noise(2))
    assert sorted(os.listdir(tmp_path)) == ["a.partial.mp4", "short.mp4"]
