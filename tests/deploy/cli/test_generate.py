"""`atelier generate`: request fields from options, and output paths."""

from __future__ import annotations

from pathlib import Path

import pytest

import atelier
from deploy.cli.output_files import format_of, path_of
from deploy.cli.request_options import body_of
from service.schemas.request import GenerateRequest


def test_options_become_fields_of_the_request(tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    image.write_bytes(b"x")
    options = ["--image", image, "--mask", image, "--last-image", image, "--fps", 8]
    options += ["--reference-image", image, "--reference-image", image]
    options += ["--control", f"{image},name=canny,scale=0.5", "--image-prompt", image]
    options += ["--control-video", image, "--mask-video", image, "--conditioning-scale", 0.5]
    options += ["--pose-video", image, "--face-video", image, "--background-video", image]
    options += ["--num-frames", 17, "--guidance-2", 3.0, "--guidance-rescale", 0.7]
    options += ["--scheduler", "unipc,flow_shift=3.0,solver_type=bh2,lower_order_final=false"]
    options += ["--upscale", "photo,scale=2", "--hires", "scale=1.5,upscaler=photo"]
    options += ["--quality", "fast", "-o", tmp_path / "clip.webm"]
    args = atelier.parser().parse_args(["generate", "a star", *map(str, options)])
    assert body_of(args) == {
        "prompt": "a star",
        "quality": "fast",
        "image": "eA==",
        "mask_image": "eA==",
        "last_image": "eA==",
        "reference_images": ["eA==", "eA=="],
        "control": [{"image": "eA==", "name": "canny", "scale": 0.5}],
        "image_prompts": [{"image": "eA=="}],
        "control_video": "eA==",
        "pose_video": "eA==",
        "face_video": "eA==",
        "background_video": "eA==",
        "mask_video": "eA==",
        "conditioning_scale": [0.5],
        "upscale": {"name": "photo", "scale": 2},
        "hires": {"scale": 1.5, "upscaler": "photo"},
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


def test_quality_is_a_preset_or_a_minimum_psnr() -> None:
    args = atelier.parser().parse_args(["generate", "a star", "--quality", "min_psnr_db=28.5"])
    assert body_of(args)["quality"] == {"min_psnr_db": 28.5}


def test_hires_fix_is_switched_off() -> None:
    """`none` differs from an absent option, which means the model's default."""
    parse = atelier.parser().parse_args
    assert body_of(parse(["generate", "a star", "--hires", "none"]))["hires"] is None
    assert "hires" not in body_of(parse(["generate", "a star"]))


def test_every_field_of_the_schema_is_an_option_with_help() -> None:
    generate = atelier.parser()._subparsers._group_actions[0].choices["generate"]
    generate.complete()
    helps = {action.dest: action.help for action in generate._actions}
    assert helps.keys() >= GenerateRequest.model_fields.keys()
    assert [name for name, text in helps.items() if not text] == []


def test_options_of_every_kind(tmp_path: Path) -> None:
    line = "--original-size 480,640 --sigmas 0.9,0.5 --webhook http://a.example/ --priority low"
    line += " --metadata a=1 --metadata b=x=y --deadline 30 --lora ink:-0.8 --lora oil"
    args = atelier.parser().parse_args(["generate", "a star", *line.split()])
    assert body_of(args) == {
        "prompt": "a star",
        "original_size": [480, 640],
        "sigmas": [0.9, 0.5],
        "webhook": {"url": "http://a.example/"},
        "priority": "low",
        "metadata": {"a": "1", "b": "x=y"},
        "deadline_s": 30.0,
        "loras": [{"name": "ink", "scale": -0.8}, {"name": "oil"}],
    }


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--original-size", "480,wide", "must be numbers, as in 1,2, not '480,wide'"),
        ("--metadata", "a", "must be NAME=TEXT, not 'a'"),
        ("--lora", "ink:much", "must be NAME or NAME:SCALE, not 'ink:much'"),
        ("--steps", "many", "must be an integer, not 'many'"),
        ("--steps", "0", "must be at least 1"),
        ("--strength", "0", "must be more than 0"),
        ("--guidance", "nan", "must be at least 0"),
        ("--priority", "top", "invalid choice: 'top'"),
    ],
)
def test_a_wrong_value_is_refused(
    option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        atelier.parser().parse_args(["generate", "a star", option, value])
    assert said in capsys.readouterr().err


def test_output_paths(tmp_path: Path) -> None:
    item = {"content_type": "image/png", "seed": 7, "index": 2}
    video = {"content_type": "video/mp4", "seed": 7, "index": 0}
    assert path_of(None, video, 1) == Path("atelier-7.mp4")
    assert path_of(tmp_path / "a.mp4", video, 1) == tmp_path / "a.mp4"
    assert path_of(tmp_path / "a.png", item, 3) == tmp_path / "a-2.png"
    assert path_of(tmp_path / "a.png", item, 11) == tmp_path / "a-02.png"
    assert format_of(tmp_path / "frames") == "png"
    assert path_of(tmp_path / "frames", item, 101) == tmp_path / "frames" / "002.png"
    assert (tmp_path / "frames").is_dir()
