"""MP4 video, encoded frame by frame."""

import os
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self

import av
import numpy as np
from av.codec.codec import UnknownCodecError
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc, VideoReformatter
from numpy.typing import NDArray

from physarum.errors import RunError, UsageError
from physarum.files import shown, written_whole

MAX_SIDE = 16_384  # of libx264
NTSC = tuple(Fraction(1000 * whole, 1001) for whole in (24, 30, 48, 60, 120))  # 23.976, 29.97, ... frames a second

# While it grows, the file is a row of fragments, each complete in itself, so that it plays up to the last second whatever ends the run.
FRAGMENTED = {
    # The header waits for the first fragment, since only then it can say that showing starts at 0, behind the decoding of B-frames.
    "movflags": "frag_keyframe+empty_moov+delay_moov+default_base_moof",
    "frag_duration": "1000000",  # microseconds
    "flush_packets": "1",  # hand a fragment to the system as soon as it is complete
}


class VideoWriter:
    """Writes frames to an MP4 as H.264, yuv420p, BT.709 limited range, tagged so.

    While it is written the video stands beside `path` as NAME.partial.mp4; `close` turns it into `path`. As a context manager it closes
    when the block ends, and removes what it wrote when the block raises, unless the disk or the encoder failed: then the playable part
    is kept and the error names it.

    Attributes:
        path: The finished file.
        partial: The file that grows.
        size: (width, height) of the video in pixels, even.
        rate: Frames a second, exact.
        frames: Number of frames written so far.
        note: A sentence if frames are padded to even sides, else None.
    """

    def __init__(self, path: str | os.PathLike[str], size: tuple[int, int], fps: Fraction | float, crf: int = 18) -> None:
        """Open the encoder and the file, so that what cannot work fails before anything is simulated.

        Args:
            path: The file to write; its folder is made if missing.
            size: (width, height) of the frames in pixels. Odd sides are padded by repeating the last column or row.
            fps: Frames a second, see `exact_rate`.
            crf: Constant rate factor of x264, 0 (lossless) to 51 (worst); 18 looks like the original.

        Raises:
            UsageError: A size, rate or factor that H.264 does not take, or `path` is a folder.
            RunError: The file cannot be made.
        """
        self.path = Path(path)
        self.partial = partial_path(self.path)
        self.rate = exact_rate(fps)
        self.frames = 0
        self._given = size
        width, height = self.size = (size[0] + size[0] % 2, size[1] + size[1] % 2)
        self.note = _padding_note(self.path, size)
        self._closed = False
        name = shown(self.path)
        if min(size) < 1 or max(self.size) > MAX_SIDE:
            raise UsageError(f"{name} cannot have frames of {size[0]}x{size[1]}; H.264 takes sides of 1 to {MAX_SIDE:,} pixels")
        if not 0 <= crf <= 51:
            raise UsageError(f"crf {crf} is not a quality of {name}; it must be 0 (lossless) to 51 (worst)")
        if os.path.isdir(self.path):
            raise UsageError(f"{name} is a folder; give the name of a file to write")
        self._container = av.open(_url(self.partial), "w", format="mp4", options=FRAGMENTED)
        try:
            self._stream = self._container.add_stream("libx264", rate=self.rate, options={"crf": str(crf)})
        except UnknownCodecError as error:
            raise UsageError(f"{name} cannot be encoded, for this PyAV has no libx264; install av from PyPI") from error
        self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "yuv420p"
        # Tags alone would mislabel the colours, and a conversion alone would leave players to guess: write() converts to what these say.
        codec = self._stream.codec_context
        codec.colorspace, codec.color_range = Colorspace.ITU709, ColorRange.MPEG
        codec.color_primaries, codec.color_trc = ColorPrimaries.BT709, ColorTrc.BT709
        self._reformatter = VideoReformatter()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._container.start_encoding()  # opens the encoder and makes the file
        except OSError as error:
            self.abandon()
            raise RunError(f"cannot write {name}: {error.strerror or error}") from error
        except av.FFmpegError as error:
            self.abandon()
            raise UsageError(f"{name} cannot have frames of {width}x{height}: x264 refuses them ({error.strerror})") from error

    def write(self, frame: NDArray[np.uint8]) -> None:
        """Encode one frame; it lasts 1 / `rate` seconds.

        Args:
            frame: uint8 (height, width, 3), sRGB, of the size given at the start.

        Raises:
            UsageError: The frame has another type or shape, or the video is closed.
            RunError: The disk or the encoder failed; the message names the part that is kept.
        """
        width, height = self._given
        if self._closed:
            raise UsageError(f"{shown(self.path)} is closed; it takes no more frames")
        if frame.dtype != np.uint8 or frame.shape != (height, width, 3):
            raise UsageError(f"{shown(self.path)} takes frames of uint8 {(height, width, 3)}, not {frame.dtype} {frame.shape}")
        if self.size != self._given:
            frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        try:
            picture = self._reformatter.reformat(
                av.VideoFrame.from_ndarray(frame, format="rgb24"),
                format="yuv420p",
                dst_colorspace=Colorspace.ITU709,
                dst_color_range=ColorRange.MPEG,
            )
            picture.pts, picture.time_base = self.frames, 1 / self.rate
            self._container.mux(self._stream.encode(picture))
        except (OSError, av.FFmpegError) as error:
            raise self._stopped(error) from error
        self.frames += 1

    def close(self) -> None:
        """Finish the video, check it and give it its name. Without frames there is no file. Closing again does nothing.

        Raises:
            RunError: The disk or the encoder failed, or the finished file is not what was written; the message names the part that is kept.
        """
        if self._closed:
            return
        if self.frames == 0:
            self.abandon()
            return
        try:
            self._container.mux(self._stream.encode(None))
            self._container.close()
            with written_whole(self.path) as part:
                _copy(self.partial, part, self.rate)
                self._check(part)
        except (OSError, av.FFmpegError, RunError) as error:
            raise self._stopped(error) from error
        self._closed = True
        self.partial.unlink()

    def abandon(self) -> None:
        """Stop, and remove what was written."""
        self._closed = True
        with suppress(OSError, av.FFmpegError):
            self._container.close()
        with suppress(OSError):
            self.partial.unlink()

    def keep(self) -> str | None:
        """End the video early, after a failure elsewhere, and keep its frames under the partial name.

        Returns:
            A sentence about what is kept, or None for a video without frames or one that has been closed, abandoned or kept before.
        """
        if self._closed:
            return None
        if self.frames == 0:
            self.abandon()
            return None
        with suppress(OSError, av.FFmpegError):
            self._container.mux(self._stream.encode(None))
        return self._keep_written()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None:
            self.close()
        elif not self._closed:
            self.abandon()

    def _check(self, path: Path) -> None:
        """Refuse a finished file that does not hold what was written; encoders and muxers have been known to fail without a word."""
        with av.open(_url(path)) as container:
            stream = container.streams.video[0]
            found = (stream.frames, (stream.width, stream.height), stream.pix_fmt)
        wanted = (self.frames, self.size, "yuv420p")
        if found != wanted:
            raise RunError(f"{shown(self.path)} came out as {found} where (frames, size, pixel format) should be {wanted}")

    def _stopped(self, error: Exception) -> RunError:
        """The error to raise after the disk or the encoder failed. What the encoder still holds is lost: it would land behind a gap."""
        what = str(error) if isinstance(error, RunError) else f"cannot write {shown(self.path)}: {getattr(error, 'strerror', '') or error}"
        return RunError(f"{what}; {self._keep_written()}")

    def _keep_written(self) -> str:
        """End the video with the last fragment that is complete on the disk; say how much that is."""
        self._closed = True
        frames = 0
        with suppress(OSError, av.FFmpegError):
            self._container.close()
        with suppress(OSError, av.FFmpegError):
            frames = _trim(self.partial)
        if frames == 0:
            self.partial.unlink(missing_ok=True)
            return f"none of the frames of {shown(self.path)} could be kept"
        return f"the first {frames} frames of {shown(self.path)} are kept in {shown(self.partial)}, which plays"


