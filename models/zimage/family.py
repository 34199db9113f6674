"""Z-Image: its checkpoints, and the configs of the published ones.

Source: Tongyi-MAI/Z-Image-Turbo and Tongyi-MAI/Z-Image, which differ in the schedule's shift.
"""

from __future__ import annotations

from models.interface.family import (
    Family,
    PublishedCheckpoint,
    SingleFiles,
    config_files,
    with_control,
)
from models.text.published import QWEN3_4B
from models.vae.published import FLUX_1

PIPELINES = ("ZImagePipeline", "ZImageImg2ImgPipeline", "ZImageInpaintPipeline")
TRANSFORMER = {"axes_lens": [1536, 512, 512]}
"""Fields of the transformer that differ from diffusers' defaults (`ZImageConfig`)."""
NETWORKS = {"transformer": TRANSFORMER, "text_encoder": QWEN3_4B, "vae": FLUX_1}
CONTROLNET = {
    "add_control_noise_refiner": "control_noise_refiner",
    "control_in_dim": 33,
    "control_layers_places": [*range(0, 30, 2)],
    "control_refiner_layers_places": [0, 1],
}
"""Z-Image-Turbo-Fun-Controlnet-Union-2.1 of alibaba-pai, which has no modes."""
SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "use_dynamic_shifting": False,
}

FILES = {
    name: config_files(PIPELINES[0], {**SCHEDULER, "shift": shift}, NETWORKS)
    for name, shift in (("z-image-turbo", 3.0), ("z-image", 6.0))
}

FAMILY = Family(
    "zimage",
    "Z-Image",
    dict.fromkeys(PIPELINES, f"{__package__}.load"),
    options=frozenset({"controls", "token_buckets"}),
    single_files=SingleFiles(("text_encoder", "vae"), "layers and noise_refiner"),
    published={
        **{name: PublishedCheckpoint(files) for name, files in FILES.items()},
        "z-image-turbo-controlnet-union-2.1": with_control(FILES["z-image-turbo"], CONTROLNET),
    },
)
