"""Validation of a request against its model: defaults, task, steps, schedulers and sizes."""

from __future__ import annotations

import pytest

from models.media.image_files import ImageFile
from models.spec.image_prompts import ImagePrompt
from models.spec.model_spec import ModelSpec, Size, Sizes
from models.spec.passes import denoising_steps
from models.spec.quality_presets import Quality
from service.errors.problems import Invalid, NotAcceptable
from service.schemas.request import GenerateRequest
from service.settings.limits import LimitSettings
from service.validation.resolved_fields import (
    MAX_RANDOM_SEED,
    ResolvedFields,
    resolve,
    with_size_of,
)
from tests.service.standin import SPEC, VIDEO

LIMITS = LimitSettings()
TO_VIDEO = VIDEO.model_copy(update={"tasks": ("image-to-video",)})
TO_LAST = TO_VIDEO.model_copy(update={"needed": frozenset({"last_image"})})
INPAINTING = SPEC.model_copy(
    update={"tasks": ("inpainting",), "fields": SPEC.fields | {"mask_image", "timesteps"}}
)
NOISY = SPEC.model_copy(
    update={
        "family": "sdxl",
        "fields": SPEC.fields | {"timesteps", "scheduler"},
        "task_defaults": {"image-to-image": {"strength": 0.3}},
        "strength_rounds": "down",
        "sigmas_are": "noise levels",
        "schedulers": {"euler": {}, "ddim": {}, "lcm": {}},
        "scheduler": "ddim",
        "step_lists": {
            "euler": frozenset({"timesteps", "sigmas"}),
            "ddim": frozenset(),
            "lcm": frozenset({"timesteps"}),
        },
    }
)
"""Fields as in SDXL."""


WITH_ALPHA = SPEC.model_copy(update={"has_alpha": True, "fields": SPEC.fields | {"upscale"}})
READS_IMAGES = SPEC.model_copy(
    update={
        "fields": SPEC.fields | {"image_prompts"},
        "image_prompts": {
            "redux": ImagePrompt(tokens=9),
            "face": ImagePrompt(tokens=4),
        },
        "limits": SPEC.limits.model_copy(update={"max_image_prompts": 2}),
    }
)


def resolved(
    spec: ModelSpec = SPEC, limits: LimitSettings = LIMITS, **fields: object
) -> ResolvedFields:
    return resolve(GenerateRequest.model_validate({"prompt": "a cat"} | fields), spec, limits)


def wrong_fields(
    spec: ModelSpec, limits: LimitSettings = LIMITS, **fields: object
) -> dict[str, str]:
    """Error messages by field of a rejected request."""
    request = GenerateRequest.model_validate({"prompt": "a cat"} | fields)
    with pytest.raises(Invalid) as refused:
        resolve(request, spec, limits)
    return {error.field: error.message for error in refused.value.errors}


@pytest.mark.parametrize(
    ("steps", "strength", "run"),
    [(20, 1.0, 20), (20, 0.6, 12), (4, 0.6, 3), (10, 0.05, 1), (50, 0.3, 15), (10, 1e-30, 0)],
)
def test_steps_that_run(steps: int, strength: float, run: int) -> None:
    """Same as diffusers' get_timesteps: steps minus the integer part of the skipped share."""
    assert denoising_steps(steps, strength) == run


@pytest.mark.parametrize(("steps", "strength", "run"), [(4, 0.6, 2), (3, 0.3, 0), (20, 1.0, 20)])
def test_denoising_steps_round_the_strength_down(steps: int, strength: float, run: int) -> None:
    assert denoising_steps(steps, strength, "down") == run


def test_a_strength_that_leaves_no_step_of_this_family_is_refused() -> None:
    assert "no step of 3" in wrong_fields(NOISY, image="x", num_inference_steps=3)["strength"]
    assert resolved(NOISY, image="x", num_inference_steps=4).steps == 1


def test_steps_count_over_all_images() -> None:
    assert resolved(num_images=3, num_inference_steps=5).steps == 15
    assert resolved(num_images=2, image="x", strength=0.5).steps == 4


def test_random_seed_fits_every_reader() -> None:
    seeds = {resolved().fields["seed"] for _ in range(20)}
    assert len(seeds) > 1 and max(seeds) < MAX_RANDOM_SEED