def partial_path(path: Path) -> Path:
    """Where a video grows until it is finished."""
    return path.with_name(f"{path.stem}.partial{path.suffix}")


def exact_rate(fps: Fraction | float) -> Fraction:
    """Frames a second as the fraction that is meant.

    Args:
        fps: More than 0, at most 1000. The rates of NTSC may be rounded: 29.97 means 30000/1001.

    Returns:
        The rate, with a denominator of at most 1001.

    Raises:
        UsageError: The rate is outside these bounds or not a number.
    """
    try:
        given = Fraction(fps)
    except (ValueError, OverflowError):  # not a number, infinite
        given = Fraction(0)
    rate = next((ntsc for ntsc in NTSC if abs(given - ntsc) < Fraction(5, 1000)), given.limit_denominator(1001))
    if not 0 < rate <= 1000:
        raise UsageError(f"{fps} frames a second cannot be shown; the rate must be from 1/1001 to 1000")
    return rate


def _padding_note(path: Path, size: tuple[int, int]) -> str | None:
    """What is done to frames of odd size (width, height)."""
    sides = [name for name, side in (("column", size[0]), ("row", size[1])) if side % 2]
    if not sides:
        return None
    padded = f"{size[0] + size[0] % 2}x{size[1] + size[1] % 2}"
    return f"{shown(path)} is {padded}, for H.264 needs even sides: the last {' and '.join(sides)} of {size[0]}x{size[1]} stand twice"


def _url(path: Path) -> str:
    """The name as FFmpeg takes it literally; without the prefix it would read a protocol into `a:b.mp4`."""
    return f"file:{path}"


def _copy(source: Path, target: Path, rate: Fraction) -> None:
    """Copy a video, as encoded, from fragments to an MP4 with the index in front, so that players start and seek at once."""
    # By default the whole duration is rounded to milliseconds, which cuts into the last frame.
    options = {"movflags": "faststart", "movie_timescale": str(rate.numerator)}
    with av.open(_url(source)) as fragments, av.open(_url(target), "w", format="mp4", options=options) as whole:
        stream = whole.add_stream_from_template(fragments.streams.video[0])
        for packet in fragments.demux(video=0):
            if packet.size:  # the last, empty one marks the end
                packet.stream = stream
                whole.mux(packet)


def _trim(path: Path) -> int:
    """Cut an MP4 behind its last complete fragment; return the number of frames left.

    An MP4 is a row of boxes: length in bytes (32 bits, big endian), name (4 bytes), content (ISO 14496-12, 4.2); `mdat` ends a fragment.
    """
    end = 0
    size = path.stat().st_size
    with path.open("rb+") as file:
        start = 0
        while start + 8 <= size:
            file.seek(start)
            length = int.from_bytes(file.read(4), "big")
            name = file.read(4)
            start += length
            if length < 8 or start > size:
                break
            if name == b"mdat":
                end = start
        file.truncate(end)
    if end == 0:
        return 0
    with av.open(_url(path)) as container:
        return sum(packet.size > 0 for packet in container.demux(video=0))
