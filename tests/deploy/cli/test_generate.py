"""What `atelier generate` asks for, and where it writes."""

from __future__ import annotations

from pathlib import Path

import atelier
from deploy.cli.output_files import format_of, path_of
from deploy.cli.request_options import body_of


def test_options_become_fields_of_the_request(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"x")
    given = ["--image", picture, "--mask", picture, "--last-image", picture, "--fps", 8]
    given += ["--num-frames", 17, "--guidance-2", 3.0, "--guidance-rescale", 0.7]
    given += ["--scheduler", "unipc,flow_shift=3.0,solver_type=bh2,lower_order_final=false"]
    given += ["--quality", "fast", "-o", tmp_path / "clip.webm"]
    args = atelier._parser().parse_args(["generate", "a star", *map(str, given)])
    assert body_of(args) == {
        "prompt": "a star",
        "quality": "fast",
        "image": "eA==",
        "mask_image": "eA==",
        "last_image": "eA==",
        "fps": 8,
        "num_frames": 17,
        "guidance_scale_2": 3.0,
        "guidance_rescale": 0.7,
        "scheduler": {
            "name": "unipc",
            "flow_shift": 3.0,
            "solver_type": "bh2",
            "lower_order_final": False,
        },
        "output": {"format": "webm"},
    }


def test_where_outputs_go(tmp_path: Path) -> None:
    item = {"content_type": "image/png", "seed": 7, "index": 2}
    clip = {"content_type": "video/mp4", "seed": 7, "index": 0}
    assert path_of(None, clip, 1) == Path("atelier-7.mp4")
    assert path_of(tmp_path / "a.mp4", clip, 1) == tmp_path / "a.mp4"
    assert path_of(tmp_path / "a.png", item, 3) == tmp_path / "a-2.png"
    assert path_of(tmp_path / "a.png", item, 11) == tmp_path / "a-02.png"
    assert format_of(tmp_path / "frames") == "png"
    assert path_of(tmp_path / "frames", item, 101) == tmp_path / "frames" / "002.png"
    assert (tmp_path / "frames").is_dir()