def test_strength_applies_only_with_an_image() -> None:
    assert "strength" not in resolved().fields
    assert resolved(image="x").fields["strength"] == 0.6
    assert (resolved().task, resolved(image="x").task) == ("text-to-image", "image-to-image")


def test_sigmas_decide_the_steps() -> None:
    assert resolved(sigmas=[1.0, 0.5, 0.25]).fields["num_inference_steps"] == 3
    euler = {"name": "euler"}
    for last in (0, 0.25):  # target of the last step
        result = resolved(NOISY, sigmas=[14.6, 0.5, last], scheduler=euler)
        assert result.fields["num_inference_steps"] == result.steps == 2
    assert resolved(NOISY, sigmas=[9, 0], num_inference_steps=1, scheduler=euler).steps == 1


def test_request_is_validated_as_its_family_class() -> None:
    """A worker would reject the request, although the model's limits permit it."""
    long = SPEC.model_copy(
        update={"limits": SPEC.limits.model_copy(update={"max_sequence_length": 1024})}
    )
    wrong = wrong_fields(long, max_sequence_length=513)
    assert wrong == {"max_sequence_length": "must be at most 512"}
    newer = long.model_copy(update={"family": "a family of a newer release"})
    assert resolved(newer, max_sequence_length=513).fields["max_sequence_length"] == 513


@pytest.mark.parametrize(
    ("spec", "sigmas", "said"),
    [
        (SPEC, [14.6, 0.5], "at most 1"),
        (SPEC, [1.0, 0], "above 0"),
        (NOISY, [14.6], "a final one"),
        (NOISY, [0.5, 14.6], "must fall"),
    ],
)
def test_sigmas_have_the_family_s_meaning(spec: ModelSpec, sigmas: list[float], said: str) -> None:
    fields = {"scheduler": {"name": "euler"}} if spec is NOISY else {}
    assert said in wrong_fields(spec, sigmas=sigmas, **fields)["sigmas"]


@pytest.mark.parametrize(
    ("name", "field"), [("ddim", "timesteps"), ("lcm", "sigmas"), (None, "timesteps")]
)
def test_steps_that_the_scheduler_does_not_take_are_refused(name: str | None, field: str) -> None:
    fields = {"scheduler": {"name": name}} if name else {}
    message = wrong_fields(NOISY, **{field: [900.0, 100.0]}, **fields)[field]
    assert f"the scheduler {name or 'ddim'} does not accept them" in message


def test_timesteps_decide_the_steps_too() -> None:
    images = {"image": "x", "mask_image": "x", "strength": 1.0}
    assert resolved(INPAINTING, timesteps=[900, 500.5, 0], **images).steps == 3
    for wrong, named in (
        ({"timesteps": [500, 900]}, "timesteps"),
        ({"timesteps": [900, 500], "num_inference_steps": 3}, "timesteps"),
        ({"timesteps": [900, 500], "sigmas": [1.0, 0.5]}, "timesteps"),
        ({"sigmas": [0]}, "sigmas"),
    ):
        assert named in wrong_fields(INPAINTING, **images, **wrong)


def test_a_video_model_makes_videos() -> None:
    assert resolved(VIDEO).task == "text-to-video"
    assert resolved(VIDEO, image="x").task == "image-to-video"
    assert resolved(VIDEO).output["format"] == "mp4"
    assert resolved(VIDEO, output={"format": "png"}).output["format"] == "png"


@pytest.mark.parametrize(
    ("spec", "fields", "named"),
    [
        (TO_VIDEO, {}, {"image": "image-to-video: send the input image"}),
        (
            TO_VIDEO,
            {"last_image": "x"},
            {"image": "send", "last_image": "also send the first image"},
        ),
        (VIDEO, {"last_image": "x"}, {"last_image": "also send the first image"}),
        (VIDEO, {"image": "x", "mask_image": "x"}, {"mask_image": "does not support"}),
        (TO_LAST, {"image": "x"}, {"last_image": "ends with, as last_image"}),
        (
            VIDEO,
            {"image": "x", "last_image": "x", "num_frames": 1},
            {"num_frames": "more than 1 with last_image"},
        ),
        (INPAINTING, {"image": "x"}, {"mask_image": "white where"}),
        (INPAINTING, {}, {"image": "send", "mask_image": "send"}),
        (INPAINTING, {"mask_image": "x"}, {"mask_image": "also send the image that it masks"}),
        (SPEC, {"image": "x", "mask_image": "x"}, {"mask_image": "does not support"}),
        (SPEC, {"last_image": "x", "image": "x"}, {"last_image": "does not support"}),
    ],
)
def test_required_images_of_a_task_are_named(
    spec: ModelSpec, fields: dict[str, str], named: dict[str, str]
) -> None:
    wrong = wrong_fields(spec, **fields)
    assert wrong.keys() == named.keys()
    for field, words in named.items():
        assert words in wrong[field]


