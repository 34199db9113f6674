"""ControlNets of joint transformers in a family's pipeline: checks, hints, and residuals of a step.

Flux and Qwen-Image share this code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.checkpoint.config_fields import arguments, check_fit
from models.checkpoint.folder import UnsupportedCheckpoint, read_config
from models.checkpoint.key_mapping import Renames, layer_renames
from models.checkpoint.safetensors import ComponentFiles, open_tensors
from models.checkpoint.tensor import Tensor
from models.control import by_row
from models.control.by_row import HINTS, gathered_network, single_kind
from models.control.slots import ControlSlots
from models.interface.controls import RequestedControl
from models.interface.pipeline import PyTree
from models.nn.blocks.joint_control import ControlResiduals, JointControlNet, Samples
from models.nn.blocks.joint_transformer import Arrays, BlockIndices, ControlArrays, JointBlocks
from models.nn.layers.padded_tokens import padding
from models.weights.loader import flat_parameters

NOISE = "control_noise"
"""Input of `encode`: noise for the VAE's posterior, [slots, h, w, c]. Absent: its mean is read."""
Encode = Callable[[Array, Array | None], Float[Array, "h w c"]]
"""Function from an image in [-1, 1] and noise to latents; without noise, their mean."""
UNCOUNTED = ("conditions.", "text_in.", "latents_in.", "hint_in.", "kinds.")
"""Layers excluded from the cost: they run once per step, or are small."""
OF_TEXT = ".text."

Config = TypeVar("Config")
_OUTPUTS = {"controlnet_blocks": "double_out", "controlnet_single_blocks": "single_out"}

OWN_RENAMES: Renames = (
    *layer_renames({"controlnet_x_embedder": "hint_in"}),
    *(
        (rf"{source}\.(\d+)\.{array}", rf"{path}.{leaf}[\1]")
        for source, path in _OUTPUTS.items()
        for array, leaf in (("weight", "kernel"), ("bias", "bias"))
    ),
)
"""Keys of the layers that a transformer lacks → paths in `JointControlNet`."""


def read_control_config(kind: type[Config], folder: Path, name: str, title: str) -> Config:
    """Parse the config of a ControlNet.

    Args:
        kind: dataclass of the config.
        name: class name of the family's ControlNets in diffusers.
        title: name of the family in messages.

    Raises: CheckpointError, ValueError: the config is missing, of another class or not supported.
    """
    config, file = read_config(folder, "."), folder / "config.json"
    if (class_name := config.get("_class_name", name)) != name:
        raise ValueError(
            f"{file}: is of class {class_name}; ControlNets of {title} are {name}s: choose one "
            f"that was trained for {title}"
        )
    return kind(**arguments(kind, config, str(file)))


HINT_IN = "controlnet_x_embedder.weight"
"""Key of the layer that reads the control image's latents."""
XLABS = "input_hint_block."


def read_control_file(
    kind: type[Config],
    file: ComponentFiles,
    title: str,
    transformer: Any,
    inferred: Callable[[Mapping[str, Tensor]], Mapping[str, Any]],
) -> Config:
    """Infer the config of a file in diffusers' keys, which has none.

    Args:
        title: as of `read_control_config`.
        transformer: config of the controlled transformer, whose sizes the ControlNet has.
        inferred: returns the other fields, from the file's arrays.

    Raises: CheckpointError, ValueError: the file cannot be read, or is for another model.
    """
    path = file.files[0]
    with ExitStack() as files:
        tensors = open_tensors(file, files)
        if any(key.startswith(XLABS) for key in tensors):
            raise UnsupportedCheckpoint(
                f"{path}: a ControlNet with convolutions of its own for its image (XLabs') is not "
                "served; use one that reads the VAE's latents"
            )
        if HINT_IN not in tensors:
            raise UnsupportedCheckpoint(
                f"{path}: no ControlNet of {title} in diffusers' keys; give one's folder, hub id "
                "or file"
            )
        width = tensors[HINT_IN].shape[0]
        check_fit(("its width", width, "that of the transformer, width,", transformer.width))
        more = inferred(tensors)
    shared = {entry.name: getattr(transformer, entry.name) for entry in fields(transformer)}
    return kind(**{**shared, **more})


def count_of_blocks(tensors: Collection[str], stack: str) -> int:
    """Return the number of a stack's blocks among the keys of a file."""
    matches = (re.match(rf"{stack}\.(\d+)\.", key) for key in tensors)
    return len({match[1] for match in matches if match})


def check_fits(config: Any, transformer: Any, *names: str) -> None:
    """Check that fields of a ControlNet equal the transformer's. Raises: ValueError: names both."""
    pairs = ((name, getattr(config, name), getattr(transformer, name)) for name in names)
    check_fit(*((f"its {name}", a, f"that of the transformer, {name},", b) for name, a, b in pairs))


