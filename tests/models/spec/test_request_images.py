"""Images of a request, by path."""

from __future__ import annotations

from models.spec.request_images import field_of, image_values, with_images, without_images

REQUEST = {
    "prompt": "a star",
    "image": "a",
    "mask_image": None,
    "reference_images": ["b", "c"],
    "control": [{"name": "canny", "image": "d"}, {"name": "depth"}],
    "control_video": "e",
    "mask_video": ["f", "g"],
}


def test_images_are_collected_from_every_field() -> None:
    assert image_values(REQUEST) == {
        "image": "a",
        "reference_images.0": "b",
        "reference_images.1": "c",
        "control.0.image": "d",
        "control_video": "e",
        "mask_video.0": "f",
        "mask_video.1": "g",
    }


def test_images_are_replaced_in_their_place() -> None:
    assert with_images(REQUEST, lambda path, value: f"{path}={value}") == {
        "prompt": "a star",
        "image": "image=a",
        "mask_image": None,
        "reference_images": ["reference_images.0=b", "reference_images.1=c"],
        "control": [{"name": "canny", "image": "control.0.image=d"}, {"name": "depth"}],
        "control_video": "control_video=e",
        "mask_video": ["mask_video.0=f", "mask_video.1=g"],
    }
    assert REQUEST["image"] == "a"


def test_other_fields_of_image_entries_remain() -> None:
    assert without_images(REQUEST) == {
        "prompt": "a star",
        "control": [{"name": "canny"}, {"name": "depth"}],
    }


def test_a_path_begins_with_its_field() -> None:
    assert {field_of(path) for path in image_values(REQUEST)} == {
        "image",
        "reference_images",
        "control",
        "control_video",
        "mask_video",
    }
