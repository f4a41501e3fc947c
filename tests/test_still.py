"""Pictures in and out: every format, depth and kind of transparency read right or refused with one sentence."""

import io
import os
import struct
import subprocess
import sys
import zlib

import imageio.v3 as iio
import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from physarum.errors import RunError, UsageError
from physarum.output.picture import read_picture
from physarum.output.still import fit_picture, write_png

HEIGHT, WIDTH = 40, 60


def light(code):
    """sRGB 0..1 to linear light, as IEC 61966-2-1 has it."""
    code = np.asarray(code, np.float64)
    return np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)


def grey_scene():
    """uint8 (HEIGHT, WIDTH): no row, column or corner is like another, so that any turn or mirror shows; smooth, for JPEG."""
    row, column = np.mgrid[:HEIGHT, :WIDTH]
    return (4 * row + column + 20 * (column > 30)).astype(np.uint8)


def colour_scene():
    grey = grey_scene()
    return np.stack([grey, grey // 2 + 40, 255 - grey], axis=-1)


def encoded(picture, form, **options):
    file = io.BytesIO()
    Image.fromarray(picture).save(file, form, **options) if isinstance(picture, np.ndarray) else picture.save(file, form, **options)
    return file.getvalue()


def read(tmp_path, data, name="picture"):
    """What the reader makes of these bytes: array and note."""
    path = tmp_path / name
    path.write_bytes(data)
    picture, note = read_picture(path)
    assert picture.dtype == torch.float32
    assert picture.is_contiguous()
    return picture.numpy(), note


def refused(tmp_path, data, name="picture"):
    """The sentence with which the reader refuses these bytes."""
    with pytest.raises(UsageError) as caught:
        read(tmp_path, data, name)
    sentence = str(caught.value)
    assert name in sentence
    assert sentence.isprintable()
    return sentence


def read_or_refused(tmp_path, data):
    """The picture, or None where the reader refuses these bytes with one sentence."""
    try:
        return read(tmp_path, data)[0]
    except UsageError as error:
        return None if str(error).isprintable() else pytest.fail(f"not a sentence: {error!r}")


def png(width, height, depth, colour_type, pixels, *chunks):
    """PNG by hand: `pixels` are packed rows (height, bytes); `chunks` are (name, data) before the pixels."""
    rows = b"".join(b"\0" + bytes(row) for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    framed = (struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def tiff(width, height, bits, photometric, strips, **more):
    """TIFF by hand, little endian, tags before the pixels; `more` are tags tNNN=(values), short integers."""
    tags = {256: [width], 257: [height], 258: bits, 259: [1], 262: [photometric], 277: [len(bits)], 278: [height]}
    tags |= {int(name[1:]): list(values) for name, values in more.items()}
    tags |= {273: [0] * len(strips), 279: [len(strip) for strip in strips]}
    entries, extra = b"", b""
    beyond = 8 + 2 + 12 * len(tags) + 4
    pixels_at = beyond + sum(4 * len(values) for values in tags.values() if len(values) > 1)
    for strip in range(len(strips)):
        tags[273][strip] = pixels_at + sum(tags[279][:strip])
    for tag in sorted(tags):
        values = struct.pack(f"<{len(tags[tag])}I", *tags[tag])
        if len(tags[tag]) > 1:
            values, extra = struct.pack("<I", beyond + len(extra)), extra + values
        entries += struct.pack("<HHI", tag, 4, len(tags[tag])) + values
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4) + extra + b"".join(strips)


# CIPA DC-008: which side of the scene the first row and the first column of the file are.
SIDES = {
    1: "top left",
    2: "top right",
    3: "bottom right",
    4: "bottom left",
    5: "left top",
    6: "right top",
    7: "right bottom",
    8: "left bottom",
}


def stored_as(scene, orientation):
    """The scene as a camera that was held like this stores it."""
    rows, columns = SIDES[orientation].split()
    swapped = rows in ("left", "right")
    scene = scene[::-1] if "bottom" in (rows, columns) else scene
    scene = scene[:, ::-1] if "right" in (rows, columns) else scene
    return scene.T if swapped else scene


@pytest.mark.parametrize("orientation", SIDES)
@pytest.mark.parametrize(("form", "options"), [("JPEG", {"quality": 95}), ("PNG", {}), ("WEBP", {"quality": 95})])
def test_exif_orientation_is_obeyed(tmp_path, form, options, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(np.ascontiguousarray(stored_as(grey_scene(), orientation)), form, exif=exif, **options)
    picture, _ = read(tmp_path, data)
    np.testing.assert_allclose(picture, light(grey_scene() / 255), atol=0.03)


@pytest.mark.parametrize("orientation", SIDES)
@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
def test_tiffs_are_turned_once(tmp_path, compression, orientation):
    stored = np.ascontiguousarray(stored_as(grey_scene(), orientation))
    picture, _ = read(tmp_path, encoded(stored, "TIFF", compression=compression, tiffinfo={0x0112: orientation}))
    np.testing.assert_allclose(picture, light(grey_scene() / 255), atol=1e-6)


@pytest.mark.parametrize("orientation", [0, 9, 99])
def test_other_orientations_are_ignored(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture, _ = read(tmp_path, encoded(grey_scene(), "PNG", exif=exif))
    np.testing.assert_allclose(picture, light(grey_scene() / 255), atol=1e-6)


@pytest.mark.parametrize("broken", [{"exif": b"Exif\0\0" + b"garbage" * 9}, {"icc_profile": b"garbage"}], ids=["exif", "icc"])
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_broken_metadata_do_not_spoil_the_picture(tmp_path, form, broken):
    picture, _ = read(tmp_path, encoded(grey_scene(), form, **broken))
    np.testing.assert_allclose(picture, light(grey_scene() / 255), atol=0.06)


def test_every_grey_is_the_srgb_curve_rounded_once(tmp_path):
    codes = np.arange(256, dtype=np.uint8).reshape(8, 32)
    for stored in (codes, np.stack([codes] * 3, axis=-1)):
        picture, _ = read(tmp_path, encoded(stored, "PNG"))
        assert (picture == light(codes / 255).astype(np.float32)).all()


def test_every_colour_is_rounded_from_the_same_table(tmp_path, monkeypatch):
    monkeypatch.setattr("physarum.output.picture.BAND_PIXELS", 1000)  # many bands, the last one shorter
    pixels = np.random.default_rng(1).integers(0, 256, (101, 203, 3), dtype=np.uint8)
    table = light(np.arange(256) / 255).astype(np.float32).astype(np.float64)
    red, green, blue = np.moveaxis(table[pixels], 2, 0)
    picture, _ = read(tmp_path, encoded(pixels, "PNG"))
    assert (picture == (red * 0.2126 + green * 0.7152 + blue * 0.0722).astype(np.float32)).all()


def test_colours_are_weighted_as_rec_709_has_it(tmp_path):
    colours = {"black": 0, "blue": 0.0722, "red": 0.2126, "lime": 0.7152, "yellow": 0.9278, "white": 1}
    strip = Image.new("RGB", (8 * len(colours), 8))
    for place, colour in enumerate(colours):
        ImageDraw.Draw(strip).rectangle((8 * place, 0, 8 * place + 7, 7), colour)
    for form in ("PNG", "BMP", "TIFF"):
        picture, _ = read(tmp_path, encoded(strip, form))
        np.testing.assert_allclose(picture[4, 4::8], list(colours.values()), atol=1e-6)


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "GIF"])
@pytest.mark.parametrize("mode", ["L", "RGB", "P", "1"])
def test_lossless_formats_and_modes_agree(tmp_path, form, mode):
    image = Image.fromarray(colour_scene()).convert(mode)
    picture, note = read(tmp_path, encoded(image, form))
    # GIF holds 256 colours, which the scene does not exceed by much.
    tolerance = 0.05 if form == "GIF" and mode == "RGB" else 1e-6
    np.testing.assert_allclose(picture, light(np.asarray(image.convert("RGB")) / 255) @ [0.2126, 0.7152, 0.0722], atol=tolerance)
    assert note is None


@pytest.mark.parametrize("progressive", [False, True])
def test_jpegs_in_cmyk_look_like_those_in_rgb(tmp_path, progressive):
    scene = Image.fromarray(colour_scene())
    rgb, _ = read(tmp_path, encoded(scene, "JPEG", quality=95, progressive=progressive))
    cmyk, _ = read(tmp_path, encoded(scene.convert("CMYK"), "JPEG", quality=95, progressive=progressive))
    assert rgb.std() > 0.05
    np.testing.assert_allclose(cmyk, rgb, atol=0.05)


def test_cmyk_in_a_tiff_is_not_inverted(tmp_path):
    picture, _ = read(tmp_path, encoded(Image.fromarray(colour_scene()).convert("CMYK"), "TIFF"))
    np.testing.assert_allclose(picture, light(colour_scene() / 255) @ [0.2126, 0.7152, 0.0722], atol=1e-6)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_few_bits_span_black_to_white(tmp_path, depth):
    codes = np.arange(8) % (1 << depth)
    packed = np.packbits((codes[:, None] >> np.arange(depth)[::-1] & 1).astype(np.uint8))
    picture, _ = read(tmp_path, png(8, 2, depth, 0, [packed, packed]))
    np.testing.assert_allclose(picture, np.tile(light(codes / ((1 << depth) - 1)), (2, 1)), atol=1e-6)


def test_palettes_are_resolved(tmp_path):
    image = Image.fromarray(grey_scene()).convert("P")
    image.putpalette([level for index in range(256) for level in (255 - index,) * 3])
    for form in ("PNG", "GIF", "BMP", "TIFF"):
        picture, _ = read(tmp_path, encoded(image, form))
        np.testing.assert_allclose(picture, light((255 - grey_scene()) / 255), atol=1e-6)


@pytest.mark.parametrize("level", [0, 1, 128, 255])
def test_constant_pictures_are_constant(tmp_path, level):
    picture, _ = read(tmp_path, encoded(np.full((9, 13), level, np.uint8), "PNG"))
    assert (picture == light(level / 255).astype(np.float32)).all()
    fitted, _ = fit_picture(torch.from_numpy(picture), (31, 17))
    assert (fitted == picture[0, 0]).all()


def ramp16():
    """uint16 (16, 32) from 0 to 65535, whose upper bytes alone would not tell neighbours apart."""
    return np.linspace(0, 65_535, 512).astype(np.uint16).reshape(16, 32)


def test_16_bit_greys_keep_their_depth(tmp_path):
    for data in (
        encoded(ramp16(), "PNG"),
        encoded(ramp16(), "TIFF"),
        encoded(ramp16(), "TIFF", compression="tiff_adobe_deflate"),
        encoded(Image.frombytes("I;16B", (32, 16), ramp16().astype(">u2").tobytes()), "TIFF"),
    ):
        picture, _ = read(tmp_path, data)
        assert (picture == light(ramp16() / 65_535).astype(np.float32)).all()


def test_dark_16_bit_pictures_are_not_stretched(tmp_path):
    picture, _ = read(tmp_path, encoded(ramp16() // 16, "PNG"))
    assert picture.max() == pytest.approx(light(4095 / 65_535))


def test_12_bit_greys_are_scaled_by_12_bits(tmp_path):
    codes = np.arange(0, 4096, 64)
    pairs = codes.reshape(-1, 2)
    packed = np.stack([pairs[:, 0] >> 4, (pairs[:, 0] & 15) << 4 | pairs[:, 1] >> 8, pairs[:, 1] & 255], axis=1).astype(np.uint8)
    picture, _ = read(tmp_path, tiff(8, 8, [12], 1, [packed.tobytes()]))
    np.testing.assert_allclose(picture.ravel(), light(codes / 4095), atol=1e-6)


@pytest.mark.parametrize("bits", [8, 16])
def test_white_may_be_zero(tmp_path, bits):
    codes = ramp16() >> (16 - bits)
    picture, _ = read(tmp_path, tiff(32, 16, [bits], 0, [codes.astype(f"<u{bits // 8}").tobytes()]))
    np.testing.assert_allclose(picture, light(1 - codes / (2**bits - 1)), atol=1e-6)


def test_16_bit_colours_are_read(tmp_path):
    grey = ramp16()
    pixels = np.stack([grey, grey // 2, 65_535 - grey], axis=-1)
    wanted = light(pixels / 65_535) @ [0.2126, 0.7152, 0.0722]
    strip = pixels.astype("<u2").tobytes()
    rows = pixels.astype(">u2").reshape(16, -1).view(np.uint8)
    for data in (png(32, 16, 16, 2, rows), tiff(32, 16, [16, 16, 16], 2, [strip])):
        picture, _ = read(tmp_path, data)
        np.testing.assert_allclose(picture, wanted, atol=0.008)  # Pillow keeps 8 bits of a colour


def test_floats_from_0_to_1_are_linear_light(tmp_path):
    ramp = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    picture, _ = read(tmp_path, encoded(ramp, "TIFF"))
    assert (picture == ramp).all()
    picture, _ = read(tmp_path, tiff(8, 8, [32], 0, [ramp.tobytes()], t339=[3]))
    assert (picture == 1 - ramp).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.1, 1.5])
def test_other_floats_are_refused(tmp_path, value):
    ramp = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    ramp[3, 4] = value
    assert "floats outside 0 to 1" in refused(tmp_path, encoded(ramp, "TIFF"))


TROUBLE = {
    "int32": (encoded(np.arange(64, dtype=np.int32).reshape(8, 8), "TIFF"), "integers"),
    "uint32": (tiff(8, 8, [32], 1, [bytes(256)]), "32-bit integers"),
    "int8": (tiff(8, 8, [8], 1, [bytes(64)], t339=[2]), "signed integers"),
    "planar 16-bit": (tiff(8, 8, [16] * 3, 2, [bytes(128)] * 3, t284=[2]), "channels apart"),
    "planar alpha": (tiff(8, 8, [8, 8], 1, [bytes(64)] * 2, t284=[2], t338=[2]), "channels apart"),
    "preview": (tiff(8, 8, [8], 1, [bytes(64)], t254=[1]), "preview"),
    "8-bit palette": (tiff(8, 8, [8], 3, [bytes(64)], t320=[200] * 768), "palette"),
    "Lab": (tiff(8, 8, [8] * 3, 8, [bytes(192)]), "CIELAB"),
    "float64": (tiff(8, 8, [64], 1, [bytes(512)], t339=[3]), "unknown pixel mode"),
}


@pytest.mark.parametrize("kind", TROUBLE)
def test_what_pillow_would_read_wrongly_is_refused(tmp_path, kind):
    data, reason = TROUBLE[kind]
    assert reason in refused(tmp_path, data)


def test_planar_8_bit_colours_are_read(tmp_path):
    scene = colour_scene()
    strips = [np.ascontiguousarray(scene[:, :, channel]).tobytes() for channel in range(3)]
    picture, _ = read(tmp_path, tiff(WIDTH, HEIGHT, [8] * 3, 2, strips, t284=[2]))
    np.testing.assert_allclose(picture, light(scene / 255) @ [0.2126, 0.7152, 0.0722], atol=1e-6)


def hidden_white():
    """White with alpha 0, 64, 128 and 255 in four columns, and its luminance over black."""
    alpha = np.tile(np.array([0, 64, 128, 255], np.uint8), (4, 1))
    return np.stack([np.full_like(alpha, 255)] * 3 + [alpha], axis=-1), light(alpha / 255)


@pytest.mark.parametrize(
    ("form", "mode"), [("PNG", "RGBA"), ("PNG", "LA"), ("WEBP", "RGBA"), ("TIFF", "RGBA"), ("TIFF", "LA"), ("TIFF", "PA")]
)
def test_alpha_is_laid_over_black(tmp_path, form, mode):
    pixels, wanted = hidden_white()
    image = Image.fromarray(pixels).convert(mode)
    picture, _ = read(tmp_path, encoded(image, form, **({"lossless": True, "exact": True} if form == "WEBP" else {})))
    np.testing.assert_allclose(picture, wanted, atol=1e-6)


def test_alpha_that_is_multiplied_in_counts_once(tmp_path):
    alpha = hidden_white()[0][:, :, 3]
    for bits, colour in (([8] * 2, [alpha]), ([8] * 4, [alpha] * 3)):
        strip = np.stack([*colour, alpha], axis=-1).tobytes()
        picture, _ = read(tmp_path, tiff(4, 4, bits, 1 if len(bits) == 2 else 2, [strip], t338=[1]))
        np.testing.assert_allclose(picture, light(alpha / 255), atol=0.01)


def test_16_bit_alpha(tmp_path):
    pixels, wanted = hidden_white()
    rows = (pixels.astype(np.uint16) * 257).astype(">u2").reshape(4, -1).view(np.uint8)
    picture, _ = read(tmp_path, png(4, 4, 16, 6, rows))
    np.testing.assert_allclose(picture, wanted, atol=1e-6)


@pytest.mark.parametrize("alphas", [b"\xff\x00", b"\xff\x00\x80"], ids=["one entry", "each entry"])
def test_transparent_palette_entries(tmp_path, alphas):
    palette = bytes([0, 0, 0, 255, 255, 255, 255, 255, 255])
    picture, _ = read(tmp_path, png(3, 1, 8, 3, [[0, 1, 2]], (b"PLTE", palette), (b"tRNS", alphas)))
    np.testing.assert_allclose(picture, [[0, 0, 1 if len(alphas) == 2 else light(128 / 255)]], atol=1e-6)


def test_the_transparent_colour_of_a_gif(tmp_path):
    image = Image.fromarray(grey_scene()).convert("P")
    image.putpalette([level for index in range(256) for level in (255 - index,) * 3])
    picture, _ = read(tmp_path, encoded(image, "GIF", transparency=int(grey_scene()[0, 0])))
    hidden = grey_scene() == grey_scene()[0, 0]
    assert (picture[hidden] == 0).all()
    np.testing.assert_allclose(picture[~hidden], light((255 - grey_scene()[~hidden]) / 255), atol=1e-6)


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_a_transparent_grey_is_black(tmp_path, depth):
    white = (1 << depth) - 1
    codes = np.array([white, white - 1] * 4)
    packed = np.packbits((codes[:, None] >> np.arange(depth)[::-1] & 1).astype(np.uint8))
    picture, _ = read(tmp_path, png(8, 1, depth, 0, [packed], (b"tRNS", struct.pack(">H", white))))
    np.testing.assert_allclose(picture[0], np.tile([0, light((white - 1) / white)], 4), atol=1e-6)


def test_a_transparent_colour_is_black(tmp_path):
    pixels = [[255, 255, 255, 255, 255, 254]]
    picture, _ = read(tmp_path, png(2, 1, 8, 2, pixels, (b"tRNS", struct.pack(">HHH", 255, 255, 255))))
    assert picture[0, 0] == 0
    assert picture[0, 1] > 0.99
    wide = [[255, 255] * 6]
    assert "transparent" in refused(tmp_path, png(2, 1, 16, 2, wide, (b"tRNS", b"\xff" * 6)))


@pytest.mark.parametrize(("form", "word"), [("GIF", "frames"), ("WEBP", "frames"), ("PNG", "frames"), ("TIFF", "pages")])
def test_the_first_frame_is_used_and_that_is_said(tmp_path, form, word):
    frames = [Image.fromarray(np.full((12, 16), level, np.uint8)) for level in (50, 150, 250)]
    options = {"lossless": True} if form == "WEBP" else {}
    picture, note = read(tmp_path, encoded(frames[0], form, save_all=True, append_images=frames[1:], **options))
    np.testing.assert_allclose(picture, np.full((12, 16), light(50 / 255)), atol=1e-6)
    assert note == f"the first of its several {word} is used"


def test_remarks_of_the_decoder_stay_inside(tmp_path):
    """An animation of no frames makes Pillow warn, a TIFF of 99 channels makes it log an error."""
    (tmp_path / "warns.png").write_bytes(png(1, 1, 8, 0, [[255]], (b"acTL", bytes(8))))
    (tmp_path / "logs.tif").write_bytes(tiff(8, 8, [8], 1, [bytes(64)], t277=[99]))
    script = """
import sys
from physarum.output.picture import read_picture
for path in sys.argv[1:]:
    try:
        print(read_picture(path)[0].tolist())
    except ValueError as error:
        print(error)
"""
    command = [sys.executable, "-c", script, tmp_path / "warns.png", tmp_path / "logs.tif"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    read_right, sentence = ended.stdout.splitlines()
    assert read_right == "[[1.0]]"
    assert "logs.tif cannot be read as a picture" in sentence


def test_what_the_first_frame_of_a_gif_leaves_free_is_black(tmp_path):
    image = Image.new("P", (6, 5))
    image.putpalette([255, 255, 255, 0, 0, 0])  # colour 0, with which decoders fill, is white
    data = bytearray(encoded(image, "GIF"))
    data[6:10] = struct.pack("<HH", 10, 8)
    picture, _ = read(tmp_path, bytes(data))
    assert picture.shape == (8, 10)
    assert (picture[:5, :6] == 1).all()
    assert picture.sum() == 30


@pytest.mark.parametrize("name", ["photo.HEIC", "photo.png", "photo", "PHOTO.JPG", "нет фото.gif", "a:b%d.jpg", "-x.jpg", "new\nline.jpg"])
def test_the_content_decides_not_the_name(tmp_path, name):
    picture, _ = read(tmp_path, encoded(grey_scene(), "JPEG", quality=95), name)
    np.testing.assert_allclose(picture, light(grey_scene() / 255), atol=0.03)


def test_a_name_that_is_no_text_is_read_and_escaped(tmp_path):
    path = os.fsencode(tmp_path) + b"/bad\xff.png"
    with open(path, "wb") as file:
        file.write(encoded(grey_scene(), "PNG"))
    assert read_picture(os.fsdecode(path))[0].shape == (HEIGHT, WIDTH)
    with open(path, "wb") as file:
        file.write(b"no picture")
    with pytest.raises(UsageError, match=r"bad\\udcff.png is not a picture") as caught:
        read_picture(os.fsdecode(path))
    assert str(caught.value).isprintable()


STRANGERS = {
    "HEIC": (b"\0\0\0\x18ftypheic" + bytes(80), "HEIC"),
    "HEIF": (b"\0\0\0\x18ftypmif1" + bytes(80), "HEIC"),
    "AVIF": (b"\0\0\0\x18ftypavif" + bytes(80), "AVIF"),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', "SVG"),
    "SVG with a prologue": (b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- made by hand -->\n<svg width="9"/>', "SVG"),
    "PDF": (b"%PDF-1.7\n", "PDF"),
    "EPS": (b"%!PS-Adobe-3.0 EPSF-3.0\n", "PostScript"),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_known_strangers_are_named_with_the_way_out(tmp_path, kind):
    data, word = STRANGERS[kind]
    sentence = refused(tmp_path, data, "drawing.png")
    assert word in sentence
    assert "convert it to PNG or JPEG" in sentence


@pytest.mark.parametrize("data", [b"not an image", b"<!DOCTYPE html><html><svg></html>", b"\0" * 100, b"P5 2 2 255 abcd", b"\n"])
def test_other_files_are_no_pictures(tmp_path, data):
    assert "not a picture; it must be PNG, JPEG" in refused(tmp_path, data, "login.jpg")


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "empty.png").touch()
    for name, word in {"pipe.png": "pipe", ".": "folder", "missing.png": "does not exist", "empty.png": "empty"}.items():
        with pytest.raises(UsageError, match=word):
            read_picture(tmp_path / name)
    with pytest.raises(UsageError, match="device"):
        read_picture(os.devnull)
    with pytest.raises(UsageError, match="cannot be opened"):
        read_picture("nul\0byte.png")


STORED = {
    "png": encoded(colour_scene(), "PNG"),
    "png 1 bit": encoded(Image.fromarray(grey_scene()).convert("1"), "PNG"),
    "jpeg": encoded(colour_scene(), "JPEG"),
    "jpeg progressive": encoded(colour_scene(), "JPEG", progressive=True),
    "jpeg cmyk": encoded(Image.fromarray(colour_scene()).convert("CMYK"), "JPEG"),
    "gif": encoded(grey_scene(), "GIF"),
    "webp": encoded(colour_scene(), "WEBP"),
    "webp lossless": encoded(colour_scene(), "WEBP", lossless=True),
    "bmp": encoded(colour_scene(), "BMP"),
    "tiff": encoded(colour_scene(), "TIFF"),
    "tiff lzw": encoded(colour_scene(), "TIFF", compression="tiff_lzw"),
    "tiff deflate, tags first": tiff(WIDTH, HEIGHT, [8], 1, [zlib.compress(grey_scene().tobytes())], t259=[8]),
}


@pytest.mark.parametrize("kind", STORED)
def test_a_cut_file_is_refused_or_whole(tmp_path, capfd, kind):
    whole, _ = read(tmp_path, STORED[kind])
    length = len(STORED[kind])
    for end in {*range(1, length, max(1, length // 40)), length - 3, length - 2, length - 1}:
        picture = read_or_refused(tmp_path, STORED[kind][:end])
        if picture is not None:  # only the mark of the end may be missing
            assert end > length - 20
            assert (picture == whole).all()
    if not kind.startswith("tiff "):  # libtiff itself writes to stderr when its tags are cut
        assert capfd.readouterr() == ("", "")


def test_pixels_of_a_tiff_beyond_its_end(tmp_path, capfd):
    data = STORED["tiff deflate, tags first"]
    for end in (len(data) - 1, len(data) - 300):
        assert "is cut" in refused(tmp_path, data[:end])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", STORED)
def test_a_damaged_file_is_read_or_refused(tmp_path, kind):
    rng = np.random.default_rng(5)
    for _ in range(60):
        data = bytearray(STORED[kind])
        for place in rng.integers(0, min(len(data), 400), 3):
            data[place] = rng.integers(0, 256)
        picture = read_or_refused(tmp_path, bytes(data))
        assert picture is None or (picture.min() >= 0 and picture.max() <= 1)


def test_a_wrong_checksum_is_refused(tmp_path):
    data = bytearray(STORED["png"])
    data[data.index(b"IEND") - 5] ^= 1  # the last byte of the pixels' checksum, before the length of IEND
    assert "checksum" in refused(tmp_path, bytes(data))


def patched(data, place, *values):
    """The file with numbers written over its size."""
    form, *numbers = values
    return data[:place] + struct.pack(form, *numbers) + data[place + struct.calcsize(form) :]


BOMBS = {
    "png": png(60_000, 60_000, 8, 2, [b""]),
    "jpeg": patched(STORED["jpeg"], STORED["jpeg"].index(b"\xff\xc0") + 5, ">HH", 60_000, 60_000),
    "gif screen": patched(STORED["gif"], 6, "<HH", 60_000, 60_000),
    "gif frame": patched(STORED["gif"], STORED["gif"].index(b",\0\0\0\0") + 5, "<HH", 60_000, 60_000),
    "webp": b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + struct.pack("<I", 16_382)[:3] * 2,
    "bmp": patched(STORED["bmp"], 18, "<ii", 60_000, 60_000),
    "tiff": tiff(60_000, 60_000, [8], 1, [b"abc"]),
    "long": png(70_000, 1, 1, 0, [b""]),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_bombs_are_refused_by_their_header(tmp_path, kind):
    sentence = refused(tmp_path, BOMBS[kind])
    count = {"webp": 16_383**2, "long": 70_000}.get(kind, 3_600_000_000)
    assert f"{count:,} pixels" in sentence
    assert "at most 100,000,000 pixels" in sentence


def test_large_files_are_not_read(tmp_path):
    path = tmp_path / "long.webp"
    path.write_bytes(STORED["webp"])
    os.truncate(path, 2 << 30)  # a hole, without blocks on the disk
    with pytest.raises(UsageError, match="2,147,483,648 bytes"):
        read_picture(path)


@pytest.mark.parametrize(
    ("given", "fitted"),
    [
        ((1, 1), (8, 8)),
        ((7, 7), (8, 8)),
        ((2, 3), (8, 12)),
        ((5000, 1), (1024, 8)),
        ((1, 5000), (8, 1024)),
        ((300, 2), (1024, 8)),
        ((1025, 1024), (1024, 1023)),
        ((6000, 4000), (1024, 683)),
        ((65_536, 8), (1024, 8)),
    ],
)
def test_without_a_size_the_shape_is_kept(given, fitted):
    picture, note = fit_picture(torch.full(given[::-1], 0.25), None)
    assert picture.shape == fitted[::-1]
    assert (picture == 0.25).all()
    assert f"{given[0]}x{given[1]}" in note
    assert f"{fitted[0]}x{fitted[1]}" in note
    assert ("stretched" in note) == (max(given) / min(given) > 128)


@pytest.mark.parametrize(("given", "size"), [((61, 83), None), ((61, 83), (61, 83)), ((1024, 8), None)])
def test_a_picture_that_fits_is_left_alone(given, size):
    picture = torch.rand(given[::-1])
    fitted, note = fit_picture(picture, size)
    assert torch.equal(fitted, picture)
    assert note is None


@pytest.mark.parametrize("given", [(1, 1), (2, 3), (5000, 1), (1, 5000), (640, 480)])
@pytest.mark.parametrize("size", [(8, 8), (96, 64), (8, 3000), (3000, 8)])
def test_any_picture_covers_any_world(given, size):
    picture, note = fit_picture(torch.full(given[::-1], 0.75), size)
    assert picture.shape == size[::-1]
    assert (picture == 0.75).all()
    assert note


def test_the_centre_is_kept_upright(tmp_path):
    scene = torch.from_numpy(grey_scene() / np.float32(255))
    square, note = fit_picture(scene, (HEIGHT, HEIGHT))
    assert torch.equal(square, scene[:, 10:50])
    assert "33.3% of its width" in note
    flat, note = fit_picture(scene, (WIDTH, 20))
    assert torch.equal(flat, scene[10:30])
    assert "50.0% of its height" in note


def test_shrinking_averages_areas():
    checks = torch.from_numpy((np.indices((256, 256)).sum(axis=0) % 2).astype(np.float32))
    small, _ = fit_picture(checks, (32, 32))
    np.testing.assert_allclose(small, 0.5, atol=0.01)
    scene = torch.from_numpy(np.repeat(np.repeat(grey_scene() / np.float32(255), 8, axis=0), 8, axis=1))
    small, _ = fit_picture(scene, (WIDTH, HEIGHT))
    np.testing.assert_allclose(small, grey_scene() / 255, atol=0.02)
    assert small.min() >= scene.min()
    assert small.max() <= scene.max()


@pytest.mark.parametrize("name", ["a:b.png", "100%d.png", "-out.png", "нет фото.png", os.fsdecode(b"bad\xff.png"), "no suffix", "x.jpg"])
@pytest.mark.parametrize("pixels", [grey_scene(), colour_scene()], ids=["grey", "colour"])
def test_a_png_comes_back_under_its_name(tmp_path, monkeypatch, name, pixels):
    monkeypatch.chdir(tmp_path)
    write_png(name, pixels)
    assert os.listdir() == [name]
    with open(name, "rb") as file:
        data = file.read()
    assert data.startswith(b"\x89PNG")
    assert (iio.imread(data) == pixels).all()


@pytest.mark.parametrize(
    "pixels", [np.zeros((8, 8), np.float32), np.zeros((8, 8, 4), np.uint8), np.zeros(8, np.uint8), np.zeros((0, 8), np.uint8)]
)
def test_other_arrays_are_refused(tmp_path, pixels):
    with pytest.raises(UsageError, match="a PNG takes uint8"):
        write_png(tmp_path / "a.png", pixels)
    assert os.listdir(tmp_path) == []


def test_a_png_is_written_whole_or_not_at_all(tmp_path):
    (tmp_path / "a.png").mkdir()
    with pytest.raises(RunError, match=r"cannot write .*a.png"):
        write_png(tmp_path / "a.png", grey_scene())
    assert os.listdir(tmp_path) == ["a.png"]
