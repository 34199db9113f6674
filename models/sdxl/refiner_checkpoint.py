"""A refiner beside a base model: another SDXL checkpoint, read and checked against the base's."""

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
from models.spec.model_spec import Need
from models.spec.refiner import FIELD

NETWORKS: Mapping[str, str] = {
    "unet": REFINER,
    "clip": f"{PREFIX}clip",
    "clip_2": f"{PREFIX}clip_2",
}
"""Names in a base's pipeline of a refiner's networks; the base's autoencoder is for both."""
SCHEDULE = (
    *("num_train_timesteps", "beta_start", "beta_end", "beta_schedule"),
    *("trained_betas", "rescale_betas_zero_snr"),
)
"""Options of schedulers that say how noisy each timestep is."""
LATENTS = ("latent_channels", "scaling_factor", "latents_mean", "latents_std")
"""Fields of autoencoders that say what latents are."""


@dataclass(frozen=True)
class RefinerFiles:
    """Refiner in its files, not loaded yet."""

    source: Source
    parts: Parts

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the folders and files whose change makes it another one."""
        return self.source.paths

    def trained(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of the base's scheduler that its training has otherwise.

        Raises: ValueError: both were trained on other noise.
        """
        own, theirs = (registry.from_config(config) for config in (self.source.scheduler(), base))
        for name in SCHEDULE:
            a, b = getattr(own, name, None), getattr(theirs, name, None)
            if a != b:
                raise ValueError(
                    f"refiner: its scheduler's {name} is {a}, but the model's is {b}: the noise of"
                    " both must be the same"
                )
        a, b = (getattr(one, "prediction_type", None) for one in (own, theirs))
        return {} if a == b else {"prediction_type": a}


def check_refiner(parts: Parts, base: Parts) -> None:
    """Check that a refiner goes on with a base's latents.

    Raises: ValueError: it cannot, says why.
    """
    if base.unet.in_channels != base.vae.latent_channels:
        raise ValueError("refiner: a model that only inpaints takes none")
    for name, one in (("the model", base), ("the refiner", parts)):
        if one.unet.time_cond_proj_dim is not None:
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
    """Return the request fields that a model has with that refiner, each with its needs."""
    if refiner is None:
        return {}
    own, guided = Need(field=FIELD), Need(field="guidance_scale", above=1)
    scored = {
        "aesthetic_score": (own,),
        "negative_aesthetic_score": (own, guided),
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
    """Load a refiner's networks by their names in the base's pipeline; none without one.

    Args:
        modules: makes the abstract networks of parts, their parameters of a dtype.
        dtypes: in which they are stored, and in which they are used.

    Raises: CheckpointError: arrays that are missing, stray or misshapen.
    """
    if refiner is None:
        return {}
    stored, used = (reading.rounded(modules(refiner.parts, dtype), "unet") for dtype in dtypes)
    return {
        NETWORKS[name]: reading.network(
            NETWORKS[name], (getattr(stored, name), getattr(used, name)), place, renames
        )
        for name, (place, renames) in refiner.source.places(refiner.parts).items()
        if name in NETWORKS
    }