@pytest.mark.parametrize(
    ("frames", "said"),
    [(6, "multiple of 4: 5 or 9"), (3, "1 or 5"), (18, "17 at most"), (21, "17 at most")],
)
def test_invalid_frame_count_error_names_the_nearest(frames: int, said: str) -> None:
    assert said in wrong_fields(VIDEO, num_frames=frames)["num_frames"]


@pytest.mark.parametrize(
    ("frames", "said"), [(1, "5 more than a multiple of 8: 5"), (9, "5 or 13")]
)
def test_frames_of_a_network_that_joins_several_into_a_token(frames: int, said: str) -> None:
    limits = VIDEO.limits.model_copy(update={"min_frames": 5, "frames_multiple": 8})
    joins = VIDEO.model_copy(update={"limits": limits})
    assert wrong_fields(joins, num_frames=frames)["num_frames"].endswith(said)
    assert resolved(joins, num_frames=13).fields["num_frames"] == 13


def test_video_limits_of_the_settings_apply() -> None:
    short, small = LimitSettings(max_frames=12), LimitSettings(max_clip_pixels=96 * 64 * 5)
    assert "9 at most" in wrong_fields(VIDEO, short, num_frames=13)["num_frames"]
    assert "times num_frames" in wrong_fields(VIDEO, small, num_frames=9)["num_frames"]
    assert resolved(VIDEO).fields["num_frames"] == 5


@pytest.mark.parametrize("frames", [1, 5, 17])
def test_frames_that_a_model_has(frames: int) -> None:
    assert resolved(VIDEO, num_frames=frames, fps=24).fields["num_frames"] == frames


@pytest.mark.parametrize(
    ("scheduler", "field", "said"),
    [
        ({"name": "ddim"}, "scheduler.name", "no scheduler 'ddim'; available: unipc, euler"),
        ({"name": "unipc", "shift": 3}, "scheduler.shift", "unipc accepts flow_shift, lower_order"),
        ({"name": "euler", "shift": 3}, "scheduler.shift", "euler accepts no options"),
        ({"name": "unipc", "flow_shift": "3"}, "scheduler.flow_shift", "must be a number"),
        ({"name": "unipc", "flow_shift": True}, "scheduler.flow_shift", "must be a number"),
        ({"name": "unipc", "flow_shift": -1}, "scheduler.flow_shift", "at least 0"),
        ({"name": "unipc", "solver_order": 4}, "scheduler.solver_order", "at most 3"),
        ({"name": "unipc", "solver_order": 1.5}, "scheduler.solver_order", "a whole number"),
        ({"name": "unipc", "solver_type": "bh3"}, "scheduler.solver_type", "bh1 or bh2"),
        ({"name": "unipc", "lower_order_final": 1}, "scheduler.lower_order_final", "true or"),
        (
            {"name": "unipc", "use_karras_sigmas": True, "use_beta_sigmas": True},
            "scheduler.use_beta_sigmas",
            "cannot be true together with use_karras_sigmas",
        ),
    ],
)
def test_invalid_scheduler_is_rejected(scheduler: dict[str, object], field: str, said: str) -> None:
    assert said in wrong_fields(VIDEO, scheduler=scheduler)[field]


def test_a_scheduler_and_its_options_are_kept() -> None:
    chosen = {"name": "unipc", "flow_shift": 3, "solver_order": 2, "solver_type": "bh2"}
    chosen |= {"lower_order_final": False, "use_karras_sigmas": True, "use_beta_sigmas": False}
    assert resolved(VIDEO, scheduler=chosen).fields["scheduler"] == chosen
    assert resolved(VIDEO, scheduler="UniPC").fields["scheduler"] == {"name": "unipc"}
    bare = VIDEO.model_copy(update={"schedulers": {}})
    message = wrong_fields(bare, scheduler={"name": "unipc"})["scheduler.name"]
    assert "none but the checkpoint's own" in message


