"""`atelier plan`: estimate memory and speed of a model on chips that need not be present."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any, Literal

from deploy.cli.options import DTYPES, EIGHT_BIT, Commands, count, mesh, without_none
from deploy.cli.request_options import members
from deploy.cli.requirements import check_pools
from deploy.exit_codes import EXIT_FAILED, UsageError, say

if TYPE_CHECKING:
    from workers.plan.make import PlanRequest
    from workers.slice.mesh_shape import MeshShape


def add(commands: Commands) -> None:
    """Add the command `atelier plan` and its options to the parser."""
    plan = commands.add_parser(
        "plan", help="estimate memory and speed for chips that this machine lacks"
    )
    _add_machine(plan)
    _add_work(plan)
    plan.add_argument(
        "--search", action="store_true", help="rank every layout by latency and throughput"
    )
    plan.add_argument(
        "--reckon", action="store_true", help="estimate without the compiler: rougher, in seconds"
    )
    plan.add_argument("--json", action="store_true", help="print JSON")
    plan.set_defaults(run=run)


def _add_machine(plan: argparse.ArgumentParser) -> None:
    plan.add_argument(
        "--model",
        required=True,
        metavar="NAME-or-SOURCE",
        help="flux-dev, sdxl, wan2.1-14b …, a folder of configs, or a hub id",
    )
    plan.add_argument("--topology", required=True, help="chips, such as v6e:2x4, v5p:2x2x2, h100:8")
    plan.add_argument(
        "--mesh",
        type=mesh,
        default="auto",
        metavar="AXIS=N,…",
        help="sizes of data, fsdp, cfg, context, tensor, ring (one may be -1); auto: the best",
    )
    plan.add_argument(
        "--dcn", type=mesh, metavar="AXIS=N,…", help="sizes between several such slices"
    )


def _add_work(plan: argparse.ArgumentParser) -> None:
    for name, about in (
        ("width", "width in pixels (default: the model's)"),
        ("height", "height in pixels (default: the model's)"),
        ("num-frames", "number of frames of a video (default: the model's)"),
        ("steps", "number of denoising steps (default: the model's)"),
        ("batch", "number of requests at once (default: 1)"),
    ):
        plan.add_argument(f"--{name}", type=count, metavar="N", help=about)
    plan.add_argument(
        "--hires",
        type=members,
        metavar="OPTION=VALUE[,…]",
        help="hires fix, whose second pass counts too, such as scale=2 (default: none)",
    )
    plan.add_argument("--guidance", type=float, metavar="X", help="guidance scale; 1: no guidance")
    plan.add_argument(
        "--dtype", choices=DTYPES, default="bfloat16", help="data type of the weights"
    )
    plan.add_argument(
        "--activation-dtype",
        choices=DTYPES,
        help="data type of activations (default: as the weights)",
    )
    plan.add_argument("--eight-bit", choices=EIGHT_BIT, help="8-bit weights (default: none)")
    for name, doing in (
        ("vae-tiling", "decode in tiles"),
        ("swap-experts", "keep one expert at a time on the device (Wan 2.2)"),
        ("encoders-on-host", "keep the encoders in host memory"),
    ):
        plan.add_argument(
            f"--{name}",
            action=argparse.BooleanOptionalAction,
            help=f"{doing} (default: only if memory is short)",
        )


def run(args: argparse.Namespace) -> int:
    """Run `atelier plan`: print memory and time of one layout, or of all layouts of a search."""
    check_pools()
    # plan on the CPU, even on a machine with accelerators
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from models.spec.request import RequestError
    from workers.plan import make, report
    from workers.slice.topology import PlanError

    try:
        plan_request, sketch = make.with_tiling_decided(_plan_request(args))
        results = make.search_layouts(plan_request, sketch) if args.search else None
        # A search alone compiles nothing: so many layouts would take hours.
        only_search = args.search and args.mesh == "auto"
        compiles = not args.reckon
        plan = (
            None
            if only_search
            else make.planned(plan_request, sketch, compiles=compiles, report=say)
        )
    except (PlanError, RequestError) as error:
        raise UsageError(str(error)) from None
    if args.json:
        print(json.dumps(report.both_json(plan, results), indent=2))
    else:
        texts = [report.search_text(results)] if results else []
        print("\n".join(texts + ([report.as_text(plan)] if plan else [])))
    return 0 if plan is None or plan.fits else EXIT_FAILED


def _plan_request(args: argparse.Namespace) -> PlanRequest:
    """Return the plan request of the command's options.

    Raises: PlanError: invalid topology or mesh.
    """
    from workers.plan.make import PlanRequest
    from workers.slice.topology import Topology

    shape = _shape(args)
    return PlanRequest(
        args.model,
        Topology.parse(args.topology),
        _request(args),
        shape,
        args.dcn,
        dtype=args.dtype,
        slots=args.batch,
        activation_dtype=args.activation_dtype,
        vae_tiling=args.vae_tiling,
        swap_experts=args.swap_experts,
        encoders_on_host=args.encoders_on_host,
        eight_bit=args.eight_bit,
    )


def _request(args: argparse.Namespace) -> dict[str, Any]:
    return without_none(
        width=args.width,
        height=args.height,
        num_frames=args.num_frames,
        num_inference_steps=args.steps,
        guidance_scale=args.guidance,
        hires=args.hires,
    )


def _shape(args: argparse.Namespace) -> MeshShape | Literal["auto"]:
    """Return the mesh shape of the command's options. Raises: PlanError."""
    from workers.slice.mesh_shape import MeshShape
    from workers.slice.topology import PlanError

    if args.mesh == "auto":
        return "auto"
    sizes = {axis: size for axis, size in args.mesh.items() if axis != "ring"}
    try:
        return MeshShape(sizes, args.dcn or {}, args.mesh.get("ring"))
    except ValueError as error:
        raise PlanError(f"--mesh: {error}") from None
