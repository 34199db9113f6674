"""Size and usage in OpenAI's responses for a request with hires fix, for example by a model's
defaults."""

from __future__ import annotations

from service.jobs.model.job import Job
from service.routes.compat.openai.image_answers import image_properties, tokens_of


def test_size_and_tokens_are_of_the_final_image() -> None:
    hires = {"width": 128, "height": 96}
    request = {"width": 64, "height": 48, "hires": hires, "output": {"format": "png"}, "image": "a"}
    job = Job(id="j", model="m", bucket="b", request=request)
    assert image_properties(job)["size"] == "128x96"
    tokens = tokens_of(job, 2)
    assert tokens.output_tokens == 2 * 8 * 6
    assert tokens.input_tokens_details.image_tokens == 4 * 3
