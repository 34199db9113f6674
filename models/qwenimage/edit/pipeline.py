"""Qwen-Image-Edit pipeline: input images go to the text encoder and, as tokens, to the network.

Source: diffusers pipeline_qwenimage_edit.py, pipeline_qwenimage_edit_plus.py and
pipeline_qwenimage_edit_inpaint.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float
from PIL import Image

from models.flow.chat_pipeline import ChatNetworks
from models.flow.references import scaled, with_images
from models.interface.denoising_pipeline import Draft
from models.interface.images import pixels_of
from models.qwenimage.edit.prompts import CUT, ImagePromptFormat
from models.qwenimage.pipeline import QwenImagePipeline
from models.spec.request import FlowImageRequest, RequestError
from models.text.qwen25 import ImagePosition
from models.text.tokenizer import Tokens
from models.vae.patches import pack
from models.vae.references import as_grid, inputs_of, open_references
from models.vision.qwen_patches import QwenPreprocessor

PATCHES = "patches."
"""Prefix of the inputs with image patches for the text encoder; an index follows."""


class QwenImageEditPipeline(QwenImagePipeline):
    """Pipeline of Qwen-Image-Edit, which changes input images by a prompt.

    Additional leaves of a row: references [tokens, 4c] and reference_grids, the shape of each
    reference's latents by its index.

    Args:
        prompt_format: format of the images in the chat.
    """

    CUT = CUT

    def __init__(
        self, *arguments: Any, preprocessor: QwenPreprocessor, prompt_format: ImagePromptFormat
    ) -> None:
        super().__init__(*arguments)
        if self.buckets:
            raise ValueError("token_buckets: edits have images of fixed sizes; remove it")
        self.preprocessor, self.prompt_format = preprocessor, prompt_format

    def plan_request(
        self, request: FlowImageRequest, images: Mapping[str, bytes], head: str = ""
    ) -> Draft:
        """Prepare the request as Qwen-Image does, and insert image tokens into the texts.

        With a mask, the only reference is the image itself, at the request's size.
        """
        if "image" not in images:
            raise RequestError("image", "is needed: this model edits an image")
        opened, multiple = open_references(images), self.spec.limits.size_multiple_px
        patches = [self._patches(image, path) for path, image in opened.items()]
        masked = {name: images[name] for name in ("image", "mask_image") if "mask_image" in images}
        read = (
            []
            if masked
            else [scaled(*item, self.prompt_format.read_px, multiple) for item in opened.items()]
        )
        draft = super().plan_request(request, masked, self.prompt_format.head(len(opened)))
        counts = [part.shape[0] * part.shape[1] // self._square for part in patches]
        texts = Tokens(draft.inputs["ids"], draft.inputs["read"])
        texts = with_images(texts, self._image_offsets(len(opened)), counts)
        sizes = "+".join(f"{image.width}x{image.height}" for image in read)
        patch_grids = "+".join(f"{part.shape[1]}x{part.shape[0]}" for part in patches)
        return replace(
            draft,
            bucket=f"{draft.bucket},references={sizes},seen={patch_grids}",
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
        """Encode the prompts with the images, and the images as references."""
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
        """Encode the prompts together with their images."""
        encode, merge = self.network(weights, "vision"), self.preprocessor.merge_size
        parts = [inputs[name] for name in sorted(inputs) if name.startswith(PATCHES)]
        images = [encode(part.reshape(-1, part.shape[-1]), part.shape[:2]) for part in parts]
        further = itertools.accumulate((len(image) - 1 for image in images), initial=0)
        places = [
            ImagePosition(at + more, (part.shape[0] // merge, part.shape[1] // merge))
            for at, more, part in zip(self._image_offsets(len(parts)), further, parts, strict=False)
        ]
        output: Array = self.network(weights, "text_encoder").encode_with_images(
            inputs["ids"], inputs["read"].astype(bool), images, places
        )
        return output

    @property
    def _square(self) -> int:
        """Number of patches per token of the text encoder."""
        return self.preprocessor.merge_size**2

    def _image_offsets(self, images: int) -> list[int]:
        """Return the number of text tokens before each image's marker, equal in all chats.

        Each number is at least that of the preceding markers, since a planner's texts are only
        padding.
        """
        heads = self.tokenizer.pieces(self.prompt_format.heads(images))
        return [max(index, len(pieces)) for index, pieces in enumerate(heads)]

    def _patches(self, image: Image.Image, field: str) -> Float[np.ndarray, "rows columns pixels"]:
        """Return an image's patches for the text encoder.

        Raises: RequestError: the image is too narrow.
        """
        resized = scaled(field, image, self.prompt_format.encoder_px)
        try:
            patches, grid = self.preprocessor(resized)
        except ValueError as error:
            raise RequestError(field, str(error)) from error
        return patches.reshape(*grid, -1)
