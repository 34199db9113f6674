"""Suite entries of Wan, VACE and Animate."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from models.spec import video_files
from tests.families.suite.entry import (
    FEW,
    LEAST,
    T5,
    Family,
    Fields,
    drawn_by_diffusers,
    image_file,
)
from workers.media.video import encode_video


def _wan(folder: Path) -> Path:
    from tests.parity.tiny_wan import make_wan

    return make_wan(folder, transformer={"num_attention_heads": 8, "num_layers": 2}, t5=T5)


def _least_wan(folder: Path) -> Path:
    from tests.parity.tiny_wan import make_wan

    return make_wan(folder, transformer={"num_layers": 2})


def _vace(folder: Path) -> Path:
    from tests.parity.tiny_wan import make_wan

    sizes = {"num_attention_heads": 8, "num_layers": 2}
    return make_wan(folder, vace={"vace_layers": (0, 1)}, transformer=sizes, t5=T5)


def _least_vace(folder: Path) -> Path:
    from tests.parity.tiny_wan import make_wan

    return make_wan(folder, vace={"vace_layers": (0,)}, transformer={"num_layers": 2})


def _animate(folder: Path) -> Path:
    from tests.parity.tiny_wan import make_wan

    sizes = {"num_attention_heads": 8, "num_layers": 4}
    return make_wan(folder, animate={}, transformer=sizes, t5=T5)


def _least_animate(folder: Path) -> Path:
    from tests.parity.tiny_wan import make_wan

    least = {"num_layers": 2, "inject_face_latents_blocks": 2}
    return make_wan(folder, animate=least)


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
    """Draw a request with `CONTROL`, whose video is shorter: the missing frames are grey."""
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
    """Draw a request with `CHARACTER`, whose videos run forwards and backwards."""
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


PLAIN = Family(
    place=5,
    make=_wan,
    least=_least_wan,
    request={**FEW, "width": 48, "height": 80, "num_frames": 9, "guidance_scale": 4.0},
    least_request={
        **LEAST,
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
    published=(
        *("wan2.1-1.3b", "wan2.1-14b", "wan2.1-i2v-14b"),
        *("wan2.2-a14b", "wan2.2-i2v-a14b", "wan2.2-5b"),
    ),
)

ENTRIES: Mapping[str, Family] = {
    "wan": PLAIN,
    "wan-vace": replace(
        PLAIN,
        place=10,
        make=_vace,
        least=_least_vace,
        request={**PLAIN.request, **SCALED},
        least_request={**PLAIN.least_request, **SCALED},
        reference=_drawn_by_vace,
        published=("wan2.1-vace-1.3b", "wan2.1-vace-14b"),
        images=CONTROL,
        image_fields=SCALED,
    ),
    "wan-animate": replace(
        PLAIN,
        place=18,
        make=_animate,
        least=_least_animate,
        reference=_drawn_by_animate,
        published=("wan2.2-animate-14b",),
        images=CHARACTER,
    ),
}
