"""Loads a refiner: a second SDXL checkpoint, checked against the base model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.typing import DTypeLike

from models.loading.sources import Reading
from models.sampling import registry
from models.sdxl.compatibility import Parts
from models.sdxl.refining import PREFIX, REFINER, TASKS
from models.sdxl.source import Source
from models.spec.field_types import REFINER as FIELD
from models.spec.model_spec import Need

NETWORKS: Mapping[str, str] = {
    "unet": REFINER,
    "clip": f"{PREFIX}clip",
    "clip_2": f"{PREFIX}clip_2",
}
"""Names of a refiner's networks in the base's pipeline; both share the base's autoencoder."""
SCHEDULE = (
    *("num_train_timesteps", "beta_start", "beta_end", "beta_schedule"),
    *("trained_betas", "rescale_betas_zero_snr"),
)
"""Scheduler options that define the noise level of each timestep."""
LATENTS = ("latent_channels", "scaling_factor", "latents_mean", "latents_std")
"""Autoencoder fields that must be equal in base and refiner, since they define the latents."""


@dataclass(frozen=True)
class RefinerFiles:
    """Refiner on disk, before its weights are loaded."""

    source: Source
    parts: Parts

    @property
    def paths(self) -> tuple[Path, ...]:
        """Folders and files that identify the refiner in fingerprints."""
        return self.source.paths

    def trained(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """Return scheduler options in which the refiner's training differs from the base's.

        Raises: ValueError: the two noise schedules differ.
        """
        refiner, model = (
            registry.from_config(config) for config in (self.source.scheduler(), base)
        )
        for name in SCHEDULE:
            a, b = getattr(refiner, name, None), getattr(model, name, None)
            if a != b:
                raise ValueError(
                    f"refiner: its scheduler's {name} is {a}, but the model's is {b}: the noise of"
                    " both must be the same"
                )
        a, b = (getattr(scheduler, "prediction_type", None) for scheduler in (refiner, model))
        return {} if a == b else {"prediction_type": a}


def check_refiner(parts: Parts, base: Parts) -> None:
    """Check that a refiner can continue from a base model's latents.

    Raises: ValueError: it cannot; gives the reason.
    """
    if base.unet.in_channels != base.vae.latent_channels:
        raise ValueError("refiner: not supported by a model that only inpaints")
    for name, config in (("the model", base), ("the refiner", parts)):
        if config.unet.time_cond_proj_dim is not None:
            raise ValueError(f"refiner: {name} has distilled guidance, and both must have a prompt")
    if parts.unet.in_channels != base.vae.latent_channels:
        raise ValueError(
            f"refiner: its unet in_channels is {parts.unet.in_channels}, but the model's vae "
            f"latent_channels is {base.vae.latent_channels}"
        )
    for name in LATENTS:
        a, b = getattr(parts.vae, name), getattr(base.vae, name)
        if a != b:
            raise ValueError(f"refiner: its vae {name} is {a}, but the model's is {b}")


def needs_with_refiner(refiner: RefinerFiles | None) -> dict[str, tuple[Need, ...]]:
    """Return the request fields that a refiner adds to a model, each with its needs."""
    if refiner is None:
        return {}
    refined, guided = Need(field=FIELD), Need(field="guidance_scale", above=1)
    scored = {
        "aesthetic_score": (refined,),
        "negative_aesthetic_score": (refined, guided),
        "negative_original_size": (guided,),
        "negative_crops_coords_top_left": (guided,),
    }
    return {FIELD: (Need(field="task", among=TASKS),), **(scored if refiner.parts.scored else {})}


def load_refiner(
    refiner: RefinerFiles | None,
    modules: Any,
    dtypes: tuple[DTypeLike, DTypeLike],
    reading: Reading,
) -> dict[str, Any]:
    """Load a refiner's networks under their names in the base's pipeline; empty without a refiner.

    Args:
        modules: function that builds abstract networks from configs and a parameter dtype.
        dtypes: storage dtype and computation dtype.

    Raises: CheckpointError: missing, unexpected or misshapen arrays.
    """
    if refiner is None:
        return {}
    stored, used = (reading.rounded(modules(refiner.parts, dtype), "unet") for dtype in dtypes)
    return {
        NETWORKS[name]: reading.network(
            NETWORKS[name], (getattr(stored, name), getattr(used, name)), place, renames
        )
        for name, (place, renames) in refiner.source.array_sources(refiner.parts).items()
        if name in NETWORKS
    }
