"""Reading a picture file as luminance."""

import logging
import os
import re
import stat
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile
from torch import Tensor

from physarum.errors import UsageError
from physarum.files import shown

logging.getLogger("PIL").addHandler(logging.NullHandler())  # its remarks on broken files go to stderr otherwise

MAX_PIXELS = 100_000_000
MAX_SIDE = 65_536  # also the largest side of a world
MAX_BYTES = 1 << 30  # 100 Mpixel of 16-bit RGBA, uncompressed, are 0.8 GB
BAND_PIXELS = 1 << 20  # pixels converted at a time, so that the float64 work space stays under 50 MB

REC709 = (0.2126, 0.7152, 0.0722)  # share of linear red, green and blue in the luminance, ITU-R BT.709

READ = "PNG, JPEG, WebP, GIF, TIFF or BMP"

# The plugins are called directly. Image.open() would refuse a bomb before its size is known, take JPEGs with a preview apart as MPO, and
# keep the decoder's reason to itself. Files go to them as objects: Pillow 13 scrambles some TIFFs that it opens by name.
SIGNATURES: tuple[tuple[re.Pattern[bytes], type[ImageFile.ImageFile]], ...] = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), PngImageFile),
    (re.compile(rb"\xff\xd8\xff"), JpegImageFile),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), WebPImageFile),
    (re.compile(rb"GIF8[79]a"), GifImageFile),
    (re.compile(rb"II[*+]\0|MM\0[*+]"), TiffImageFile),  # * classic, + BigTIFF
    (re.compile(rb"BM"), BmpImageFile),
)

# What people hand over in good faith and is not read.
STRANGERS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb".{4}ftyp(hei|hev|mif1|msf1)", re.DOTALL), "a HEIC picture"),
    (re.compile(rb".{4}ftypavi[fs]", re.DOTALL), "an AVIF picture"),
    (re.compile(rb"\xff\x0a|\0\0\0\x0cJXL "), "a JPEG XL picture"),
    (re.compile(rb"(\xef\xbb\xbf)?\s*(<\?xml.*|<!--.*|<!DOCTYPE svg.*)?<svg", re.DOTALL | re.IGNORECASE), "an SVG drawing"),
    (re.compile(rb"%PDF|%!PS"), "a PDF or PostScript document"),
    (re.compile(rb"8BPS"), "a Photoshop document"),
)

# Pillow's modes of 8 bits a channel, and the mode whose channels hold grey or RGB, with or without alpha.
EIGHT_BIT = {
    "1": "L", "L": "L", "LA": "LA", "La": "LA",
    "P": "RGBA", "PA": "RGBA", "RGB": "RGB", "RGBA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB",
}  # fmt: skip
SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N")

# Pillow widens greys of 2 and 4 bits to 8 by these factors, but leaves the transparent grey as it stands in the file.
KEY_FACTOR = {"L;2": 85, "L;4": 17}

# EXIF orientation (CIPA DC-008, tag 274) to the picture as a viewer shows it; other values mean as stored.
UPRIGHT: dict[int, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.T,
    6: lambda p: p.T[:, ::-1],
    7: lambda p: p[::-1, ::-1].T,
    8: lambda p: p.T[::-1],
}


def read_picture(path: str | os.PathLike[str]) -> tuple[Tensor, str | None]:
    """Read a picture as relative luminance.

    The content decides the format, not the name: PNG, JPEG, WebP, GIF, TIFF or BMP. Transparent parts are laid over black, in sRGB as
    viewers do. Integers count as sRGB and are scaled by the depth of the file, floats from 0 to 1 as linear light. Colour profiles are
    not applied. Of several frames or pages the first is read.

    Args:
        path: A regular file of at most 1 GiB, 100 million pixels and 65,536 pixels a side.

    Returns:
        The luminance, float32 (height, width), 0 black to 1 white, linear light with the weights of Rec. 709, upright as a viewer
        shows it; and a sentence if frames or pages were left out, else None.

    Raises:
        UsageError: The file is missing, not a regular file, not a picture of these kinds, cut, damaged or too large, or its numbers
            have no certain white.
    """
    name = shown(path)
    size = _file_size(path, name)
    with _decoding(name), Path(path).open("rb") as file:
        picture, tile, note = _decoded(file, size, name)
        turn = UPRIGHT[_orientation(picture)]
    luminance = turn(_luminance(picture, tile, name))
    return torch.from_numpy(np.ascontiguousarray(luminance)), note


def _file_size(path: str | os.PathLike[str], name: str) -> int:
    """Size in bytes of a regular file; anything else is refused before it is opened, since opening a pipe would wait for its writer."""
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        raise UsageError(f"{name} does not exist; give the name of a picture") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UsageError(f"{name} cannot be opened: {getattr(error, 'strerror', None) or error}") from error
    if stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{name} is a folder; a picture must be a file")
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{name} is a pipe or a device; a picture must be a regular file")
    if status.st_size == 0:
        raise UsageError(f"{name} is empty; a picture must be {READ}")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{name} may not be read by this user; change its permissions")
    return status.st_size


