"""Original array names of Animate's face encoder, as used in single files.

There, biases of the motion encoder's convolutions have the shape [1, channels, 1, 1].

Source: Alibaba Wan Team, Wan2.2 (wan/modules/animate), as ComfyUI's comfy/ldm/wan/model_animate.py
has it.
"""

from __future__ import annotations

from models.checkpoint.authors_names import Fused, authors_renames
from models.checkpoint.key_mapping import Renames
from models.wan.key_mapping import FACE_RENAMES

_LAYERS: Fused = {
    "face_encoder.conv1_local.conv": ("face_encoder.conv1_local",),
    "face_encoder.conv2.conv": ("face_encoder.conv2",),
    "face_encoder.conv3.conv": ("face_encoder.conv3",),
    "face_encoder.out_proj": ("face_encoder.out_proj",),
}
_CONVS = r"motion_encoder\.enc\.net_app\.convs\."
_HALVING = (
    (r"conv1\.0\.weight", "first.layer.kernel"),
    (r"conv1\.1\.bias", "first.layer.bias"),
    (r"conv2\.1\.weight", "second.layer.kernel"),
    (r"conv2\.2\.bias", "second.layer.bias"),
    (r"skip\.1\.weight", "skip.layer.kernel"),
)
"""Arrays of a downsampling block. The blur kernels of the file are constants here."""


def authors_face_renames(halvings: int) -> Renames:
    """Return the rename rules of a motion encoder with this number of downsampling blocks."""
    return (
        *authors_renames(_LAYERS, FACE_RENAMES),
        (r"face_encoder\.padding_tokens", "learned"),
        (rf"{_CONVS}0\.0\.weight", "motion.image_in.layer.kernel"),
        (rf"{_CONVS}0\.1\.bias", "motion.image_in.layer.bias"),
        *(
            (rf"{_CONVS}{number + 1}\.{name}", f"motion.halving.{number}.{path}")
            for number in range(halvings)
            for name, path in _HALVING
        ),
        (rf"{_CONVS}{halvings + 1}\.weight", "motion.style_out.layer.kernel"),
        (rf"{_CONVS}.+\.kernel", ""),
        (r"motion_encoder\.enc\.fc\.(\d+)\.weight", r"motion.linears.\1.kernel"),
        (r"motion_encoder\.enc\.fc\.(\d+)\.bias", r"motion.linears.\1.bias"),
        (r"motion_encoder\.dec\.direction\.weight", "motion.directions"),
        (r"(?!motion_encoder\.|face_encoder\.).+", ""),
    )
