"""Index and configs of a Wan checkpoint, checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.checkpoint.folder import read_config, read_model_index
from models.spec.model_spec import Task
from models.text.umt5 import UMT5Config
from models.vae.video_config import VideoVaeConfig
from models.vision.clip import ClipVisionConfig
from models.wan.animate_config import FACE_FRAMES, AnimateConfig
from models.wan.config import WanConfig
from models.wan.experts import Expert, Experts
from models.wan.family import ANIMATE, FROM_IMAGE, VACE
from models.wan.vace_conditions import control_channels
from models.wan.vace_config import VaceConfig

KINDS: Mapping[str, type[WanConfig]] = {VACE: VaceConfig, ANIMATE: AnimateConfig}
"""Pipeline class → config class of its transformers; others use `WanConfig`."""
SHARED = ("patch_size", "in_channels", "velocity_channels", "text_dim", "image_dim")
SHARED_HINTS = ("vace_in_channels", "vace_layers")
"""Fields that must be equal in both experts, since they denoise the same latents."""


@dataclass(frozen=True)
class WanCheckpoint:
    """Configs of one Wan checkpoint, named as in diffusers.

    Raises:
        ValueError: configs that do not match; names both fields and values.
    """

    transformers: Mapping[Expert, WanConfig]
    t5: UMT5Config
    vae: VideoVaeConfig
    image_encoder: ClipVisionConfig | None = None
    """Config of the image encoder; None if the transformer takes no image embedding."""
    from_image: bool = False
    """Whether the index names diffusers' image-to-video class."""
    boundary_ratio: float | None = None
    expand_timesteps: bool = False
    """Whether each token has its own timestep (TI2V); supports text and image input."""

    def __post_init__(self) -> None:
        self._check_experts()
        self._check_channels()
        self._check_control()
        self._check_animation()
        self._check_text_and_image()

    @classmethod
    def read(cls, folder: Path) -> WanCheckpoint:
        """Read the configs of a Wan checkpoint folder.

        Raises: ValueError, CheckpointError: an unsupported or missing config.
        """
        index = read_model_index(folder)
        ratio = index.get("boundary_ratio")
        names: tuple[Expert, ...] = ("transformer", "transformer_2")
        kind = KINDS.get(index["_class_name"], WanConfig)
        transformers = {
            name: kind.from_dict(read_config(folder, name)) for name in names if has(index, name)
        }
        takes_image = any(config.image_dim is not None for config in transformers.values())
        encoder = None
        if takes_image and has(index, "image_encoder"):
            encoder = ClipVisionConfig.from_dict(read_config(folder, "image_encoder"))
        return cls(
            transformers=transformers,
            t5=UMT5Config.from_dict(read_config(folder, "text_encoder")),
            vae=VideoVaeConfig.from_dict(read_config(folder, "vae")),
            image_encoder=encoder,
            from_image=index["_class_name"] in (FROM_IMAGE, ANIMATE),
            boundary_ratio=None if ratio is None else float(ratio),
            expand_timesteps=bool(index.get("expand_timesteps", False)),
        )

    @property
    def transformer(self) -> WanConfig:
        """Config of the first expert; the second's relevant fields are equal."""
        return next(iter(self.transformers.values()))

    def experts(self, num_train_timesteps: int) -> Experts:
        """Return the assignment of timesteps to experts, for this number of training timesteps."""
        ratio = self.boundary_ratio
        boundary = None if ratio is None else ratio * num_train_timesteps
        return Experts(frozenset(self.transformers), boundary)

    @property
    def concatenates_image(self) -> bool:
        """Return whether mask and image latents are concatenated to the noisy channels."""
        return self.from_image and not self.expand_timesteps

    @property
    def reads_control(self) -> bool:
        """Return whether the model is VACE, with control videos and reference images."""
        return isinstance(self.transformer, VaceConfig)

    @property
    def animates(self) -> bool:
        """Return whether the model is Animate, driven by a pose video and a face video."""
        return isinstance(self.transformer, AnimateConfig)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Tasks that the checkpoint supports, such as text-to-video."""
        if self.expand_timesteps or self.reads_control:
            return ("text-to-video", "image-to-video")
        return ("image-to-video",) if self.from_image else ("text-to-video",)

    @property
    def takes_last_image(self) -> bool:
        """Return whether a last image is supported; an image embedding needs two positions."""
        joins = self.concatenates_image
        by_channels = joins and (self.transformer.image_dim is None or self.needs_last_image)
        return by_channels or self.reads_control

    @property
    def needs_last_image(self) -> bool:
        """Return whether the model requires a last image in addition to the first."""
        return self.transformer.pos_embed_seq_len is not None

    def _check_experts(self) -> None:
        if not self.transformers:
            raise ValueError("neither transformer nor transformer_2 is in model_index.json")
        if "transformer" not in self.transformers and self.boundary_ratio is None:
            raise ValueError("there is only transformer_2, which a boundary_ratio is needed for")
        first, last = self.transformer, tuple(self.transformers.values())[-1]
        for name in SHARED + SHARED_HINTS * self.reads_control:
            a, b = getattr(first, name), getattr(last, name)
            if a != b:
                raise ValueError(f"{name} of transformer is {a}, but of transformer_2 {b}")

    def _check_channels(self) -> None:
        config, z_dim = self.transformer, self.vae.z_dim
        extra = z_dim + self.vae.scale_factor_temporal if self.concatenates_image else 0
        reason = " + mask and image latents" if extra else ""
        _check_equal(
            ("transformer in_channels", config.in_channels),
            (f"vae z_dim{reason}", z_dim + extra),
        )
        _check_equal(("transformer out_channels", config.velocity_channels), ("vae z_dim", z_dim))
        if self.expand_timesteps and config.patch_size != (1, 2, 2):
            raise ValueError(
                f"expand_timesteps with patch_size {config.patch_size}: only (1, 2, 2) is served, "
                "the one that the reference makes timesteps for"
            )

    def _check_control(self) -> None:
        config, vae = self.transformer, self.vae
        if not isinstance(config, VaceConfig):
            return
        _check_equal(
            ("transformer vace_in_channels", config.vace_in_channels),
            ("channels of the control video", control_channels(vae.z_dim, vae.downsampling)),
        )
        if config.patch_size[0] != 1:
            raise ValueError(
                f"patch_size {config.patch_size}: only patches of one frame are served by VACE, "
                "since each reference is one"
            )

    def _check_animation(self) -> None:
        if not self.animates:
            return
        _check_equal(
            ("frames that a face's tokens stand for", FACE_FRAMES),
            ("vae scale_factor_temporal", self.vae.scale_factor_temporal),
        )
        if self.expand_timesteps or "transformer_2" in self.transformers:
            raise ValueError("expand_timesteps or transformer_2: Animate has neither")

    def _check_text_and_image(self) -> None:
        config, vision = self.transformer, self.image_encoder
        _check_equal(
            ("transformer text_dim", config.text_dim), ("text_encoder d_model", self.t5.d_model)
        )
        if config.image_dim is None:
            return
        if not self.concatenates_image or "transformer" not in self.transformers:
            raise ValueError(
                f"transformer image_dim {config.image_dim}: only {FROM_IMAGE} with a transformer "
                "and without expand_timesteps has image embeddings"
            )
        if vision is None:
            raise ValueError(
                f"transformer image_dim is {config.image_dim}, but there is no image_encoder"
            )
        _check_equal(
            ("transformer image_dim", config.image_dim),
            ("image_encoder hidden_size", vision.hidden_size),
        )
        if self.needs_last_image:
            _check_equal(
                ("transformer pos_embed_seq_len", config.pos_embed_seq_len),
                ("tokens of two images from image_encoder", 2 * vision.tokens),
            )


def has(index: Mapping[str, Any], component: str) -> bool:
    """Return whether `model_index.json` lists a component, other than as [null, null]."""
    return index.get(component) not in (None, [None, None])


def _check_equal(actual: tuple[str, Any], expected: tuple[str, Any]) -> None:
    if actual[1] != expected[1]:
        raise ValueError(
            f"{actual[0]} is {actual[1]}, but {expected[0]} is {expected[1]}: the parts do not fit"
        )
