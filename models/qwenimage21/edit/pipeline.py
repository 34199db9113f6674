"""Qwen-Image 2.1 pipeline whose requests may have references, which text encoder and network read.

Source: diffusers pipeline_qwenimage21.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from models.flow.chat_pipeline import ChatNetworks
from models.flow.references import scaled, with_images
from models.interface.denoising_pipeline import Draft
from models.interface.images import pixels_of
from models.interface.pipeline import PyTree
from models.qwenimage21.edit.spec import AREA_PX
from models.qwenimage21.network import SLOT
from models.qwenimage21.pipeline import ANALYZING, QwenImage21Pipeline
from models.spec.request import FlowImageRequest, RequestError
from models.text.qwen25 import ImagePosition
from models.text.tokenizer import Tokens
from models.vae.references import inputs_of, open_references
from models.vision.qwen_patches import QwenPreprocessor

PATCHES = "patches."
"""Prefix of the inputs with image patches for the text encoder; an index follows."""


class QwenImage21EditPipeline(QwenImage21Pipeline):
    """Pipeline of Qwen-Image 2.1, for images from captions and references.

    Additional leaves of a row with references: references [tokens, c]; and by index
    reference_grids, the shape of the latents, and reference_places, an array without values with
    as many rows as the caption has tokens before the reference.

    Args:
        preprocessor: of images for the text encoder.
    """

    def __init__(self, *networks: Any, preprocessor: QwenPreprocessor, **more: Any) -> None:
        super().__init__(*networks, **more)
        self.preprocessor = preprocessor

    def plan_request(
        self, request: FlowImageRequest, images: Mapping[str, bytes], head: str = ""
    ) -> Draft:
        """Prepare the request; references precede the prompt in the text."""
        multiple = self.spec.limits.size_multiple_px
        opened = {
            path: scaled(path, image, AREA_PX, multiple)
            for path, image in open_references(images).items()
        }
        if not opened:
            return super().plan_request(request, images, head)
        draft = super().plan_request(request, {}, _head(len(opened)))
        patches = []
        for path, image in opened.items():
            try:
                of_image, grid = self.preprocessor(image)
            except ValueError as error:
                raise RequestError(path, str(error)) from error
            patches.append(of_image.reshape(*grid, -1))
        texts = Tokens(draft.inputs["ids"], draft.inputs["read"])
        counts = [rows * columns for rows, columns in map(self._token_grid, patches)]
        texts = with_images(texts, self._offsets(len(opened)), counts)
        sizes = "+".join(f"{image.width}x{image.height}" for image in opened.values())
        return replace(
            draft,
            bucket=f"{draft.bucket},references={sizes}",
            inputs={
                **draft.inputs,
                "ids": texts.ids,
                "read": texts.mask,
                **inputs_of([pixels_of(image) for image in opened.values()]),
                **{f"{PATCHES}{index}": part for index, part in enumerate(patches)},
            },
            tokens=draft.tokens + SLOT * sum(counts),
            cached_tokens=draft.tokens,
        )

    def embed(self, weights: ChatNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode the prompts with the images, and the images as references."""
        row = {**super().embed(weights, inputs), **self.references(weights, inputs, self.pack)}
        places = self._places(self._patches(inputs))
        if not places:
            return row
        before = {str(n): jnp.zeros((at - self.CUT, 0)) for n, (at, _) in enumerate(places)}
        return {**row, "reference_places": before}

    def captions(
        self, weights: ChatNetworks, inputs: Mapping[str, jax.Array]
    ) -> Float[Array, "prompts tokens features"]:
        """Encode the prompts together with their images."""
        parts = self._patches(inputs)
        if not parts:
            return super().captions(weights, inputs)
        encode = self.network(weights, "vision")
        images = [encode(part.reshape(-1, part.shape[-1]), part.shape[:2]) for part in parts]
        output: Array = self.network(weights, "text_encoder").encode_with_images(
            inputs["ids"],
            inputs["read"].astype(bool),
            self._places(parts),
            [image.tokens for image in images],
            [image.added for image in images],
        )
        return output

    def encode_image(
        self, weights: ChatNetworks, pixels: Array, noise: Array | None
    ) -> Float[Array, "h w c"]:
        """Encode an image, which is opaque if the VAE reads alpha; arguments as of the base's."""
        alpha = self._vae(weights).config.in_channels - pixels.shape[-1]
        opaque = jnp.pad(pixels, ((0, 0), (0, 0), (0, alpha)), constant_values=1)
        return super().encode_image(weights, opaque, noise)

    def network_inputs(
        self, weights: ChatNetworks, rows: PyTree, values: Mapping[str, jax.Array]
    ) -> Mapping[str, Any]:
        """Return the number of the caption's tokens before each reference."""
        places = rows.get("reference_places", {})
        return {"places": tuple(places[index].shape[1] for index in sorted(places))}

    def _patches(self, inputs: Mapping[str, jax.Array]) -> list[jax.Array]:
        return [inputs[name] for name in sorted(inputs) if name.startswith(PATCHES)]

    def _token_grid(self, patches: Any) -> tuple[int, int]:
        """Return rows and columns of an image's tokens in the text."""
        rows, columns = (side // self.preprocessor.merge_size for side in patches.shape[:2])
        return rows, columns

    def _places(self, patches: Sequence[Any]) -> list[ImagePosition]:
        """Return the position of each image in the text that contains all images' tokens."""
        grids = [self._token_grid(part) for part in patches]
        further = itertools.accumulate((rows * columns - 1 for rows, columns in grids), initial=0)
        offsets = self._offsets(len(grids))
        return [
            ImagePosition(at + more, grid)
            for at, more, grid in zip(offsets, further, grids, strict=False)
        ]

    def _offsets(self, images: int) -> list[int]:
        """Return the number of text tokens before each image's marker.

        Each number is at least that of the preceding markers, since a planner's texts are only
        padding.
        """
        texts = [ANALYZING.before + _head(index + 1, _BEFORE) for index in range(images)]
        return [
            max(index, len(pieces)) for index, pieces in enumerate(self.tokenizer.pieces(texts))
        ]


_BEFORE, _AFTER = "<image{}><|vision_start|>", "<|image_pad|><|vision_end|>"


def _head(count: int, last: str = _BEFORE + _AFTER) -> str:
    """Return the text before a prompt, with one marker per image."""
    parts = [_BEFORE + _AFTER] * (count - 1) + [last]
    return " ".join(part.format(index + 1) for index, part in enumerate(parts))
