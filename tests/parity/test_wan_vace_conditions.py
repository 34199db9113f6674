"""VACE's network inputs from frames, masks and references, compared with diffusers' preparation.

The bound is relative error of latents: a misread reference hardly changes the generated frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import WanVACEPipeline, WanVACETransformer3DModel
from diffusers.image_processor import VaeImageProcessor
from flax import nnx
from PIL import Image

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.spec.request import RequestError
from models.vae import video_key_mapping
from models.vae.normalisation import Normalisation
from models.vae.video import VideoAutoencoder
from models.vae.video_config import VideoVaeConfig
from models.wan import vace_inputs
from models.wan.vace_conditions import control_channels, control_video, with_references
from models.wan.vace_inputs import (
    ControlFrames,
    extended,
    preserved_frame,
    read_frames,
    read_reference,
)
from models.weights.loader import load
from tests.parity.distances import relative
from tests.parity.test_wan_transformer import BASE
from tests.parity.tiny_wan import video_vae

RELATIVE = 1e-5
SIZE, FRAMES = (80, 48), 9


def picture(seed: int, size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    """Random colour fields with soft edges."""
    fields = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(fields).convert(mode).resize(size)


def in_size(frames: list[Image.Image]) -> list[Image.Image]:
    """Resize frames to the pipeline's size with diffusers' processor, keeping proportions."""
    width, height = SIZE
    return [
        VaeImageProcessor().resize(frame, height, width, resize_mode="crop") for frame in frames
    ]


CLIP = [picture(seed, (93, 61)) for seed in range(FRAMES)]
MASKS = [picture(seed, (51, 90), "L") for seed in range(20, 20 + FRAMES)]
GREY = Image.new("RGB", SIZE, (128, 128, 128))
BLACK, WHITE = (Image.new("L", SIZE, level) for level in (0, 255))
REFERENCES = [picture(30, (133, 61)), picture(31, (37, 190)), picture(32, (24, 16))]


class Pair(NamedTuple):
    """diffusers' pipeline, and Atelier's VAE with the same weights."""

    diffusers: WanVACEPipeline
    vae: VideoAutoencoder
    pixel: int


VAES: dict[str, dict[str, Any]] = {
    "squares of 8": {},
    "squares of 4, latents of 3": {
        "z_dim": 3,
        "dim_mult": [1, 2, 3],
        "temperal_downsample": [True, True],
        "scale_factor_spatial": 4,
    },
}


@pytest.fixture(scope="module", params=VAES)
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder, vae = tmp_path_factory.mktemp("vace"), video_vae(1, **VAES[request.param])
    vae.save_pretrained(folder / "vae")
    sizes = {**BASE, "num_layers": 1, "vace_layers": (0,), "vace_in_channels": 3}
    transformer = WanVACETransformer3DModel(**sizes)
    pipeline = WanVACEPipeline(None, None, vae, None, transformer)
    config = VideoVaeConfig.from_dict(read_config(folder, "vae"))
    abstract = abstract_module(VideoAutoencoder, config, param_dtype=jnp.float32)
    network = load(abstract, folder / "vae", video_key_mapping.RENAMES)
    return Pair(pipeline, network, pipeline.vae_scale_factor_spatial)


def by_diffusers(
    pair: Pair,
    clip: list[Image.Image] | None,
    masks: list[Image.Image] | None,
    references: list[Image.Image] | None = None,
) -> np.ndarray:
    """Control latents [f, h, w, channels] by diffusers."""
    pipeline = pair.diffusers
    clip, masks = clip and in_size(clip), masks and in_size(masks)
    with torch.no_grad():
        video, mask, images = pipeline.preprocess_conditions(
            clip, masks, references, 1, SIZE[1], SIZE[0], FRAMES, torch.float32, "cpu"
        )
        latents = pipeline.prepare_video_latents(video, mask, images, device="cpu")
        joined = torch.cat([latents, pipeline.prepare_masks(mask, images)], dim=1)
    return joined[0].permute(1, 2, 3, 0).numpy()


def by_us(
    pair: Pair, given: ControlFrames, references: Sequence[Image.Image] = (), *, video: bool = True
) -> np.ndarray:
    """Control latents by Atelier; `with_references` orders the references."""
    normalisation = Normalisation.of(pair.vae.config)
    reference_arrays = [
        read_reference(reference, SIZE, pair.pixel, "reference_images") for reference in references
    ]

    @nnx.jit
    def run(vae: VideoAutoencoder, frames: Any, masks: Any, pixels: list[Any]) -> Any:
        def encode(clip: Any) -> Any:
            return normalisation.apply(vae.encode(clip[None])[0][0])

        control = control_video(encode, frames if video else None, masks)
        if not pixels:
            return control
        return with_references(control, jnp.concatenate([encode(image[None]) for image in pixels]))

    frames, masks = map(jnp.asarray, given)
    return np.asarray(
        run(pair.vae, frames, masks, [jnp.asarray(image) for image in reference_arrays])
    )


def test_a_video_with_masks_and_references(pair: Pair) -> None:
    expected = by_diffusers(pair, CLIP, MASKS, REFERENCES)
    output = by_us(pair, read_frames(CLIP, MASKS, SIZE), REFERENCES)
    print(f"relative {relative(output, expected):.1e}")
    assert output.shape == expected.shape
    assert output.shape[-1] == control_channels(pair.vae.config.z_dim, pair.pixel)
    assert relative(output, expected) <= RELATIVE
    reversed_order = by_us(pair, read_frames(CLIP, MASKS, SIZE), REFERENCES[::-1])
    assert relative(reversed_order, expected) > 1000 * RELATIVE


def test_references_only(pair: Pair) -> None:
    expected = by_diffusers(pair, None, None, REFERENCES[:1])
    control_frames = read_frames([GREY] * FRAMES, [], SIZE)
    assert relative(by_us(pair, control_frames, REFERENCES[:1], video=False), expected) <= RELATIVE
    grey = by_us(pair, control_frames, REFERENCES[:1])
    assert relative(grey, expected) > 10 * RELATIVE, (
        "the grey of a missing video lies between two bytes"
    )


def test_first_and_last_frame(pair: Pair) -> None:
    clip = [CLIP[0], *[GREY] * (FRAMES - 2), CLIP[1]]
    expected = by_diffusers(pair, clip, [BLACK, *[WHITE] * (FRAMES - 2), BLACK])
    control_frames = extended(
        preserved_frame(CLIP[0], SIZE), FRAMES, preserved_frame(CLIP[1], SIZE)
    )
    assert relative(by_us(pair, control_frames), expected) <= RELATIVE
    only_first = extended(preserved_frame(CLIP[0], SIZE), FRAMES)
    assert relative(by_us(pair, only_first), expected) > 100 * RELATIVE


def test_averaged_reference_breaks_parity(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = by_diffusers(pair, CLIP, MASKS, REFERENCES)

    def averaged(pixels: np.ndarray, size: int, axis: int) -> np.ndarray:
        sides = [size if axis == at else side for at, side in enumerate(pixels.shape[:2])]
        bands = [
            Image.fromarray(pixels[..., band]).resize(sides[::-1], Image.Resampling.BILINEAR)
            for band in range(3)
        ]
        return np.stack([np.asarray(band) for band in bands], axis=-1)

    monkeypatch.setattr(vace_inputs, "_interpolated", averaged)
    output = by_us(pair, read_frames(CLIP, MASKS, SIZE), REFERENCES)
    assert relative(output, expected) > 100 * RELATIVE


@pytest.mark.parametrize("sides", [(93, 61), (61, 93), (160, 96), (31, 200), (80, 48)])
def test_frames_keep_their_proportions(sides: tuple[int, int]) -> None:
    """The bytes equal those of diffusers' processor; stretched frames differ."""
    frame, mask = picture(3, sides), picture(4, sides, "L")
    control_frames = read_frames([frame], [mask], SIZE)
    (expected,), (levels,) = in_size([frame]), in_size([mask.convert("RGB")])
    np.testing.assert_array_equal(control_frames.frames[0], np.asarray(expected))
    np.testing.assert_array_equal(control_frames.masks[0], np.asarray(levels)[..., 0])
    np.testing.assert_array_equal(preserved_frame(frame, SIZE).frames, control_frames.frames)
    stretched = np.asarray(frame.resize(SIZE, Image.Resampling.LANCZOS)).astype(int)
    if sides[0] * SIZE[1] != sides[1] * SIZE[0]:
        assert np.abs(stretched - control_frames.frames[0]).max() > 20


def test_single_mask_applies_to_every_frame() -> None:
    control_frames = read_frames(CLIP, MASKS[:1], SIZE)
    np.testing.assert_array_equal(
        control_frames.masks, read_frames(CLIP, MASKS[:1] * FRAMES, SIZE).masks
    )


def test_inconsistent_inputs_are_rejected() -> None:
    with pytest.raises(RequestError, match="2 frames, the video 9"):
        read_frames(CLIP, MASKS[:2], SIZE)
    with pytest.raises(RequestError, match="at least 10"):
        extended(read_frames(CLIP, [], SIZE), FRAMES, preserved_frame(CLIP[0], SIZE))
    with pytest.raises(RequestError, match="8 pixels on each side"):
        read_reference(picture(1, (40, 7)), SIZE, 8, "reference_images.0")
