"""VACE as the engine runs it: Wan, with a control video and references in every row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from models.interface.pipeline import PyTree, RequestError
from models.wan.pipeline import WanNetworks, WanPipeline
from models.wan.request import WanRequest
from models.wan.vace import Control
from models.wan.vace_conditions import control_video, with_references
from models.wan.vace_config import VaceConfig
from models.wan.vace_images import scales_of, vace_inputs
from models.wan.vace_inputs import ANEW

REFERENCES = "references"
"""Input that has an image a latent frame more, in front of the video's."""


class VacePipeline(WanPipeline):
    """Pipeline of VACE.

    A row: latents and denoised [r + f, h, w, c], of references first; control [f, h, w, channels];
    hint_scales [hints]; with references also references [r, h, w, c]; and a Wan's row's
    prompt_embeds and step_cache.
    """

    def read_images(self, request: WanRequest, images: Mapping[str, bytes]) -> dict[str, Any]:
        """Return the pixels of a request's images, and the factors of its hints.

        Raises: RequestError: images that do not go together, or cannot be read; more of them than
            RoPE reaches; or another number of factors than one, or one a hint.
        """
        config = self.checkpoint.transformer
        assert isinstance(config, VaceConfig)
        scales = scales_of(request.conditioning_scale, len(config.vace_layers))
        inputs = vace_inputs(request, images, self.grid.pixel)
        frames = self.grid.latents(request)[0] + len(inputs.get(REFERENCES, ()))
        if frames > self.grid.max_tokens:
            said = f"must be fewer, or num_frames: {frames} latent frames are more than"
            raise RequestError("reference_images", f"{said} {self.grid.max_tokens}")
        return {**inputs, "hint_scales": scales}

    def kind_of(self, pictures: Mapping[str, Any]) -> str:
        """Return the number of references, each of which makes a row longer."""
        return f"references={len(pictures.get(REFERENCES, ()))}"

    def conditioned(self, weights: WanNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode the control video and the references."""
        vae = self.vae(weights)

        def encode(clip: Float[Array, "frames height width 3"]) -> Float[Array, "f h w c"]:
            return self.encoded(vae, clip)

        references = inputs.get(REFERENCES, ())
        masks = inputs.get("control_masks")
        if masks is None:
            frames, *sides = inputs["noise"][len(references) :].shape[:3]
            sizes = (frames - 1) * self.grid.frame + 1, *(side * self.grid.pixel for side in sides)
            masks = jnp.full(sizes, ANEW, jnp.uint8)
        control = control_video(encode, inputs.get("control_frames"), masks)
        found = {"control": control.astype(self.dtype), "hint_scales": inputs["hint_scales"]}
        if len(references):
            encoded = jnp.concatenate([encode(one[None]) for one in references])
            found[REFERENCES] = encoded.astype(self.dtype)
        return found

    def frames_in_front(self, pictures: Mapping[str, Any]) -> int:
        """Return the number of references."""
        return len(pictures.get(REFERENCES, ()))

    def guides(self, rows: PyTree, prompts: int) -> dict[str, Any]:
        """Return the control video, behind the references, and the factors of its hints."""
        control = rows["control"]
        if REFERENCES in rows:
            control = jax.vmap(with_references)(control, rows[REFERENCES])
        each = Control(control, rows["hint_scales"])
        return {"control": jax.tree.map(lambda x: jnp.repeat(x, prompts, axis=0), each)}

    def of_video(self, row: PyTree, name: str) -> Float[Array, "f h w c"]:
        """Return a row's latents without those of its references."""
        latents: Array = row[name][len(row.get(REFERENCES, ())) :]
        return latents