def test_video_format() -> None:
    """The Accept header selects the format if the request does not. Frames are several files."""
    default_request = GenerateRequest.model_validate({"prompt": "a cat"})

    def chosen(*media_types: str, **fields: object) -> str:
        request = GenerateRequest.model_validate({"prompt": "a cat"} | fields)
        return str(resolve(request, VIDEO, LIMITS, media_types).output["format"])

    assert chosen("video/webm") == "webm"
    assert chosen("image/png", "image/gif") == "gif", "one file rather than five"
    assert chosen("image/png", num_frames=1) == "png"
    with pytest.raises(Invalid, match="one file per frame"):
        resolve(default_request, VIDEO, LIMITS, ("image/png",))
    with pytest.raises(NotAcceptable):
        resolve(default_request, VIDEO, LIMITS, ("image/webp",))
    with pytest.raises(NotAcceptable):
        resolve(default_request, SPEC, LIMITS, ("video/mp4",))


def test_clip_skip_is_limited() -> None:
    limits = SPEC.limits.model_copy(update={"max_clip_skip": 2})
    shallow = SPEC.model_copy(update={"fields": SPEC.fields | {"clip_skip"}, "limits": limits})
    assert wrong_fields(shallow, clip_skip=3) == {"clip_skip": "must be 2 at most"}
    assert resolved(shallow, clip_skip=2).fields["clip_skip"] == 2


def test_settings_tighten_a_model_s_limits() -> None:
    tight = LimitSettings(max_side_px=64, max_steps=2, max_images=1, max_prompt_chars=3)
    request = GenerateRequest.model_validate({"prompt": "a cat", "num_images": 2})
    with pytest.raises(Invalid) as error:
        resolve(request, SPEC, tight)
    named = {error.field for error in error.value.errors}
    assert named == {"prompt", "width", "num_inference_steps", "num_images"}


def test_unsupported_task_is_named() -> None:
    only_text = SPEC.model_copy(update={"tasks": ("text-to-image",)})
    with pytest.raises(Invalid, match="supports text-to-image, not image-to-image"):
        resolved(only_text, image="x")


def test_a_preset_of_quality_is_one_of_the_model() -> None:
    """A file's quality is another field, below `output`."""
    spec = SPEC.model_copy(
        update={
            "fields": SPEC.fields | {"quality"},
            "defaults": {**SPEC.defaults, "quality": "exact"},
            "qualities": {"fast": Quality(eight_bit="w8a16")},
        }
    )
    assert resolved(spec).fields["quality"] == "exact"
    chosen = resolved(spec, quality="fast", output={"format": "jpeg", "quality": 80})
    assert (chosen.fields["quality"], chosen.output["quality"]) == ("fast", 80)
    assert "available: exact, fast" in wrong_fields(spec, quality="slow")["quality"]
    narrow = spec.model_copy(update={"has_exact": False})
    assert "available: fast" in wrong_fields(narrow, quality="exact")["quality"]
    assert "does not support" in wrong_fields(SPEC, quality="fast")["quality"]


def test_unlisted_sizes_are_rejected_with_the_listed_ones() -> None:
    listed = (Size(width=96, height=64, num_frames=5), Size(width=64, height=64))
    spec = VIDEO.model_copy(update={"sizes": Sizes(mode="listed", listed=listed)})
    assert resolved(spec).fields["width"] == 96
    assert resolved(spec, width=64, num_frames=13).fields["num_frames"] == 13, (
        "any number of frames"
    )
    message = "the model 'wan-demo' supports only these sizes: 96 x 64 x 5 frames, 64 x 64"
    assert wrong_fields(spec, width=128) == {"width": message}
    assert wrong_fields(spec, num_frames=9) == {"num_frames": message}


def test_a_listed_size_has_a_listed_length_of_text() -> None:
    """Any other length would have to be compiled too."""
    sides = {"width": 96, "height": 64}
    listed = tuple(Size(**sides, max_sequence_length=length) for length in (64, 32))
    spec = SPEC.model_copy(update={"sizes": Sizes(mode="listed", listed=listed)})
    assert resolved(spec, max_sequence_length=32).fields["max_sequence_length"] == 32
    errors = {"max_sequence_length": "must be 32 or 64 with this size"}
    assert wrong_fields(spec, max_sequence_length=33) == errors


