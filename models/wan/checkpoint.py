"""Parts of a Wan checkpoint: its index and configs, read and checked against each other."""

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
from models.wan.vace_conditions import control_channels
from models.wan.vace_config import VaceConfig

FROM_IMAGE = "WanImageToVideoPipeline"
VACE = "WanVACEPipeline"
ANIMATE = "WanAnimatePipeline"
KINDS: Mapping[str, type[WanConfig]] = {VACE: VaceConfig, ANIMATE: AnimateConfig}
"""Class of a pipeline → the config of its transformers; of all others Wan's own."""
SHARED = ("patch_size", "in_channels", "velocity_channels", "text_dim", "image_dim")
SHARED_HINTS = ("vace_in_channels", "vace_layers")
"""Fields that both experts must have in common: they take turns at the same latents."""


@dataclass(frozen=True)
class WanCheckpoint:
    """The configs of one checkpoint. diffusers' names.

    Raises:
        ValueError: parts that do not fit each other; names them, with both values.
    """

    transformers: Mapping[Expert, WanConfig]
    t5: UMT5Config
    vae: VideoVaeConfig
    image_encoder: ClipVisionConfig | None = None
    """Config of the image encoder; None where the transformer takes no image embedding, either."""
    from_image: bool = False
    """Whether the index names diffusers' image-to-video class."""
    boundary_ratio: float | None = None
    expand_timesteps: bool = False
    """A timestep for each token (TI2V): serves text and images alike."""

    def __post_init__(self) -> None:
        self._check_experts()
        self._check_channels()
        self._check_control()
        self._check_animation()
        self._check_text_and_picture()

    @classmethod
    def read(cls, folder: Path) -> WanCheckpoint:
        """Read the configs of a checkpoint's folder.

        Raises: ValueError, CheckpointError: a config that cannot be served, or is not there.
        """
        index = read_model_index(folder)
        ratio = index.get("boundary_ratio")
        names: tuple[Expert, ...] = ("transformer", "transformer_2")
        kind = KINDS.get(index["_class_name"], WanConfig)
        transformers = {
            name: kind.from_dict(read_config(folder, name)) for name in names if has(index, name)
        }
        pictured = any(config.image_dim is not None for config in transformers.values())
        encoder = None
        if pictured and has(index, "image_encoder"):
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
        """The first expert's; where it matters, both have the same."""
        return next(iter(self.transformers.values()))

    def experts(self, num_train_timesteps: int) -> Experts:
        """Return which expert serves when, for a scheduler of so many training timesteps."""
        ratio = self.boundary_ratio
        boundary = None if ratio is None else ratio * num_train_timesteps
        return Experts(frozenset(self.transformers), boundary)

    @property
    def joins_picture(self) -> bool:
        """Return whether mask and image latents are further channels beside the noisy ones."""
        return self.from_image and not self.expand_timesteps

    @property
    def reads_control(self) -> bool:
        """Return whether it reads control videos and references: VACE."""
        return isinstance(self.transformer, VaceConfig)

    @property
    def animates(self) -> bool:
        """Return whether it moves a character by videos of poses and of a face: Animate."""
        return isinstance(self.transformer, AnimateConfig)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Tasks that the checkpoint can do."""
        if self.expand_timesteps or self.reads_control:
            return ("text-to-video", "image-to-video")
        return ("image-to-video",) if self.from_image else ("text-to-video",)

    @property
    def takes_last_image(self) -> bool:
        """Return whether it takes a last image; with an embedding, if that has two positions."""
        joins = self.joins_picture
        by_channels = joins and (self.transformer.image_dim is None or self.needs_last_image)
        return by_channels or self.reads_control

    @property
    def needs_last_image(self) -> bool:
        """Return whether it goes from a first image to a last one."""
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
        beside = z_dim + self.vae.scale_factor_temporal if self.joins_picture else 0
        reason = " + mask and image latents" if beside else ""
        _check_equal(
            ("transformer in_channels", config.in_channels),
            (f"vae z_dim{reason}", z_dim + beside),
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

    def _check_text_and_picture(self) -> None:
        config, vision = self.transformer, self.image_encoder
        _check_equal(
            ("transformer text_dim", config.text_dim), ("text_encoder d_model", self.t5.d_model)
        )
        if config.image_dim is None:
            return
        if not self.joins_picture or "transformer" not in self.transformers:
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
    """Return whether model_index.json names that component, and not as [null, null]."""
    return index.get(component) not in (None, [None, None])


def _check_equal(ours: tuple[str, Any], theirs: tuple[str, Any]) -> None:
    if ours[1] != theirs[1]:
        raise ValueError(
            f"{ours[0]} is {ours[1]}, but {theirs[0]} is {theirs[1]}: the parts do not fit"
        )