def share_of(control: JointBlocks, transformer: JointBlocks) -> float:
    """Return the cost of a ControlNet step divided by that of a transformer step."""
    return _work(control) / _work(transformer)


def _work(network: nnx.Module) -> float:
    """Return the multiplications of one step per image token, excluding text."""
    return sum(
        float(leaf.size)
        for path, leaf in flat_parameters(network).items()
        if path.endswith("kernel") and not path.startswith(UNCOUNTED) and OF_TEXT not in path
    )


def control_inputs(
    places: ControlSlots,
    controls: Sequence[RequestedControl],
    draw: Callable[[], Float[np.ndarray, "h w c"]],
) -> dict[str, np.ndarray]:
    """Draw the noise of each control's latents before other noise; empty without controls.

    Args:
        draw: draws the next noise of the request's generator.

    Source: diffusers pipeline_flux_controlnet.py, FluxControlNetPipeline.__call__, and
    pipeline_qwenimage_controlnet.py, QwenImageControlNetPipeline.__call__.
    """
    if not controls:
        return {}
    noise = [draw() for _ in controls]
    return {**places.inputs(controls), NOISE: places.by_slot(noise)}


def hints(
    encode: Encode,
    pack: Callable[[Float[Array, "h w c"]], Float[Array, "tokens patch"]],
    inputs: Mapping[str, Array],
    slots: int,
    empty: Float[Array, "tokens patch"],
) -> Float[Array, "slots tokens patch"]:
    """Return the packed latents of a row's control images; zeros in empty slots."""

    def read(image: Array, _: Array, noise: Array | None = None) -> Array:
        return pack(encode(2 * image - 1, noise)).astype(empty.dtype)

    # jax.lax.switch clamps the index, so one branch serves every ControlNet
    return by_row.hints([read], inputs, slots, empty, *({NOISE} & inputs.keys()))


def control_arrays(
    networks: Sequence[JointControlNet],
    blocks: tuple[int, int],
    run_network: Callable[..., ControlResiduals],
    inputs: Sequence[Array],
    dtype: DTypeLike,
    rows: PyTree,
    values: Mapping[str, Array],
) -> ControlArrays:
    """Return the residuals of all rows' controls for the transformer's blocks.

    ControlNets receive only the positive prompt; their residuals apply to both prompts, as in
    diffusers.

    Args:
        networks: ControlNets, with weights as sharded on the devices.
        blocks: number of double and of single blocks of the transformer.
        run_network: function of a network, its inputs, hint and kind.
        inputs: inputs of every network, [rows, 1, ...].
        dtype: computation dtype of the ControlNets.
    """
    tokens, width = rows[HINTS].shape[2], networks[0].latents_in.out_features
    places = [block_indices_of(network.counts, blocks) for network in networks]
    of_double, of_single = ({*kinds} - {()} for kinds in zip(*places, strict=True))

    def run(
        network: JointControlNet,
        places_of_blocks: tuple[BlockIndices, BlockIndices],
        *inputs: Array,
    ) -> ControlArrays:
        of_one_image = (*inputs[:-1], single_kind(inputs[-1]))
        sampled = run_network(gathered_network(network), *of_one_image)
        shape = len(inputs[0]), tokens + padding(tokens), width
        blank = partial(_blank, shape, dtype)
        return ControlArrays(
            {**blank(of_double), **_of_blocks(places_of_blocks[0], sampled.double)},
            {**blank(of_single), **_of_blocks(places_of_blocks[1], sampled.single)},
        )

    runs = [partial(run, *pair) for pair in zip(networks, places, strict=True)]
    output: ControlArrays = by_row.residuals(runs, rows, values, inputs)
    return output


def block_indices_of(
    samples: tuple[int, int], blocks: tuple[int, int]
) -> tuple[BlockIndices, BlockIndices]:
    """Return the index of the residual for each double and each single block."""
    double, single = map(by_interval, blocks, samples)
    return double, single


def by_interval(blocks: int, samples: int) -> BlockIndices:
    """Return the residual index of each block; adjacent blocks share one. Empty without any."""
    interval = -(-blocks // max(samples, 1))
    return tuple(block // interval for block in range(blocks)) if samples else ()


def _blank(
    shape: tuple[int, int, int], dtype: DTypeLike, everywhere: Collection[BlockIndices]
) -> Arrays:
    """Return zero residuals for all ControlNets: [batch, samples, tokens, width]."""
    batch, *of_image = shape
    return {places: jnp.zeros((batch, max(places) + 1, *of_image), dtype) for places in everywhere}


def _of_blocks(places: BlockIndices, samples: Samples | None) -> Arrays:
    """Return residuals by their block assignment, without those that no block uses."""
    if samples is None or not places:
        return {}
    return {places: samples[:, : max(places) + 1]}