@contextmanager
def _decoding(name: str) -> Iterator[None]:
    """Turn whatever Pillow raises into one sentence, and keep its warnings off the terminal. Nothing but Pillow belongs inside."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UsageError:
        raise
    except Image.DecompressionBombError as error:
        # WebP and GIF raise it on their own, before the size can be asked for; the first number is the count of pixels.
        count = re.search(r"\d+", str(error))
        raise _too_large(name, f"{int(count[0]):,} pixels" if count else "too many pixels") from error
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, IndexError, struct.error, zlib.error, ...
        reason = shown(str(error)) or type(error).__name__
        raise UsageError(f"{name} cannot be read as a picture ({reason}); it may be cut or damaged, so save it again") from error


def _decoded(file: BinaryIO, size: int, name: str) -> tuple[ImageFile.ImageFile, Any, str | None]:
    """Decode the first frame of a file of `size` bytes.

    Returns:
        The picture; Pillow's tile, which says where the pixels stood in the frame and in which form, None for WebP; and the sentence
        about further frames, if any.
    """
    head = file.read(4096)
    for pattern, what in STRANGERS:
        if pattern.match(head):
            raise UsageError(f"{name} is {what}, which is not read; convert it to PNG or JPEG first")
    plugin = next((plugin for pattern, plugin in SIGNATURES if pattern.match(head)), None)
    if plugin is None:
        raise UsageError(f"{name} is not a picture; it must be {READ}")
    if size > MAX_BYTES:
        raise _too_large(name, f"{size:,} bytes")

    file.seek(0)
    picture = plugin(file)
    width, height = picture.size
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise _too_large(name, f"{width * height:,} pixels ({width}x{height})")
    if isinstance(picture, PngImageFile):
        picture.verify()  # the only check of the pixels' checksums; it uses the object up
        file.seek(0)
        picture = plugin(file)
    if isinstance(picture, TiffImageFile):
        _check_tiff(picture, size, name)
    note = None
    if getattr(picture, "is_animated", False):
        note = f"the first of its several {'pages' if picture.format == 'TIFF' else 'frames'} is used"
    tile = picture.tile[0] if picture.tile else None
    picture.load()
    return picture, tile, note


def _check_tiff(picture: TiffImageFile, size: int, name: str) -> None:
    """Refuse TIFFs that Pillow would read wrongly without a word, and cut ones, on which libtiff would write to the terminal itself."""
    tags: Any = picture.tag_v2
    offsets = tags.get(ExifTags.Base.StripOffsets) or tags.get(ExifTags.Base.TileOffsets) or ()
    counts = tags.get(ExifTags.Base.StripByteCounts) or tags.get(ExifTags.Base.TileByteCounts) or ()
    bits = tags.get(ExifTags.Base.BitsPerSample, (1,))
    trouble = None
    if any(offset + count > size for offset, count in zip(offsets, counts, strict=False)):
        raise UsageError(f"{name} is cut: its pixels would reach past its end; save or download it again")
    if tags.get(ExifTags.Base.NewSubfileType, 0) & 1:
        trouble = "starts with a small preview, as the raw files of cameras do"
    elif 2 in tags.get(ExifTags.Base.SampleFormat, (1,)):
        trouble = "holds signed integers, which have no certain white"
    elif tags.get(ExifTags.Base.PlanarConfiguration, 1) == 2 and (set(bits) != {8} or len(bits) not in (1, 3)):
        trouble = "keeps its channels apart at this depth"
    elif picture.mode in ("P", "PA") and max(tags[ExifTags.Base.ColorMap]) < 256:
        trouble = "has a palette of 8-bit numbers"
    if trouble:
        raise UsageError(f"{name} is a TIFF that {trouble}; save it as an 8 or 16-bit PNG first")


def _orientation(picture: ImageFile.ImageFile) -> int:
    """The EXIF orientation, 1 to 8, that is still to be obeyed: Pillow turns TIFFs itself while it loads them and then drops the tag."""
    try:
        orientation = picture.getexif().get(ExifTags.Base.Orientation)
    except (SyntaxError, ValueError, TypeError, LookupError, OSError, struct.error):
        return 1  # EXIF data that cannot be read do not spoil the picture; viewers show it as stored
    return orientation if orientation in UPRIGHT else 1


def _luminance(picture: ImageFile.ImageFile, tile: Any, name: str) -> NDArray[np.float32]:
    """Luminance (height, width) of a decoded picture, as stored, converted in bands of rows."""
    mode = picture.mode
    if mode not in EIGHT_BIT and mode not in SIXTEEN_BIT and mode != "F":
        kind = {"I": "32-bit integers, which have no certain white", "LAB": "CIELAB colour"}.get(mode, f"pixels of the kind {mode}")
        raise UsageError(f"{name} holds {kind}; save it as an 8 or 16-bit PNG first")
    key = _transparent_colour(picture, tile, name)
    tags: Any = getattr(picture, "tag_v2", {})
    levels = 4096 if tags.get(ExifTags.Base.BitsPerSample) == (12,) else 65_536
    # Pillow obeys "0 is white" up to 8 bits and forgets it above.
    white_is_zero = tags.get(ExifTags.Base.PhotometricInterpretation) == 0

    width, height = picture.size
    luminance = np.empty((height, width), np.float32)
    rows = max(1, BAND_PIXELS // width)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        pixels = _band(picture, top, bottom, name)
        if mode in EIGHT_BIT:
            light = _eight_bit_light(pixels, key)
        elif mode in SIXTEEN_BIT:
            codes = levels - 1 - pixels if white_is_zero else pixels
            light = _linear_light(levels)[codes if key is None else np.where(pixels == key, 0, codes)]
        elif pixels.min() >= 0 and pixels.max() <= 1:  # false for NaN
            light = 1 - pixels if white_is_zero else pixels
        else:
            raise UsageError(f"{name} holds floats outside 0 to 1, or not numbers; scale them, or save it as a 16-bit PNG first")
        luminance[top:bottom] = light

    if picture.format == "GIF":  # what a first frame smaller than the picture leaves free is transparent
        left, upper, right, lower = tile.extents
        framed = np.zeros_like(luminance)
        framed[upper:lower, left:right] = luminance[upper:lower, left:right]
        return framed
    return luminance


def _band(picture: ImageFile.ImageFile, top: int, bottom: int, name: str) -> NDArray[Any]:
    """Rows `top` to `bottom`: uint8 (rows, width, channels) for 8-bit modes, else uint16 or float32 (rows, width)."""
    with _decoding(name):  # a palette may turn out to be broken only here
        band = picture.crop((0, top, picture.width, bottom))
        if band.mode in EIGHT_BIT:
            return np.asarray(band.convert(EIGHT_BIT[band.mode])).reshape(band.height, band.width, -1)
        return np.asarray(band)


def _eight_bit_light(pixels: NDArray[Any], key: tuple[int, ...] | int | None) -> NDArray[np.float64]:
    """Luminance (rows, width) of uint8 (rows, width, channels) that are grey, grey and alpha, RGB or RGBA."""
    channels = pixels.shape[2]
    if channels in (2, 4):
        alpha = pixels[:, :, -1:].astype(np.uint16)
        pixels = ((pixels[:, :, :-1] * alpha + 127) // 255).astype(np.uint8)  # over black; 255 * 255 + 127 fits 16 bits
    if key is not None:
        pixels = np.where((pixels == key).all(axis=2, keepdims=True), np.uint8(0), pixels)
    light: NDArray[np.float64] = _linear_light(256)[pixels]
    if channels <= 2:
        return light[:, :, 0]
    red, green, blue = REC709
    return light[:, :, 0] * red + light[:, :, 1] * green + light[:, :, 2] * blue


def _transparent_colour(picture: ImageFile.ImageFile, tile: Any, name: str) -> tuple[int, ...] | int | None:
    """The grey or colour that is to count as transparent, in the units of the decoded pixels; palettes carry theirs themselves."""
    key = picture.info.get("transparency")
    if key is None or EIGHT_BIT.get(picture.mode) == "RGBA":
        return None
    if tile.args == "RGB;16B":
        # Pillow keeps the upper 8 bits only, in which near colours look equal.
        raise UsageError(f"{name} has 16-bit colours of which one is transparent; save it with an alpha channel or without transparency")
    if isinstance(key, int):
        return key * KEY_FACTOR.get(tile.args, 1)
    return tuple(key)


@cache
def _linear_light(levels: int) -> NDArray[np.float64]:
    """Linear light of each of `levels` sRGB codes (IEC 61966-2-1), float64 (levels).

    Each entry is computed in float64 and rounded to float32. None of the tables for 8, 12 and 16 bits comes nearer to a rounding boundary
    than 1,000 units of float64, so the last bits of a machine's power function do not show.
    """
    code = np.arange(levels) / (levels - 1)
    light = np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)
    return light.astype(np.float32).astype(np.float64)


def _too_large(name: str, found: str) -> UsageError:
    return UsageError(
        f"{name} has {found}; at most {MAX_PIXELS:,} pixels, {MAX_SIDE:,} a side and {MAX_BYTES:,} bytes are read, so scale it down first"
    )
