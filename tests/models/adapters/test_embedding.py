"""Files of embeddings: formats, and errors that name the cause."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.adapters.files.adapter import AdapterError, KernelShape, LayerPosition
from models.adapters.files.embedding import read_embedding
from models.adapters.files.formats import inspect, read
from models.adapters.files.name_table import Names, NetworkNames
from tests.models.adapters.published_names import write_raw

SIZES = {"clip": 6, "clip_2": 10}
NAMES = Names((), SIZES)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def file_of(folder: Path, **arrays: np.ndarray) -> Path:
    path = folder / "x.safetensors"
    save_file(arrays, path)
    return path


@pytest.mark.parametrize(
    "keys", [("clip_l", "clip_g"), ("text_encoders_0", "text_encoders_1")], ids="/".join
)
def test_vectors_of_both_encoders(tmp_path: Path, keys: tuple[str, str]) -> None:
    first, second = random(3, 6), random(3, 10)
    path = file_of(tmp_path, **dict(zip(keys, (first, second), strict=True)))
    vectors = read_embedding(path, SIZES, "x")
    np.testing.assert_array_equal(vectors["clip"], first)
    np.testing.assert_array_equal(vectors["clip_2"], second)
    summary = inspect(path, NAMES)
    assert (summary.vectors, summary.networks, summary.rank) == (3, ("clip", "clip_2"), 0)
    assert not summary.warnings


def test_one_vector_and_other_dtypes(tmp_path: Path) -> None:
    path = file_of(tmp_path, clip_l=random(6).astype(np.float16), clip_g=random(1, 10))
    vectors = read_embedding(path, SIZES, "x")
    assert {name: array.shape for name, array in vectors.items()} == {
        "clip": (1, 6),
        "clip_2": (1, 10),
    }
    assert all(array.dtype == np.float32 for array in vectors.values())


def test_a_missing_encoder_is_a_warning(tmp_path: Path) -> None:
    summary = inspect(file_of(tmp_path, clip_g=random(2, 10)), NAMES)
    assert summary.networks == ("clip_2",)
    assert summary.warnings == ("it has no vectors for clip_l, which reads nothing in its place",)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"clip_l": random(2, 7)}, "vectors of 6 numbers: the embedding was made for another"),
        ({"clip_g": random(76, 10)}, "has 76 vectors; an embedding has 1 to 75"),
        ({"clip_g": random(0, 10)}, "has 0 vectors"),
        ({"clip_g": random(1, 1, 10)}, "made for another model"),
        ({"clip_g": np.zeros((1, 10), np.int32)}, "made for another model"),
        ({"emb_params": random(2, 6)}, "a single encoder (emb_params, 6 numbers a vector)"),
        ({"<cat>": random(6)}, "a single encoder"),
        ({"clip_g": np.full((1, 10), np.nan, np.float32)}, "NaN or infinity in clip_g"),
    ],
)
def test_refused_files(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(AdapterError) as error:
        inspect(file_of(tmp_path, **arrays), NAMES)
    assert message in str(error.value)


@pytest.mark.parametrize("key", ["clip_g", "bundle_emb.x.clip_g"])
def test_huge_embeddings_are_not_read(tmp_path: Path, key: str) -> None:
    """The file is sparse: 40 GB without disk blocks."""
    rows = 10**9
    layer = {LayerPosition("q"): KernelShape(4, 4)}
    names = Names((NetworkNames("unet", {"q": layer}, ("",), ()),), SIZES)
    small = {"q.lora_A.weight": (2, 4), "q.lora_B.weight": (4, 2)} if "." in key else {}
    shapes = {key: (rows, 10), **small}
    header, offset = {}, 0
    for name, shape in shapes.items():
        stop = offset + 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, stop]}
        offset = stop
    path = write_raw(tmp_path / "x.safetensors", json.dumps(header))
    os.truncate(path, path.stat().st_size + offset)
    tracemalloc.start()
    if small:
        assert inspect(path, names).embeddings == {}
    else:
        with pytest.raises(AdapterError, match=f"has {rows} vectors"):
            inspect(path, names)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_adapters_may_contain_embeddings(tmp_path: Path) -> None:
    layer = {LayerPosition("q"): KernelShape(4, 4)}
    names = Names((NetworkNames("unet", {"q": layer}, ("",), ()),), SIZES)
    arrays = {"q.lora_A.weight": random(2, 4), "q.lora_B.weight": random(4, 2)}
    arrays |= {"bundle_emb.a b.clip_l": random(3, 6), "bundle_emb.a b.clip_g": random(3, 10)}
    arrays |= {"bundle_emb.old.string_to_param.*": random(2, 6)}
    path = file_of(tmp_path, **arrays)
    summary = inspect(path, names)
    assert (summary.rank, summary.vectors, summary.embeddings) == (2, 0, {"a b": 3})
    assert [item.partition(": ")[2] for item in summary.warnings] == [
        "bundle_emb.old.string_to_param.*"
    ]
    vectors = read_embedding(path, SIZES, "a b")
    np.testing.assert_array_equal(vectors["clip_2"], arrays["bundle_emb.a b.clip_g"])
    assert read(path, names).networks.keys() == {"unet"}


def test_models_without_embeddings_and_adapters_refuse_them(tmp_path: Path) -> None:
    path = file_of(tmp_path, clip_l=random(1, 6), clip_g=random(1, 10))
    with pytest.raises(
        AdapterError, match="which this model does not read; models of SDXL and Flux do"
    ):
        inspect(path, Names(()))
    with pytest.raises(AdapterError, match="is an embedding"):
        read(path, NAMES)


@pytest.mark.parametrize("key", ["t5", "t5xxl"])
def test_flux_reads_vectors_of_clip_and_t5(key: str, tmp_path: Path) -> None:
    sizes = {"clip": 6, "t5": 12}
    arrays = {"clip_l": random(2, 6), key: random(3, 12)}
    path = file_of(tmp_path, **arrays)
    summary = inspect(path, Names((), sizes))
    assert (summary.vectors, summary.networks, summary.warnings) == (3, ("clip", "t5"), ())
    np.testing.assert_array_equal(read_embedding(path, sizes, "x")["t5"], arrays[key])
    (warning, ignored) = inspect(path, Names((), SIZES)).warnings  # SDXL shares CLIP-L
    assert "no vectors for clip_g" in warning and ignored == f"keys without effect: {key}"
    with pytest.raises(AdapterError, match="this model reads clip_l and t5"):
        inspect(file_of(tmp_path, emb_params=random(2, 6)), Names((), sizes))
