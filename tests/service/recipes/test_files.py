from __future__ import annotations

import io
from contextlib import suppress
from itertools import product
from xml.etree import ElementTree

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from service.recipes import xmp
from service.recipes.files import (
    EMBED,
    EXIF_IFD,
    USER_COMMENT,
    BrokenRecipe,
    embed,
    read_parameters,
    read_recipe,
)
from service.recipes.parameters import parameters_of
from tests.service.recipes.examples import FILES, PIXELS, bare, recipe

PLAIN = recipe(prompt="a fox")
TYPES = [*FILES]


def shown(data: bytes) -> list[np.ndarray]:
    """Decode a file's frames by Pillow or PyAV."""
    if data[4:8] == b"ftyp":
        with av.open(io.BytesIO(data)) as file:
            return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    image, frames = Image.open(io.BytesIO(data)), []
    for number in range(getattr(image, "n_frames", 1)):
        image.seek(number)
        frames.append(np.asarray(image.convert("RGB")))
    return frames


@pytest.mark.parametrize("content_type", TYPES)
def test_recipe_round_trips_without_changing_pixels(content_type: str) -> None:
    data = bare(content_type)
    written = embed(data, content_type, recipe())
    assert (read_recipe(data), read_parameters(data)) == (None, None)
    assert read_recipe(written) == recipe()
    before, after = shown(data), shown(written)
    assert len(before) == len(after) == (5 if len(before) > 1 else 1)
    assert all((frame == other).all() for frame, other in zip(before, after, strict=True))
    assert embed(data, content_type, recipe()) == written, "embedding is deterministic"


@pytest.mark.parametrize(("content_type", "prompt"), [*product(TYPES, ["a fox", "狐 é 😀 & <b>"])])
def test_parameters_are_read_where_automatic1111_reads_them(content_type: str, prompt: str) -> None:
    made = recipe(prompt=prompt)
    written = embed(bare(content_type), content_type, made)
    assert read_parameters(written) == parameters_of(made)


def test_png_has_its_text_by_the_name_of_automatic1111() -> None:
    image = Image.open(io.BytesIO(embed(bare("image/png"), "image/png", PLAIN)))
    assert image.info["parameters"] == parameters_of(PLAIN)


@pytest.mark.parametrize("content_type", ["image/jpeg", "image/webp"])
def test_jpeg_and_webp_have_it_as_the_comment_of_a_user(content_type: str) -> None:
    image = Image.open(io.BytesIO(embed(bare(content_type), content_type, PLAIN)))
    comment = image.getexif().get_ifd(0x8769)[0x9286]
    assert comment == b"UNICODE\0" + parameters_of(PLAIN).encode("utf-16-be")


def test_gif_stores_the_recipe_as_comment_and_loops() -> None:
    image = Image.open(io.BytesIO(embed(bare("image/gif"), "image/gif", PLAIN)))
    assert image.info["comment"].decode() == parameters_of(PLAIN)
    assert image.info["loop"] == 0


@pytest.mark.parametrize("quality", [90, 100])
def test_webp_lossy_and_lossless_keep_their_size(quality: int) -> None:
    data = bare("image/webp", quality)
    image = Image.open(io.BytesIO(embed(data, "image/webp", PLAIN)))
    assert (image.size, image.mode) == ((40, 24), "RGB")
    assert (np.asarray(image) == shown(data)[0]).all()


@pytest.mark.parametrize("content_type", ["image/png", "image/jpeg", "image/webp"])
def test_xmp_packet_has_iptc_and_creator_properties(content_type: str) -> None:
    image = Image.open(io.BytesIO(embed(bare(content_type), content_type, PLAIN)))
    root = ElementTree.fromstring(image.info["xmp"].decode().split("?>", 1)[1])
    tags = {node.tag: node.text for node in root.iter()}
    assert tags[f"{{{xmp.IPTC}}}DigitalSourceType"] == xmp.MADE
    assert tags["{http://ns.adobe.com/xap/1.0/}CreatorTool"] == PLAIN.generator


def test_a_redrawn_image_is_marked_as_a_composite() -> None:
    masked = PLAIN.model_copy(update={"images": {"image": "ab", "mask_image": "cd"}})
    assert xmp.source_of(PLAIN) == xmp.MADE
    assert xmp.EDITED in embed(bare("image/png"), "image/png", masked).decode("latin-1")


def test_a_jpeg_keeps_the_mark_of_a_recipe_that_does_not_fit() -> None:
    long = recipe(prompt="狐" * 40_000)
    written = embed(bare("image/jpeg"), "image/jpeg", long)
    assert (shown(written)[0] == shown(bare("image/jpeg"))[0]).all()
    assert (read_recipe(written), read_parameters(written)) == (None, None)
    assert xmp.MADE.encode() in written
    assert read_recipe(embed(bare("image/webp"), "image/webp", long)) == long


def test_webm_is_unchanged() -> None:
    assert "video/webm" not in EMBED
    assert embed(b"data", "video/webm", PLAIN) == b"data"


def test_a_prompt_cannot_forge_a_recipe() -> None:
    forged = recipe(prompt=xmp.packet(PLAIN).decode())
    for content_type in TYPES:
        assert read_recipe(embed(bare(content_type), content_type, forged)) == forged


def test_parameters_of_another_program_are_read() -> None:
    file, text = io.BytesIO(), PngImagePlugin.PngInfo()
    text.add_text("parameters", "a fox\nSteps: 20, Seed: 1, Size: 8x8")
    Image.fromarray(PIXELS).save(file, "png", pnginfo=text)
    assert read_parameters(file.getvalue()) == "a fox\nSteps: 20, Seed: 1, Size: 8x8"
    assert read_recipe(file.getvalue()) is None


@pytest.mark.parametrize("order", ["be", "le"])
def test_a_comment_is_read_in_either_byte_order(order: str) -> None:
    text = "狐, é\nSteps: 20, Seed: 1, Size: 8x8"
    exif = Image.Exif()
    exif[EXIF_IFD] = {USER_COMMENT: b"UNICODE\0" + text.encode(f"utf-16-{order}")}
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "jpeg", exif=exif)
    assert read_parameters(file.getvalue()) == text


def test_damaged_recipe_raises() -> None:
    written = embed(bare("image/png"), "image/png", PLAIN)
    for broken in (b"</atelier:reci", b'{"fingerprint'):
        with pytest.raises(BrokenRecipe, match="the file's recipe cannot be read"):
            read_recipe(written.replace(broken, b"-" * len(broken)))


@settings(deadline=None, derandomize=True)  # on a busy machine some take longer than 200 ms
@given(st.binary(), st.integers(0, 2000), st.sampled_from(TYPES))
def test_hostile_files_do_no_harm(noise: bytes, position: int, content_type: str) -> None:
    written = embed(bare(content_type), content_type, PLAIN)
    for data in (noise, written[:position], written[:position] + noise + written[position:]):
        read_parameters(data)
        with suppress(BrokenRecipe):
            read_recipe(data)
