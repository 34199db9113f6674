"""Names of CLIP's layers in adapter files, common to all families."""

from __future__ import annotations

from models.adapters.layer_names import Spelling
from models.text.clip import RENAMES

_OLDER = tuple(
    (f"self_attn.{name}_proj", f"self_attn.to_{name}") for name in ("q", "k", "v", "out")
)


def clip_spelling(network: str, folder: str, kohya: tuple[str, ...], comfy: str) -> Spelling:
    """Return the naming scheme of a CLIP text encoder's layers.

    Args:
        network: its name in the pipeline's weights.
        folder: its name in diffusers.
        kohya: prefixes of its names in kohya's style.
        comfy: its name in ComfyUI.
    """
    heads = (folder, f"text_encoders.{comfy}.transformer")
    return Spelling(
        network=network,
        renames=RENAMES,
        dotted=tuple(f"{head}.{more}" for head in heads for more in ("", "text_model.")),
        underscored=tuple(f"{head}_{more}" for head in kohya for more in ("text_model_", "")),
        synonyms=_OLDER,
    )
