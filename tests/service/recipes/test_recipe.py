from __future__ import annotations

import json

from service.recipes.parameters import parameters_of
from service.recipes.recipe import OF_FILES, PRIVATE, PROMPTS, Recipe
from service.schemas.request import SERVICE_FIELDS, GenerateRequest
from tests.service.recipes.examples import REQUEST, recipe
from tests.service.standin import SPEC


def test_recipe_request_reproduces_its_image() -> None:
    made = recipe()
    body = {name: value for name, value in made.request.items() if name != "scheduler"}
    again = GenerateRequest.model_validate({**body, "loras": REQUEST["loras"]})
    assert (again.seed, again.num_images, again.prompt) == (6, None, REQUEST["prompt"])
    assert made.request["scheduler"] == REQUEST["scheduler"]
    assert (made.fingerprint, made.scheduler) == (SPEC.fingerprint, "dpmpp_2m")
    assert (made.loras, made.images) == ({"ink": "ab" * 32}, {"image": "cd" * 32})


def test_recipe_contains_no_client_data_and_no_images() -> None:
    text = recipe().to_json()
    assert "secret" not in text and "inputs" not in text and "inline" not in text
    assert not PRIVATE & json.loads(text)["request"].keys()


def test_every_field_of_the_service_is_decided_upon() -> None:
    """A new field that is not PRIVATE is written into every file: decide whether it may be."""
    written = SERVICE_FIELDS - PRIVATE
    assert written == {"model", "prompt", "seed", "output", "stop_at_step"}
    assert set(OF_FILES) < set(
        GenerateRequest.model_fields["output"].annotation.__args__[0].model_fields
    )


def test_prompts_can_be_left_out() -> None:
    fields = {name for name in GenerateRequest.model_fields if "prompt" in name}
    assert fields - {"prompt_syntax", "image_prompts"} == PROMPTS
    hidden = recipe(prompt_2="second").without_prompts()
    assert not PROMPTS & hidden.request.keys()
    assert (
        hidden.request.keys() | PROMPTS == recipe(prompt_2="", negative_prompt_2="").request.keys()
    )


def test_prompts_of_a_branch_can_be_left_out() -> None:
    drafted = {"prompt": "a cat", "negative_prompt": None, "guidance_scale": 3.0}
    branch = recipe().model_copy(update={"drafted": drafted})
    assert branch.without_prompts().drafted == {"guidance_scale": 3.0}


def test_json_and_back() -> None:
    original = recipe()
    assert "\uffff" not in original.to_json()
    assert Recipe.model_validate_json(original.to_json()) == original
    newer = {**json.loads(original.to_json()), "added_later": 1}
    assert Recipe.model_validate(newer) == original


def test_disabled_hires_stays_disabled() -> None:
    """Omission would apply the model's default to the recipe's request."""
    restored = Recipe.model_validate_json(recipe(hires=None).to_json())
    assert restored.request["hires"] is None
    assert "sigmas" not in restored.request and restored.hires_steps is None
    assert "Hires" not in parameters_of(restored)
