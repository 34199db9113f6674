"""Recipes as requests that draw the same again, where what they name is served here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec
from models.spec.upscalers import FIELD as UPSCALE
from models.spec.upscalers import with_defaults
from service.errors.problems import NotFound
from service.front_end.front_end import FrontEnd
from service.recipes.recipe import Recipe
from service.schemas.request import GenerateRequest
from service.verification.subject import CannotTell

SHOWN_CHARS = 12
"""Characters of a digest that a message shows."""


@dataclass(frozen=True)
class Redraw:
    """Request that draws a file again, and the model that it was made by."""

    body: GenerateRequest
    spec: ModelSpec


async def redraw_of(
    front: FrontEnd, tenant: str, body: GenerateRequest, recipe: Recipe, sha256: str
) -> Redraw:
    """Return the request of a recipe, of one image.

    Args:
        body: the recipe's request.
        sha256: of the file to verify, which the job's metadata have.

    Raises:
        CannotTell: model, weights, adapters or upscalers are not those of the recipe.
        Unavailable: no model is registered.
    """
    if body.seed is None:
        raise CannotTell("its recipe has no seed")
    if recipe.drafted is not None:
        raise CannotTell(
            "it is a branch: its first steps were drawn by another request, and no single one draws"
            " the same"
        )
    spec = await _served(front, body.model, recipe.fingerprint)
    for wrong in [
        *await _other_loras(front, tenant, spec, recipe),
        *_upscalers(spec, body, recipe),
    ]:
        raise CannotTell(wrong)
    # A copy is not validated again; what is set here is valid.
    update = {"model": spec.name, "num_images": 1, "reuse": False, "metadata": {"verifies": sha256}}
    return Redraw(body.model_copy(update=update), spec)


async def _served(front: FrontEnd, name: str | None, fingerprint: str) -> ModelSpec:
    """Return the model, or version of an alias, that has these weights.

    Raises: CannotTell, Unavailable.
    """
    try:
        versions = await front.models.versions(name)
    except NotFound:
        raise CannotTell(f"the model {name!r} that made it is not served here") from None
    if not fingerprint:
        raise CannotTell("nothing says which weights made it: it is of an earlier version")
    for spec in versions:
        if spec.fingerprint == fingerprint:
            return spec
    here = ", ".join(spec.fingerprint[:SHOWN_CHARS] for spec in versions) or "none"
    raise CannotTell(
        f"the model {name!r} has other weights here: it was made by the checkpoint"
        f" {fingerprint[:SHOWN_CHARS]}, and here is {here}"
    )


async def _other_loras(
    front: FrontEnd, tenant: str, spec: ModelSpec, recipe: Recipe
) -> Iterator[str]:
    """Report adapters that are not those of the recipe."""
    offered = await front.loras.of(tenant) if recipe.loras else ()
    own = {lora.name: lora.digest for lora in offered if spec.takes(lora)}
    own |= {lora.name: lora.digest for lora in spec.fixed_loras}
    return _changed("adapter", recipe.loras, own)


def _upscalers(spec: ModelSpec, body: GenerateRequest, recipe: Recipe) -> Iterator[str]:
    """Report upscalers that are not those of the recipe."""
    digests = {name: one.digest for name, one in spec.upscalers.items()}
    if body.upscale and recipe.upscaler:
        asked = with_defaults(body.upscale.model_dump(), spec.upscalers)
        yield from _changed(UPSCALE, {str(asked["name"]): recipe.upscaler}, digests)
    if body.hires and recipe.hires_upscaler:
        wanted = {str(body.hires.upscaler): recipe.hires_upscaler}
        yield from _changed(f"{HIRES}.upscaler", wanted, digests)


def _changed(what: str, wanted: dict[str, str], own: dict[str, str]) -> Iterator[str]:
    for name, digest in wanted.items():
        if name not in own:
            yield f"the {what} {name[:80]!r} that it was made with is not here"
        elif own[name] != digest:
            yield (
                f"the {what} {name[:80]!r} is another file here: it was made with SHA-256"
                f" {digest[:SHOWN_CHARS]}, and here is {own[name][:SHOWN_CHARS]}"
            )