def test_a_text_has_a_multiple_of_tokens() -> None:
    limits = SPEC.limits.model_copy(update={"sequence_length_multiple": 32})
    spec = SPEC.model_copy(update={"limits": limits})
    assert resolved(spec, max_sequence_length=96).fields["max_sequence_length"] == 96
    errors = {"max_sequence_length": "must be a multiple of 32"}
    assert wrong_fields(spec, max_sequence_length=80) == errors


WEIGHTED = SPEC.model_copy(
    update={"fields": SPEC.fields | {"prompt_syntax", "negative_prompt", "prompt_2"}}
)


@pytest.mark.parametrize("field", ["prompt", "negative_prompt", "prompt_2"])
@pytest.mark.parametrize(
    ("prompt", "said"), [("(a:101)", "a weight is 101"), ("[" * 101, "more than 100 brackets")]
)
def test_weights_out_of_range_are_refused_by_their_prompt(
    field: str, prompt: str, said: str
) -> None:
    assert said in wrong_fields(WEIGHTED, prompt_syntax="weighted", **{field: prompt})[field]
    assert resolved(WEIGHTED, **{field: prompt}).fields[field] == prompt


def test_weights_are_not_looked_for_beyond_the_longest_prompt() -> None:
    """Parsing a megabyte of brackets would block the event loop for a second."""
    errors = wrong_fields(WEIGHTED, prompt_syntax="weighted", prompt="a" * 10_000 + "(a:101)")
    assert errors == {"prompt": "must have 10000 characters at most"}


def test_a_syntax_that_a_model_does_not_read_is_refused() -> None:
    assert "prompt_syntax" in wrong_fields(SPEC, prompt_syntax="weighted")


@pytest.mark.parametrize(
    ("names", "field", "said"),
    [
        (["redux", "face", "face"], "image_prompts", "has 3 images; the model accepts 2 at most"),
        (["face", "style"], "image_prompts.1.name", "must be face or redux"),
        ([None], "image_prompts.0.name", "must be face or redux"),
    ],
)
def test_image_prompts_that_the_model_cannot_read_are_refused(
    names: list[str | None], field: str, said: str
) -> None:
    entries = [{"image": "x", "name": name} for name in names]
    errors = wrong_fields(READS_IMAGES, image_prompts=entries)
    assert list(errors) == [field]
    assert said in errors[field]


def test_image_prompts_that_the_model_reads_are_served() -> None:
    entries = [{"image": "x", "name": "face", "scale": 0.5}]
    served = resolved(READS_IMAGES, image_prompts=entries)
    assert served.fields["image_prompts"] == [{"image": "x", "name": "face", "scale": 0.5}]


def test_minimum_steps_of_a_model_are_enforced() -> None:
    two = SPEC.model_copy(update={"limits": SPEC.limits.model_copy(update={"min_steps": 2})})
    assert "2 steps at least" in wrong_fields(two, num_inference_steps=1)["num_inference_steps"]
    assert "2 steps at least" in wrong_fields(two, sigmas=[1.0])["sigmas"]
    assert resolved(two, num_inference_steps=2).steps == 2


@pytest.mark.parametrize(
    ("given", "size"),
    [({}, (512, 384)), ({"width": 256}, (256, 384)), ({"width": 256, "height": 32}, (256, 32))],
)
def test_open_size_defaults_to_the_image_size(given: dict[str, int], size: tuple[int, int]) -> None:
    request = GenerateRequest.model_validate({"prompt": "a cat", "image": "x", **given})
    sized = with_size_of(request, ImageFile("image/png", 513, 399), SPEC)
    assert (sized.width, sized.height) == size


def test_transparency_is_refused_by_name() -> None:
    cases = (
        (SPEC, {}, "does not generate transparent images"),
        (WITH_ALPHA, {"output": {"format": "jpeg"}}, "jpeg cannot be transparent: use png or webp"),
    )
    for spec, fields, message in cases:
        output = {**fields.get("output", {}), "background": "transparent"}
        assert message in wrong_fields(spec, output=output)["output.background"]


def test_only_transparency_is_stored() -> None:
    kept = {
        name: resolved(WITH_ALPHA, output={"background": name}).output.get("background")
        for name in ("opaque", "transparent")
    }
    assert kept == {"opaque": None, "transparent": "transparent"}
