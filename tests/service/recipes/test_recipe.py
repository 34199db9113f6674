from __future__ import annotations

import json

from service.recipes.parameters import parameters_of
from service.recipes.recipe import OF_FILES, PRIVATE, PROMPTS, Recipe
from service.schemas.request import SERVICE_FIELDS, GenerateRequest
from tests.service.recipes.examples import REQUEST, recipe
from tests.service.standin import SPEC


def test_the_request_of_a_recipe_makes_that_image_again() -> None:
    found = recipe()
    body = {name: value for name, value in found.request.items() if name != "scheduler"}
    again = GenerateRequest.model_validate({**body, "loras": REQUEST["loras"]})
    assert (again.seed, again.num_images, again.prompt) == (6, None, REQUEST["prompt"])
    assert found.request["scheduler"] == REQUEST["scheduler"]
    assert (found.fingerprint, found.scheduler) == (SPEC.fingerprint, "dpmpp_2m")
    assert (found.loras, found.images) == ({"ink": "ab" * 32}, {"image": "cd" * 32})


def test_it_holds_nothing_of_the_client_and_no_image() -> None:
    text = recipe().to_json()
    assert "secret" not in text and "inputs" not in text and "inline" not in text
    assert not PRIVATE & json.loads(text)["request"].keys()


def test_every_field_of_the_service_is_decided_upon() -> None:
    """A new one that is not PRIVATE is written into every file: see that it may be."""
    kept = SERVICE_FIELDS - PRIVATE
    assert kept == {"model", "prompt", "seed", "output", "stop_at_step"}
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
    found = recipe()
    assert "\uffff" not in found.to_json()
    assert Recipe.model_validate_json(found.to_json()) == found
    newer = {**json.loads(found.to_json()), "added_later": 1}
    assert Recipe.model_validate(newer) == found


def test_what_is_switched_off_stays_so() -> None:
    """Left out, a model's default would come back with the request of the recipe."""
    found = Recipe.model_validate_json(recipe(hires=None).to_json())
    assert found.request["hires"] is None
    assert "sigmas" not in found.request and found.hires_steps is None
    assert "Hires" not in parameters_of(found)
