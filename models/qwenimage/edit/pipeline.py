"""Qwen-Image-Edit: images that the encoder reads before the prompt, and the network as tokens.

Source: diffusers pipeline_qwenimage_edit.py, pipeline_qwenimage_edit_plus.py and
pipeline_qwenimage_edit_inpaint.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float
from PIL import Image

from models.flow.chat_pipeline import ChatNetworks
from models.interface.denoising_pipeline import Draft
from models.interface.images import pixels_of
from models.interface.pipeline import Fields, RequestError
from models.qwenimage.edit.prompts import CUT, Showing
from models.qwenimage.pipeline import QwenImagePipeline
from models.spec.image_sizes import size_of_area
from models.text.qwen25 import ImagePlace
from models.text.tokenizer import Tokens
from models.vae.patches import pack
from models.vae.references import as_grid, inputs_of, open_references
from models.vision.qwen_patches import QwenPreprocessor

PATCHES = "patches."
"""Beginning of the names of what the encoder sees of images, among inputs; an index follows."""


class QwenImageEditPipeline(QwenImagePipeline):
    """Pipeline of Qwen-Image-Edit.

    A row has besides: references [tokens, 4c] and reference_grids, the shape of the latents of
    each by its index.

    Args:
        showing: the images to the encoder.
    """

    CUT = CUT

    def __init__(self, *given: Any, preprocessor: QwenPreprocessor, showing: Showing) -> None:
        super().__init__(*given)
        self.preprocessor, self.showing = preprocessor, showing

    def lay_out(self, fields: Fields, images: Mapping[str, bytes], head: str = "") -> Draft:
        """Lay out as without images, and make room for them in the texts.

        Behind a mask the network sees the image that is kept, at the request's size.
        """
        if "image" not in images:
            raise RequestError("image", "is needed: this model edits one")
        opened, multiple = open_references(images), self.spec.limits.size_multiple_px
        patches = [self._patches(image, path) for path, image in opened.items()]
        masked = {name: images[name] for name in ("image", "mask_image") if "mask_image" in images}
        read = (
            []
            if masked
            else [scaled(*one, self.showing.read_px, multiple) for one in opened.items()]
        )
        draft = super().lay_out(fields, masked, self.showing.head(len(opened)))
        counts = [part.shape[0] * part.shape[1] // self._square for part in patches]
        texts = Tokens(draft.inputs["ids"], draft.inputs["read"])
        texts = with_images(texts, self._places(len(opened)), counts)
        sizes = "+".join(f"{image.width}x{image.height}" for image in read)
        seen = "+".join(f"{part.shape[1]}x{part.shape[0]}" for part in patches)
        return replace(
            draft,
            bucket=f"{draft.bucket},references={sizes},seen={seen}",
            inputs={
                **draft.inputs,
                "ids": texts.ids,
                "read": texts.mask,
                **inputs_of([pixels_of(image) for image in read]),
                **{f"{PATCHES}{index}": part for index, part in enumerate(patches)},
            },
            tokens=draft.tokens * (2 if masked else 1)
            + sum(image.width * image.height // multiple**2 for image in read),
        )

    def embed(self, weights: ChatNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode the prompts around the images, and the images alone."""
        row = super().embed(weights, inputs)
        if "clean" in row:
            return {
                **row,
                "references": row["clean"],
                "reference_grids": {"0": as_grid(inputs["noise"])},
            }
        return {**row, **self.references(weights, inputs, pack)}

    def captions(
        self, weights: ChatNetworks, inputs: Mapping[str, jax.Array]
    ) -> Float[Array, "prompts tokens features"]:
        """Encode the prompts around the images."""
        see, merge = self.network(weights, "vision"), self.preprocessor.merge_size
        parts = [inputs[name] for name in sorted(inputs) if name.startswith(PATCHES)]
        images = [see(part.reshape(-1, part.shape[-1]), part.shape[:2]) for part in parts]
        further = itertools.accumulate((len(image) - 1 for image in images), initial=0)
        places = [
            ImagePlace(at + more, (part.shape[0] // merge, part.shape[1] // merge))
            for at, more, part in zip(self._places(len(parts)), further, parts, strict=False)
        ]
        found: Array = self.network(weights, "text_encoder").around_images(
            inputs["ids"], inputs["read"].astype(bool), images, places
        )
        return found

    @property
    def _square(self) -> int:
        """Patches of one token of the encoder."""
        return self.preprocessor.merge_size**2

    def _places(self, images: int) -> list[int]:
        """Return the tokens in front of each image's marker, the same in every chat.

        At least the markers before it: a planner's texts are but padding.
        """
        heads = self.tokenizer.pieces(self.showing.heads(images))
        return [max(index, len(pieces)) for index, pieces in enumerate(heads)]

    def _patches(self, image: Image.Image, field: str) -> Float[np.ndarray, "rows columns pixels"]:
        """Return what the encoder sees. Raises: RequestError: the image is too narrow."""
        seen = scaled(field, image, self.showing.seen_px)
        try:
            patches, grid = self.preprocessor(seen)
        except ValueError as error:
            raise RequestError(field, str(error)) from error
        return patches.reshape(*grid, -1)


def scaled(field: str, image: Image.Image, area: int, multiple: int = 1) -> Image.Image:
    """Scale an image to about so many pixels.

    Args:
        multiple: of pixels that both sides are.

    Raises: RequestError: it is too narrow.
    """
    sides = [side - side % multiple for side in size_of_area(image.size, area)]
    if not all(sides):
        raise RequestError(field, f"is too narrow to be scaled to {area} pixels")
    return image.resize((sides[0], sides[1]), Image.Resampling.LANCZOS)


def with_images(read: Tokens, places: Sequence[int], counts: Sequence[int]) -> Tokens:
    """Texts whose token for each image is repeated as often as the image has features."""
    added = np.repeat(places, np.subtract(counts, 1))

    def repeated(tokens: np.ndarray) -> np.ndarray:
        return np.insert(tokens, added, tokens[:, added], axis=1)

    return Tokens(repeated(read.ids), repeated(read.mask))
