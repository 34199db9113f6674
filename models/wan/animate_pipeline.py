"""Animate pipeline for the engine: Wan with a character image, poses and a face in every row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from models.interface.pipeline import PyTree
from models.spec.request import RequestError
from models.wan.animate import Guides
from models.wan.animate_conditions import conditioning, mask_channels
from models.wan.animate_config import AnimateConfig
from models.wan.animate_inputs import BACKGROUND, animate_inputs
from models.wan.pipeline import WanNetworks, WanPipeline
from models.wan.request import WanRequest


class AnimatePipeline(WanPipeline):
    """Pipeline of Animate, for one segment of a video.

    Leaves of a row, in addition to prompt_embeds, image_embeds and step_cache of `WanPipeline`:
    - latents and denoised [1 + f, h, w, c], with the character's image first;
    - condition [1 + f, h, w, mask and c]; pose [f, h, w, c];
    - face_embeds [prompts, 1 + f, face_tokens, width].
    """

    PROMPTS = ("prompt_embeds", "face_embeds")

    def read_images(self, request: WanRequest, images: Mapping[str, bytes]) -> dict[str, Any]:
        """Return the pixels of a request's images and videos.

        Raises: RequestError: inputs that are missing, inconsistent, cannot be decoded, or exceed
        RoPE's reach.
        """
        config, preprocessor = self.checkpoint.transformer, self.tools.preprocessor
        assert isinstance(config, AnimateConfig) and preprocessor is not None
        if self.grid.latents(request)[0] >= self.grid.max_tokens:
            raise RequestError("num_frames", f"must be at most {self.grid.max_frames - 4}")
        return animate_inputs(request, images, config.motion_encoder_size, preprocessor)

    def kind_of(self, image_inputs: Mapping[str, Any]) -> str:
        """Return "replace" if the request has a background video, else "animate"."""
        return "replace" if f"{BACKGROUND}_frames" in image_inputs else "animate"

    def leading_frames(self, image_inputs: Mapping[str, Any]) -> int:
        """Return 1, for the character's image."""
        return 1

    def encode_images(
        self, weights: WanNetworks, inputs: Mapping[str, jax.Array]
    ) -> dict[str, Any]:
        """Encode the character, the poses, the face and the background."""
        vae, encoder = self.vae(weights), self.network(weights, "image_encoder")
        pose = self.encode_video(vae, _pixels(inputs["pose_frames"]))
        background, masks = inputs.get("background_frames"), inputs.get("background_masks")
        video = jnp.zeros(inputs["pose_frames"].shape, jnp.float32)
        latents = self.encode_video(vae, video if background is None else _pixels(background))
        mask = mask_channels(masks, latents.shape[:3], self.grid.frame)
        character = self.encode_video(vae, inputs["character"][None])
        face = self.network(weights, "face_encoder")
        features = encoder(inputs["clip_pixels"][None]).hidden_states[-2][0]
        leaves = {
            "condition": conditioning(character, latents, mask),
            "pose": pose,
            "face_embeds": face(inputs["face_frames"], len(inputs["text_ids"])),
            "image_embeds": features,
        }
        return {name: value.astype(self.dtype) for name, value in leaves.items()}

    def guides(self, rows: PyTree, prompts: int) -> dict[str, Any]:
        """Return poses and face tokens; the negative prompt has separate face tokens."""
        face = rows["face_embeds"]
        pose = jnp.repeat(rows["pose"], prompts, axis=0)
        return {"guides": Guides(pose, face.reshape(-1, *face.shape[2:]))}

    def video_latents(self, row: PyTree, name: str) -> Float[Array, "f h w c"]:
        """Return a row's video latents, without those of the character's image."""
        latents: Array = row[name][1:]
        return latents


def _pixels(frames: jax.Array) -> jax.Array:
    return frames.astype(jnp.float32) / 255 * 2 - 1
