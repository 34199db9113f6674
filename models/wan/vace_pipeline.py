"""VACE pipeline for the engine: Wan with a control video and reference images in every row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from models.interface.pipeline import PyTree
from models.spec.request import RequestError
from models.wan.pipeline import WanNetworks, WanPipeline
from models.wan.request import WanRequest
from models.wan.vace import Control
from models.wan.vace_conditions import control_video, with_references
from models.wan.vace_config import VaceConfig
from models.wan.vace_images import scales_of, vace_inputs
from models.wan.vace_inputs import GENERATED

REFERENCES = "references"
"""Input and leaf of reference images, each of which is one latent frame before the video's."""


class VacePipeline(WanPipeline):
    """Pipeline of Wan VACE, which follows a control video and reference images.

    Leaves of a row, in addition to prompt_embeds and step_cache of `WanPipeline`:
    - latents and denoised [r + f, h, w, c], references first;
    - control [f, h, w, channels]; hint_scales [hints];
    - with references: references [r, h, w, c].
    """

    def read_images(self, request: WanRequest, images: Mapping[str, bytes]) -> dict[str, Any]:
        """Return the pixels of a request's images, and the scales of its hints.

        Raises: RequestError: images that are inconsistent, cannot be decoded, or exceed RoPE's
        reach; or a number of scales other than one or one per hint.
        """
        config = self.checkpoint.transformer
        assert isinstance(config, VaceConfig)
        scales = scales_of(request.conditioning_scale, len(config.vace_layers))
        inputs = vace_inputs(request, images, self.grid.pixel)
        frames = self.grid.latents(request)[0] + len(inputs.get(REFERENCES, ()))
        if frames > self.grid.max_tokens:
            message = f"must be fewer, or num_frames: {frames} latent frames are more than"
            raise RequestError("reference_images", f"{message} {self.grid.max_tokens}")
        return {**inputs, "hint_scales": scales}

    def kind_of(self, image_inputs: Mapping[str, Any]) -> str:
        """Return a bucket key suffix: the number of references, which lengthen a row."""
        return f"references={len(image_inputs.get(REFERENCES, ()))}"

    def encode_images(
        self, weights: WanNetworks, inputs: Mapping[str, jax.Array]
    ) -> dict[str, Any]:
        """Encode the control video and the references."""
        vae = self.vae(weights)

        def encode(video: Float[Array, "frames height width 3"]) -> Float[Array, "f h w c"]:
            return self.encode_video(vae, video)

        references = inputs.get(REFERENCES, ())
        masks = inputs.get("control_masks")
        if masks is None:
            frames, *sides = inputs["noise"][len(references) :].shape[:3]
            sizes = (frames - 1) * self.grid.frame + 1, *(side * self.grid.pixel for side in sides)
            masks = jnp.full(sizes, GENERATED, jnp.uint8)
        control = control_video(encode, inputs.get("control_frames"), masks)
        leaves = {"control": control.astype(self.dtype), "hint_scales": inputs["hint_scales"]}
        if len(references):
            encoded = jnp.concatenate([encode(reference[None]) for reference in references])
            leaves[REFERENCES] = encoded.astype(self.dtype)
        return leaves

    def leading_frames(self, image_inputs: Mapping[str, Any]) -> int:
        """Return the number of reference images, each of which is a latent frame."""
        return len(image_inputs.get(REFERENCES, ()))

    def guides(self, rows: PyTree, prompts: int) -> dict[str, Any]:
        """Return the control video, with the references prepended, and the scales of its hints."""
        control = rows["control"]
        if REFERENCES in rows:
            control = jax.vmap(with_references)(control, rows[REFERENCES])
        each = Control(control, rows["hint_scales"])
        return {"control": jax.tree.map(lambda x: jnp.repeat(x, prompts, axis=0), each)}

    def video_latents(self, row: PyTree, name: str) -> Float[Array, "f h w c"]:
        """Return a row's latents without those of its references."""
        latents: Array = row[name][len(row.get(REFERENCES, ())) :]
        return latents
