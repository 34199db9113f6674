"""Arrays of a checkpoint: they fit the networks completely, and each faulty array is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.checkpoint.folder import WeightsError
from tests.families.suite import EVERY, loaded

Arrays = dict[str, Any]
FAULTS: dict[str, Callable[[Arrays, str], str]] = {
    "missing": lambda arrays, key: arrays.pop(key) is not None and key,
    "stray": lambda arrays, key: arrays.update({f"{key}.more": arrays[key]}) or f"{key}.more",
    "misshapen": lambda arrays, key: arrays.update({key: np.zeros((1, 2, 3), "f4")}) or key,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_array_of_a_denoiser_is_named(
    fault: str, family: str, folder: Path, tmp_path: Path
) -> None:
    for name, component in EVERY[family].components.items():
        spoiled = Path(shutil.copytree(folder, tmp_path / name))
        (file,) = (spoiled / component).glob("*.safetensors")
        arrays = load_file(file)
        named = FAULTS[fault](arrays, max(arrays))
        save_file(arrays, file)
        with pytest.raises(WeightsError, match=named.replace(".", r"\.")):
            loaded(family, spoiled, "float32")


def test_the_spec_survives_its_way_through_the_queue(family: str, folder: Path) -> None:
    spec = loaded(family, folder, "float32").spec
    read = type(spec).model_validate_json(spec.model_dump_json())
    assert spec.config_digest and read == spec.model_copy(update={"config_digest": ""})
    assert spec.family == family.partition("-")[0] and spec.fields >= spec.defaults.keys()
