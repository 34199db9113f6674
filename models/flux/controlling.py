"""Flux's ControlNets in the pipeline: their inputs in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax.typing import DTypeLike
from jaxtyping import Array

from models.flow import joint_control
from models.flux.config import FluxConfig
from models.flux.controlnet import FluxControlNet
from models.flux.latents import image_ids
from models.interface.pipeline import PyTree
from models.nn.blocks.joint_control import ControlResiduals
from models.nn.blocks.joint_transformer import ControlArrays


def control_arrays(
    networks: Sequence[FluxControlNet],
    transformer: FluxConfig,
    dtype: DTypeLike,
    rows: PyTree,
    values: Mapping[str, Array],
) -> ControlArrays:
    """Return the residuals of all rows' controls, as `models.flow.joint_control`.

    Args:
        networks: ControlNets, with weights as sharded on the devices.
        dtype: computation dtype of the ControlNets.
    """
    ids = image_ids(*rows["grid"].shape[1:3])
    inputs = (
        *(x[:, None] for x in (rows["latents"], values["timestep"], values["guidance_scale"])),
        *(rows[name][:, :1] for name in ("prompt_embeds", "pooled_embeds")),
    )

    def run(network: FluxControlNet, *inputs: Array) -> ControlResiduals:
        return network(ids, *inputs)

    blocks = transformer.num_layers, transformer.num_single_layers
    return joint_control.control_arrays(networks, blocks, run, inputs, dtype, rows, values)
