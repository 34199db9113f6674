from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.spec.prompt_syntax import escaped
from models.spec.upscalers import Enlarger
from service.recipes.parameters import parameters_of, parse_parameters
from service.recipes.recipe import generator, recipe_of
from tests.service.recipes.examples import recipe
from tests.service.standin import SPEC

# A file of AUTOMATIC1111 1.10, as in its documentation.
THEIRS = """close-up photo of a fox, <lora:ink:0.8>
in snow
Negative prompt: grey,
blurred
Steps: 20, Sampler: Euler a, Schedule type: Karras, CFG scale: 7, Seed: 965400086, Size: 512x768, \
Model hash: 84d76a0328, Model: v1-5, Clip skip: 2, Lora hashes: "ink: aad6f1a4b9d8, b: 12", \
Version: v1.10.1"""


def test_parameters_match_automatic1111() -> None:
    assert parameters_of(recipe(prompt="a fox", negative_prompt="grey,\nblurred")) == (
        "a fox <lora:ink:0.8>\n"
        "Negative prompt: grey,\nblurred\n"
        "Steps: 4, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 3.5, Seed: 6, Size: 40x24, "
        "Model hash: stand-in, Model: flux-demo, Denoising strength: 0.6, "
        f'Lora hashes: "ink: ababababab", Version: {generator()}'
    )


def test_prompts_are_escaped_like_automatic1111() -> None:
    """Brackets of a plain prompt are text, which AUTOMATIC1111 writes with a backslash."""
    prompts = {"prompt": "a fox (35 mm)", "negative_prompt": "[grey]"}
    plain = parse_parameters(parameters_of(recipe(**prompts)))
    weighted = parse_parameters(parameters_of(recipe(**prompts, prompt_syntax="weighted")))
    assert plain["Prompt"].startswith(r"a fox \(35 mm\)")
    assert plain["Negative prompt"] == r"\[grey\]"
    assert weighted["Prompt"].startswith("a fox (35 mm)")
    assert weighted["Negative prompt"] == "[grey]"


def test_numbers_keep_all_digits() -> None:
    loras = [{"name": "ink", "scale": 0.1234567}]
    exact = recipe(prompt="a", guidance_scale=7.1234567, strength=1.0, loras=loras)
    parsed = parse_parameters(parameters_of(exact))
    assert parsed["Prompt"] == "a <lora:ink:0.1234567>"
    assert (parsed["CFG scale"], parsed["Denoising strength"]) == ("7.1234567", "1")


def test_hires_steps_of_a_models_enlarger_are_recorded() -> None:
    enlarger = Enlarger(scale=2, second={"num_inference_steps": 3})
    spec = SPEC.model_copy(update={"enlargers": {"own": enlarger}})
    hires = {"width": 80, "height": 48, "upscaler": "own"}
    request = {"width": 40, "height": 24, "num_inference_steps": 9, "hires": hires}
    assert recipe_of(request, 7, spec).hires_steps == 3


def test_steps_of_hires_fix_are_those_that_run() -> None:
    """AUTOMATIC1111's strength of hires fix skips no steps."""
    hires = {"width": 80, "height": 48, "upscaler": "latent"}
    fields = {**hires, "strength": 0.7, "num_inference_steps": 10}
    parsed = parse_parameters(parameters_of(recipe(hires=fields)))
    assert (parsed["Hires steps"], parsed["Denoising strength"]) == ("7", "0.7")
    assert (parsed["Hires resize-1"], parsed["Hires upscaler"]) == ("80", "Latent")
    assert "Hires steps" not in parse_parameters(parameters_of(recipe()))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"timestep_spacing": "trailing"}, "SGM Uniform"),
        ({"timestep_spacing": "linspace"}, "Uniform"),
        ({"timestep_spacing": "linspace", "use_beta_sigmas": True}, "Beta"),
        ({"timestep_spacing": "leading"}, None),
        ({}, None),
    ],
)
def test_schedule_has_its_automatic1111_name(options: dict[str, Any], name: str | None) -> None:
    scheduler = {"name": "euler", **options}
    parsed = parse_parameters(parameters_of(recipe(scheduler=scheduler)))
    assert parsed.get("Schedule type") == name


def test_automatic1111_parameters_are_parsed() -> None:
    assert parse_parameters(THEIRS) == {
        "Prompt": "close-up photo of a fox, <lora:ink:0.8>\nin snow",
        "Negative prompt": "grey,\nblurred",
        "Steps": "20",
        "Sampler": "Euler a",
        "Schedule type": "Karras",
        "CFG scale": "7",
        "Seed": "965400086",
        "Size-1": "512",
        "Size-2": "768",
        "Model hash": "84d76a0328",
        "Model": "v1-5",
        "Clip skip": "2",
        "Lora hashes": "ink: aad6f1a4b9d8, b: 12",
        "Version": "v1.10.1",
    }


def test_its_own_pattern_finds_every_pair() -> None:
    # Source: AUTOMATIC1111, modules/infotext_utils.py, re_param_code.
    pattern = re.compile(r'\s*(\w[\w \-/]+):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)')
    last = parameters_of(recipe(model='a, "b": c')).splitlines()[-1]
    pairs = dict(pattern.findall(last))
    assert pairs["Model"] == r'"a, \"b\": c"'
    assert (pairs["Steps"], pairs["Size"], pairs["Seed"]) == ("4", "40x24", "6")
    assert len(pairs) == len(parse_parameters(last)) - 3  # two are prompts, and a size is two


@pytest.mark.parametrize("text", ["", "a fox", "a: b, c: d", "Negative prompt: grey"])
def test_a_text_without_settings_is_a_prompt(text: str) -> None:
    parsed = parse_parameters(text)
    assert parsed.keys() == {"Prompt", "Negative prompt"}
    assert text.endswith(parsed["Prompt"] + parsed["Negative prompt"])


LINE = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)


@settings(deadline=None, derandomize=True)  # on a busy machine some take longer than 200 ms
@given(prompt=LINE, model=st.text(), seed=st.integers(0, 2**64 - 1))
def test_settings_survive_any_prompt_and_name(prompt: str, model: str, seed: int) -> None:
    made = recipe(prompt=prompt, negative_prompt=None, loras=[], model=model)
    parsed = parse_parameters(parameters_of(made.model_copy(update={"fingerprint": ""})))
    assert (parsed["Steps"], parsed["Size-1"], parsed["Seed"]) == ("4", "40", "6")
    if not prompt.startswith("Negative prompt:"):
        assert parsed["Prompt"] == escaped(prompt)


@pytest.mark.timeout(60)  # by backtracking it would take hours
@pytest.mark.parametrize("piece", ["a", " ", "a:", 'a:"', 'a:"\\",', "\n", "a: "])
def test_hostile_text_is_parsed_fast(piece: str) -> None:
    parse_parameters(piece * 2**18)


@settings(deadline=None, derandomize=True)
@given(st.text())
def test_any_text_is_read(text: str) -> None:
    parse_parameters(text)
