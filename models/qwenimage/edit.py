"""Qwen-Image-Edit: an image that the encoder reads before the prompt, and the network as tokens.

Source: diffusers pipeline_qwenimage_edit.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from PIL import Image

from models.interface.denoising_pipeline import Draft
from models.interface.images import open_image, pixels_of
from models.interface.pipeline import Fields, PyTree, RequestError
from models.qwenimage.config import PATCH
from models.qwenimage.latents import Grid
from models.qwenimage.pipeline import QwenImageNetworks, QwenImagePipeline, grid_of_row
from models.qwenimage.prompts import EDIT_CUT, EDITING_HEAD
from models.qwenimage.spec import AREA_PX
from models.spec.image_sizes import size_of_area
from models.text.tokenizer import Tokens
from models.vae.patches import pack
from models.vision.qwen_patches import QwenPreprocessor


class QwenImageEditPipeline(QwenImagePipeline):
    """Pipeline of Qwen-Image-Edit.

    A row has besides: reference [reference_tokens, 4c] and reference_grid [h, w], the shape of its
    latents as an array without values.
    """

    CUT = EDIT_CUT

    def __init__(self, *given: Any, preprocessor: QwenPreprocessor) -> None:
        super().__init__(*given)
        self.preprocessor = preprocessor
        # tokens in front of the image, the same in every chat
        self.first = len(self.tokenizer.pieces([EDITING_HEAD])[0])

    def lay_out(self, fields: Fields, images: Mapping[str, bytes]) -> Draft:
        """Lay out as without an image, and make room for one in the texts."""
        if "image" not in images:
            raise RequestError("image", "is needed: this model edits one")
        picture = scaled(images["image"], self.spec.limits.size_multiple_px)
        try:
            patches, (rows, columns) = self.preprocessor(picture)
        except ValueError as error:
            raise RequestError("image", str(error)) from error
        draft = super().lay_out(fields, {})
        count = rows * columns // self.preprocessor.merge_size**2
        read = with_image(Tokens(draft.inputs["ids"], draft.inputs["read"]), self.first, count)
        w, h = (side // self.downsampling for side in picture.size)
        return replace(
            draft,
            bucket=f"{draft.bucket},reference={w}x{h},seen={columns}x{rows}",
            inputs={
                **draft.inputs,
                "ids": read.ids,
                "read": read.mask,
                "reference": pixels_of(picture),
                "patches": patches.reshape(rows, columns, -1),
            },
            tokens=draft.tokens + h * w // PATCH**2,
        )

    def embed(self, weights: QwenImageNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode the prompts around the image, and the image alone."""
        latents = self.encode_image(weights, inputs["reference"], None)
        return {
            **super().embed(weights, inputs),
            "reference": pack(latents),
            "reference_grid": jnp.zeros((*latents.shape[:2], 0)),
        }

    def captions(
        self, weights: QwenImageNetworks, inputs: Mapping[str, jax.Array]
    ) -> Float[Array, "prompts tokens features"]:
        """Encode the prompts around the image."""
        rows, columns, _ = inputs["patches"].shape
        patches = inputs["patches"].reshape(rows * columns, -1)
        image = self.network(weights, "vision")(patches, (rows, columns))
        merge = self.preprocessor.merge_size
        found: Array = self.network(weights, "text_encoder").around_image(
            inputs["ids"],
            inputs["read"].astype(bool),
            image,
            self.first,
            (rows // merge, columns // merge),
        )
        return found

    def seen(self, rows: PyTree) -> tuple[Float[Array, "batch tokens patch"], tuple[Grid, ...]]:
        """Return the latents and the image behind them, and the grids of both."""
        tokens = jnp.concatenate([rows["latents"], rows["reference"]], axis=1)
        return tokens, (grid_of_row(rows["grid"]), grid_of_row(rows["reference_grid"]))


def scaled(data: bytes, multiple: int) -> Image.Image:
    """An image file, scaled to about `AREA_PX`.

    Args:
        multiple: pixels of a token's side, of which there are whole ones.

    Raises: RequestError: it cannot be read, or is too narrow.
    """
    picture = open_image(data)
    sides = [side - side % multiple for side in size_of_area(picture.size, AREA_PX)]
    if not all(sides):
        raise RequestError("image", "is too narrow to be scaled to a megapixel")
    return picture.resize((sides[0], sides[1]), Image.Resampling.LANCZOS)


def with_image(read: Tokens, first: int, count: int) -> Tokens:
    """Texts whose token for an image is repeated as often as the image has features."""

    def repeated(tokens: np.ndarray) -> np.ndarray:
        wide = np.repeat(tokens[:, first : first + 1], count, axis=1)
        return np.concatenate([tokens[:, :first], wide, tokens[:, first + 1 :]], axis=1)

    return Tokens(repeated(read.ids), repeated(read.mask))
