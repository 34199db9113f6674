"""Suite entries of Wan, VACE and Animate."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from models.media import video_files
from tests.families.suite.entry import (
    FEW,
    SMALLEST,
    T5,
    Fields,
    SuiteEntry,
    drawn_by_diffusers,
    image_file,
    tiny,
)
from workers.media.video import encode_video

wan = partial(tiny, "tiny_wan:make_wan")
MIN_LAYERS: Fields = {"num_layers": 2}
HEADS: Fields = {"num_attention_heads": 8}


def _clip(first: int = 9) -> bytes:
    """Return a file of five different frames."""
    frames = [Image.open(io.BytesIO(image_file(seed))) for seed in range(first, first + 5)]
    return encode_video(np.stack([np.asarray(frame) for frame in frames]), "mp4", 8)


CONTROL: Mapping[str, bytes] = {
    "control_video": _clip(),
    "mask_video": image_file(14, "L"),
    **{f"reference_images.{index}": image_file(15 + index) for index in range(2)},
}

SCALED: Fields = {"conditioning_scale": [0.8]}


def _drawn_by_vace(folder: Path, request: Fields) -> np.ndarray:
    """Generate a request with `CONTROL`, whose video is shorter: the missing frames are grey."""
    from diffusers.image_processor import VaeImageProcessor

    size = request["width"], request["height"]
    sent = video_files.frames(CONTROL["control_video"])
    covered = partial(VaeImageProcessor().resize, height=size[1], width=size[0], resize_mode="crop")
    resized = [covered(frame) for frame in sent]
    missing = request["num_frames"] - len(resized)
    mask, *references = (Image.open(io.BytesIO(CONTROL[name])) for name in [*CONTROL][1:])
    return drawn_by_diffusers(
        folder,
        {name: value for name, value in request.items() if name not in SCALED},
        frames=True,
        video=[*resized, *[Image.new("RGB", size, (128, 128, 128))] * missing],
        mask=[*[covered(mask).convert("L")] * len(resized), *[Image.new("L", size, 255)] * missing],
        reference_images=references,
        conditioning_scale=SCALED["conditioning_scale"][0],
    )


CHARACTER: Mapping[str, bytes] = {
    "image": image_file(20),
    "pose_video": _clip(21),
    "face_video": _clip(26),
    "background_video": _clip(31),
    "mask_video": image_file(36, "L"),
}


def _drawn_by_animate(folder: Path, request: Fields) -> np.ndarray:
    """Generate a request with `CHARACTER`, whose videos run forwards and backwards."""
    frames = request["num_frames"]
    places = [0, 1, 2, 3, 4, 3, 2, 1, 0][:frames]
    videos = {
        name: [*video_files.frames(file)] for name, file in CHARACTER.items() if "_video" in name
    }
    mask = Image.open(io.BytesIO(CHARACTER["mask_video"]))
    videos = {
        name: [mask if name == "mask_video" else video[place] for place in places]
        for name, video in videos.items()
    }
    return drawn_by_diffusers(
        folder,
        {name: value for name, value in request.items() if name != "num_frames"},
        frames=True,
        images={"image": CHARACTER["image"]},
        segment_frame_length=frames,
        mode="replace",
        **videos,
    )


PLAIN = SuiteEntry(
    place=5,
    make=wan(transformer={**HEADS, **MIN_LAYERS}, t5=T5),
    least=wan(transformer=MIN_LAYERS),
    request={**FEW, "width": 48, "height": 80, "num_frames": 9, "guidance_scale": 4.0},
    smallest_request={
        **SMALLEST,
        "prompt": "a red circle moves",
        "negative_prompt": "",
        "height": 48,
        "num_frames": 5,
        "fps": 8,
        "num_inference_steps": 4,
        "guidance_scale": 4.0,
        "max_sequence_length": 16,
    },
    reference=lambda folder, request: drawn_by_diffusers(folder, request, frames=True),
    guided={"guidance_scale": 4.0},
    unguided={"guidance_scale": 1.0},
    has_strength=False,
    published={
        "wan2.1-1.3b": "Wan 2.1 T2V 1.3B",
        "wan2.1-14b": "Wan 2.1 T2V 14B",
        "wan2.1-i2v-14b": "Wan 2.1 I2V 14B",
        "wan2.2-a14b": "Wan 2.2 T2V A14B",
        "wan2.2-i2v-a14b": "Wan 2.2 I2V A14B",
        "wan2.2-5b": "Wan 2.2 TI2V 5B",
    },
)

ENTRIES: Mapping[str, SuiteEntry] = {
    "wan": PLAIN,
    "wan-vace": replace(
        PLAIN,
        place=10,
        make=wan(vace={"vace_layers": (0, 1)}, transformer={**HEADS, **MIN_LAYERS}, t5=T5),
        least=wan(vace={"vace_layers": (0,)}, transformer=MIN_LAYERS),
        request={**PLAIN.request, **SCALED},
        smallest_request={**PLAIN.smallest_request, **SCALED},
        reference=_drawn_by_vace,
        published={
            "wan2.1-vace-1.3b": "Wan 2.1 VACE 1.3B",
            "wan2.1-vace-14b": "Wan 2.1 VACE 14B",
        },
        images=CONTROL,
        image_fields=SCALED,
    ),
    "wan-animate": replace(
        PLAIN,
        place=18,
        make=wan(animate={}, transformer={**HEADS, "num_layers": 4}, t5=T5),
        least=wan(animate={**MIN_LAYERS, "inject_face_latents_blocks": 2}),
        reference=_drawn_by_animate,
        published={"wan2.2-animate-14b": "Wan 2.2 Animate 14B"},
        images=CHARACTER,
    ),
}
