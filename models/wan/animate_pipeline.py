"""Animate as the engine runs it: Wan, with a character, poses and a face in every row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from models.interface.pipeline import PyTree, RequestError
from models.wan.animate import Guides
from models.wan.animate_conditions import conditioning, mask_channels
from models.wan.animate_config import AnimateConfig
from models.wan.animate_inputs import BACKGROUND, animate_inputs
from models.wan.pipeline import WanNetworks, WanPipeline
from models.wan.request import WanRequest


class AnimatePipeline(WanPipeline):
    """Pipeline of Animate: one segment of a video.

    A row: latents and denoised [1 + f, h, w, c], of the character's image first; condition
    [1 + f, h, w, mask and c]; pose [f, h, w, c]; face_embeds [prompts, 1 + f, face_tokens, width];
    and a Wan's row's prompt_embeds, image_embeds and step_cache.
    """

    PROMPTS = ("prompt_embeds", "face_embeds")

    def read_images(self, request: WanRequest, images: Mapping[str, bytes]) -> dict[str, Any]:
        """Return the pixels of a request's images and videos.

        Raises: RequestError: some are missing, do not go together, or cannot be read; or more
            frames than RoPE reaches.
        """
        config, preprocessor = self.checkpoint.transformer, self.tools.preprocessor
        assert isinstance(config, AnimateConfig) and preprocessor is not None
        if self.grid.latents(request)[0] >= self.grid.max_tokens:
            raise RequestError("num_frames", f"must be at most {self.grid.max_frames - 4}")
        return animate_inputs(request, images, config.motion_encoder_size, preprocessor)

    def kind_of(self, pictures: Mapping[str, Any]) -> str:
        """Return whether the video has a background of its own."""
        return "replace" if f"{BACKGROUND}_frames" in pictures else "animate"

    def frames_in_front(self, pictures: Mapping[str, Any]) -> int:
        """Return 1: the character's image."""
        return 1

    def conditioned(self, weights: WanNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode the character, the poses, the face and the background."""
        vae, seen = self.vae(weights), self.network(weights, "image_encoder")
        pose = self.encoded(vae, _pixels(inputs["pose_frames"]))
        background, masks = inputs.get("background_frames"), inputs.get("background_masks")
        clip = jnp.zeros(inputs["pose_frames"].shape, jnp.float32)
        around = self.encoded(vae, clip if background is None else _pixels(background))
        mask = mask_channels(masks, around.shape[:3], self.grid.frame)
        character = self.encoded(vae, inputs["character"][None])
        face = self.network(weights, "face_encoder")
        features = seen(inputs["clip_pixels"][None]).hidden_states[-2][0]
        found = {
            "condition": conditioning(character, around, mask),
            "pose": pose,
            "face_embeds": face(inputs["face_frames"], len(inputs["text_ids"])),
            "image_embeds": features,
        }
        return {name: value.astype(self.dtype) for name, value in found.items()}

    def guides(self, rows: PyTree, prompts: int) -> dict[str, Any]:
        """Return poses and face; the negative prompt has a face of its own."""
        face = rows["face_embeds"]
        pose = jnp.repeat(rows["pose"], prompts, axis=0)
        return {"guides": Guides(pose, face.reshape(-1, *face.shape[2:]))}

    def of_video(self, row: PyTree, name: str) -> Float[Array, "f h w c"]:
        """Return a row's latents without that of the character's image."""
        latents: Array = row[name][1:]
        return latents


def _pixels(frames: jax.Array) -> jax.Array:
    return frames.astype(jnp.float32) / 255 * 2 - 1
