"""The command line: each command imports what it needs when it runs, so `--help` is instant."""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.client import Client, Event
    from service.settings import Settings
    from workers.plan.make import Ask

EXIT_FAILED = 1
"""The request was refused, or its job did not succeed."""
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_CONFIG = 78
"""No restart can mend it: settings or a checkpoint are wrong (`EX_CONFIG` of sysexits)."""
EXIT_INTERRUPTED = 130

MAX_LABEL_CHARS = 80
LOG_LEVELS = ("debug", "info", "warning", "error")
DTYPES = ("float32", "bfloat16", "float16")
POOLS_NEED = ("jax", "flax", "transformers", "workers")
"""Of what the extras `cpu`, `cuda` and `tpu` install, or images for front ends leave out."""
FORMATS = {
    ".png": "png",
    ".jpg": "jpeg",
    ".jpeg": "jpeg",
    ".webp": "webp",
    ".mp4": "mp4",
    ".webm": "webm",
    ".gif": "gif",
}
"""Of a file's ending; a folder gets PNG files, of a clip one a frame."""


class UsageError(Exception):
    """What the command line or the settings ask for can't be done; says what to change."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        _say(f"atelier: {error}")
        return code


def _exit_code(error: Exception) -> int | None:
    """Of an error that says what to do by itself; None for one that is ours to mend."""
    from models.checkpoint import CheckpointError
    from service.settings import ConfigError

    if isinstance(error, UsageError):
        return EXIT_USAGE
    return EXIT_CONFIG if isinstance(error, CheckpointError | ConfigError) else None


# The parser


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="atelier", description="Pictures and clips from SDXL, Flux and Wan"
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for add in (
        _add_up,
        _add_serve,
        _add_worker,
        _add_generate,
        _add_keys,
        _add_plan,
        _add_profile,
    ):
        add(commands)
    return parser


def _add_up(commands: Any) -> None:
    up = commands.add_parser("up", help="the whole system on this machine")
    _add_settings(up)
    _add_address(up)
    up.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME=SOURCE",
        help="a folder in diffusers' layout or a hub id; may be repeated; default: the demo models",
    )
    up.add_argument(
        "--mesh",
        type=_mesh,
        metavar="AXIS=N,…",
        help="how each pool's slice splits its work, such as cfg=2,context=-1 (auto)",
    )
    up.add_argument("--pools", type=_count, metavar="N", help="pools of each model (1)")
    up.add_argument("--dtype", choices=DTYPES, help="of the weights")
    up.add_argument(
        "--host-devices", type=_count, metavar="N", help="virtual CPU devices that each pool sees"
    )
    up.set_defaults(run=_up)


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser("serve", help="one front end")
    _add_settings(serve)
    _add_address(serve)
    serve.add_argument("--fd", type=int, help=argparse.SUPPRESS)  # a socket that listens already
    serve.set_defaults(run=_serve)


def _add_worker(commands: Any) -> None:
    worker = commands.add_parser("worker", help="one pool")
    _add_settings(worker)
    worker.add_argument("--pool", required=True, metavar="NAME", help="a pool of the settings")
    worker.add_argument(
        "--devices", type=_devices, metavar="FIRST-LAST", help="of this machine (all of them)"
    )
    worker.add_argument(
        "--explain", action="store_true", help="print where everything lies, and serve nothing"
    )
    worker.add_argument(
        "--coordinator", metavar="HOST:PORT", help="of a slice of several hosts: its first process"
    )
    worker.add_argument("--num-processes", type=_count, metavar="N", help="of that slice (1)")
    worker.add_argument("--process-id", type=int, metavar="I", help="of this process, from 0")
    worker.set_defaults(run=_worker)


def _add_generate(commands: Any) -> None:
    generate = commands.add_parser("generate", help="make a picture or clip on a running server")
    generate.add_argument("prompt")
    generate.add_argument(
        "-o",
        "--output",
        type=Path,
        help="file to write: .png, .jpg, .webp, .mp4, .webm, .gif; or a folder, for PNG files",
    )
    generate.add_argument("--server", default="http://127.0.0.1:8000", metavar="URL")
    generate.add_argument(
        "--key", metavar="KEY", help="an API key ($ATELIER_API_KEY, which other users can't see)"
    )
    generate.add_argument("--image", type=Path, metavar="FILE", help="picture to start from")
    generate.add_argument("--mask", type=Path, metavar="FILE", help="white where it is drawn anew")
    generate.add_argument("--last-image", type=Path, metavar="FILE", help="a clip's last picture")
    for name in ("model", "negative-prompt"):
        generate.add_argument(f"--{name}", metavar="TEXT")
    for name in ("width", "height", "num-frames", "fps", "steps", "seed", "num-images"):
        generate.add_argument(f"--{name}", type=int, metavar="N")
    for name in ("guidance", "guidance-2", "guidance-rescale", "true-cfg-scale", "strength"):
        generate.add_argument(f"--{name}", type=float, metavar="X")
    generate.add_argument(
        "--scheduler",
        type=_scheduler,
        metavar="NAME[,OPTION=VALUE…]",
        help="such as unipc,flow_shift=3",
    )
    generate.set_defaults(run=_generate)


def _add_keys(commands: Any) -> None:
    keys = commands.add_parser("keys", help="API keys: make, list and revoke them")
    acts = keys.add_subparsers(required=True, metavar="act")
    create = acts.add_parser("create", help="a new key, printed once on standard output")
    create.add_argument("--tenant", required=True, metavar="NAME", help="whose jobs it makes")
    create.add_argument(
        "--name", type=_label, default="", metavar="TEXT", help="to know it by in the list"
    )
    create.set_defaults(run=_create_key)
    shown = acts.add_parser("list", help="id, tenant, time and name of every key")
    shown.set_defaults(run=_list_keys)
    revoke = acts.add_parser("revoke", help="refuse a key from now on")
    revoke.add_argument("id", metavar="ID", help="as the list has it")
    revoke.set_defaults(run=_revoke_key)
    for act in (create, shown, revoke):
        _add_settings(act)


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser(
        "plan", help="what fits and how fast, for chips that are not there (an estimate)"
    )
    plan.add_argument(
        "--model",
        required=True,
        metavar="NAME-or-SOURCE",
        help="flux-dev, sdxl, wan2.1-14b …, a folder of configs, or a hub id",
    )
    plan.add_argument("--topology", required=True, help="such as v6e:2x4, v5p:2x2x2, h100:8")
    plan.add_argument(
        "--mesh",
        type=_mesh,
        default="auto",
        metavar="AXIS=N,…",
        help="data, fsdp, cfg, context, tensor (one may be -1), ring; auto: the best by reckoning",
    )
    plan.add_argument(
        "--dcn", type=_mesh, metavar="AXIS=N,…", help="the same between several such slices"
    )
    for name in ("width", "height", "num-frames", "steps", "batch"):
        plan.add_argument(f"--{name}", type=_count, metavar="N")
    plan.add_argument("--guidance", type=float, metavar="X", help="1: no guidance")
    plan.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of the weights")
    plan.add_argument("--activation-dtype", choices=DTYPES, help="(as the weights)")
    for name, doing in (
        ("vae-tiling", "decode in tiles"),
        ("swap-experts", "have one expert at a time on the device (Wan 2.2)"),
        ("encoders-on-host", "keep the encoders in host memory"),
    ):
        plan.add_argument(
            f"--{name}",
            action=argparse.BooleanOptionalAction,
            help=f"{doing}; left out: where memory demands it",
        )
    plan.add_argument(
        "--search", action="store_true", help="every layout in order, for latency and throughput"
    )
    plan.add_argument(
        "--reckon", action="store_true", help="without a compiler: rougher, and takes seconds"
    )
    plan.add_argument("--json", action="store_true", help="on standard output, for programs")
    plan.set_defaults(run=_plan)


def _add_profile(commands: Any) -> None:
    profile = commands.add_parser(
        "profile", help="where the time of a running pool's steps goes, without stopping it"
    )
    _add_settings(profile)
    profile.add_argument(
        "--pool", required=True, metavar="NAME", help="of the settings, or one's own"
    )
    for name, default, meaning in (
        ("steps", 10, "to record"),
        ("seconds", 30, "that it takes at the most"),
        ("wait", 0, "seconds to wait for something to run"),
    ):
        kind = int if name == "wait" else _count
        told = f"{meaning} ({default})"
        profile.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=told)
    profile.add_argument(
        "--output", type=Path, metavar="DIR", help="keep the recording, for TensorBoard or Perfetto"
    )
    profile.add_argument("--json", action="store_true", help="on standard output, for programs")
    profile.set_defaults(run=_profile)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings (atelier.toml)")
    parser.add_argument("--state", type=Path, metavar="DIR", help="queue, outputs, compile cache")
    parser.add_argument("--redis", metavar="URL", help="a Redis or Valkey server")
    parser.add_argument("--log-level", choices=LOG_LEVELS, help="(info)")


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, metavar="N", help="0 takes a free one (8000)")
    parser.add_argument(
        "--keys",
        action=argparse.BooleanOptionalAction,
        help="whether requests need an API key; left out: unless this machine alone can reach it",
    )


def _label(text: str) -> str:
    """What stands on one line of a table and does nothing to a terminal."""
    if len(text) > MAX_LABEL_CHARS or not text.isprintable():
        raise argparse.ArgumentTypeError(f"wants up to {MAX_LABEL_CHARS} printable characters")
    return text


def _scheduler(text: str) -> dict[str, Any]:
    """`name,option=value,…` as the request has it; a value is JSON, or else a text."""
    name, *options = text.split(",")
    chosen: dict[str, Any] = {"name": name}
    for option in options:
        key, equals, value = option.partition("=")
        if not (key and equals):
            raise argparse.ArgumentTypeError(f"wants OPTION=VALUE, not {option!r}")
        try:
            chosen[key] = json.loads(value)
        except ValueError:
            chosen[key] = value
    return chosen


def _mesh(text: str) -> str | dict[str, int]:
    """`auto`, or `axis=size,…`."""
    if text == "auto":
        return text
    sizes = {}
    for part in text.split(","):
        axis, equals, size = part.partition("=")
        if not (axis and equals and size.lstrip("-").isdigit()):
            raise argparse.ArgumentTypeError(f"wants AXIS=N,… or auto, not {part!r}")
        sizes[axis.strip()] = int(size)
    return sizes


def _devices(text: str) -> range:
    first, _, last = text.partition("-")
    if not (first.isdigit() and (last or first).isdigit() and int(first) <= int(last or first)):
        raise argparse.ArgumentTypeError(f"wants FIRST-LAST, not {text!r}")
    return range(int(first), int(last or first) + 1)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


# Settings


def _settings(args: argparse.Namespace, **sections: Any) -> Settings:
    """The file, then the environment, then the command line; the last one wins."""
    from service.settings import CONFIG_VARIABLE, load_settings

    if args.config:
        os.environ[CONFIG_VARIABLE] = str(args.config)
    given = _given(
        state_dir=args.state,
        log_level=args.log_level,
        redis=_given(url=args.redis),
        server=_given(**{name: getattr(args, name, None) for name in ("host", "port", "keys")}),
        **sections,
    )
    return load_settings(**{name: value for name, value in given.items() if value})


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _models(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """`--model NAME=SOURCE …` → the settings' `models`."""
    models = {}
    for pair in args.model:
        name, equals, source = pair.partition("=")
        if not (name and equals and source):
            raise UsageError(f"--model wants NAME=SOURCE, not {pair!r}")
        models[name] = {"source": source}
    return models


# Commands


def _up(args: argparse.Namespace) -> int:
    _check_pools()
    from deploy.local import plan, up

    settings = _settings(args, models=_models(args))
    planned = plan(settings, pools=args.pools, dtype=args.dtype, mesh=args.mesh)
    return up(planned, host_devices=args.host_devices)


def _serve(args: argparse.Namespace) -> int:
    from deploy.logs import log_to_stderr
    from service.server import serve

    settings = _settings(args)
    log_to_stderr(settings.log_level, settings.log_format)
    return serve(settings, fd=args.fd)


def _worker(args: argparse.Namespace) -> int:
    _check_pools()
    from workers.hosts.leaving import leave_on_sigterm

    leave_on_sigterm()
    from deploy.logs import log_to_stderr
    from service.jobs.about import everywhere
    from workers.pool import run_pool

    hosts = _given(coordinator=args.coordinator, count=args.num_processes, index=args.process_id)
    settings = _settings(args, pools=hosts and {args.pool: {"hosts": hosts}})
    log_to_stderr(settings.log_level, settings.log_format)
    everywhere(pool=args.pool)
    if args.explain:
        from workers.explain import explain

        print(explain(settings, args.pool, args.devices))
        return 0
    return run_pool(settings, args.pool, args.devices)


def _check_pools() -> None:
    """Raises: ConfigError: only what front ends and clients need is installed."""
    from importlib.util import find_spec

    from service.settings import ConfigError

    missing = [name for name in POOLS_NEED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"pools need {missing[0]}, which is not installed: in the project's folder,"
            " pip install -e '.[cpu]' (or [cuda], [tpu]) or make install; or take a worker's image"
        )


def _plan(args: argparse.Namespace) -> int:
    _check_pools()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing runs here, whatever this machine has
    from models.pipeline import RequestError
    from workers.plan import make, report
    from workers.plan.topology import PlanError

    try:
        ask, sketch = make.settled(_ask(args))
        found = make.searched(ask, sketch) if args.search else None
        # A search alone compiles nothing: of so many layouts that would take hours.
        only_search = args.search and args.mesh == "auto"
        compiles = not args.reckon
        plan = None if only_search else make.planned(ask, sketch, compiles=compiles, tell=_say)
    except (PlanError, RequestError) as error:
        raise UsageError(str(error)) from None
    if args.json:
        print(json.dumps(report.both_json(plan, found), indent=2))
    else:
        texts = [report.found_text(found)] if found else []
        print("\n".join(texts + ([report.as_text(plan)] if plan else [])))
    return 0 if plan is None or plan.fits else EXIT_FAILED


def _ask(args: argparse.Namespace) -> Ask:
    """Raises: PlanError: a topology or a mesh that there is none of."""
    from workers.axes import Shape
    from workers.plan.make import Ask
    from workers.plan.topology import PlanError, Topology

    request = _given(
        width=args.width,
        height=args.height,
        num_frames=args.num_frames,
        num_inference_steps=args.steps,
        guidance_scale=args.guidance,
    )
    mesh = args.mesh
    if mesh != "auto":
        sizes = {axis: size for axis, size in mesh.items() if axis != "ring"}
        try:
            mesh = Shape(sizes, args.dcn or {}, mesh.get("ring"))
        except ValueError as error:
            raise PlanError(f"--mesh: {error}") from None
    topology = Topology.parse(args.topology)
    return Ask(
        args.model,
        topology,
        request,
        mesh,
        args.dcn,
        dtype=args.dtype,
        slots=args.batch,
        activation_dtype=args.activation_dtype,
        vae_tiling=args.vae_tiling,
        swap_experts=args.swap_experts,
        encoders_on_host=args.encoders_on_host,
    )


def _generate(args: argparse.Namespace) -> int:
    from service.client import Client, Problem, Unreachable
    from service.settings import KEY_VARIABLE

    body = _request(args)
    key = (args.key or os.environ.get(KEY_VARIABLE) or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"--key, {KEY_VARIABLE}: there are signs in it that no API key has")
    with Client(args.server, key) as client:
        try:
            return _make(client, body, args.output)
        except KeyboardInterrupt:
            return _cancel(client)
        except Problem as problem:
            _say(f"atelier: {problem}")
            return EXIT_FAILED
        except Unreachable as error:
            _say(f"atelier: {error}")
            return EXIT_UNREACHABLE


def _create_key(args: argparse.Namespace) -> int:
    from deploy import keys

    try:
        keys.create(_settings(args), args.tenant, args.name)
    except ValueError as error:
        raise UsageError(f"--tenant: {error}") from None
    return 0


def _list_keys(args: argparse.Namespace) -> int:
    from deploy import keys

    keys.show(_settings(args))
    return 0


def _revoke_key(args: argparse.Namespace) -> int:
    from deploy import keys
    from service.api_keys import id_of

    key_id = id_of(args.id)
    if not keys.revoke(_settings(args), key_id):
        _say(f"atelier: there is no key {key_id!r}; `atelier keys list` shows all")
        return EXIT_FAILED
    _say(f"revoked {key_id}")
    return 0


def _profile(args: argparse.Namespace) -> int:
    from deploy.profiling import Refused, profile
    from service.jobs.profiles import Wish

    wish = Wish(args.steps, args.seconds, args.wait, raw=args.output is not None)
    try:
        profile(_settings(args), args.pool, wish, args.output, as_json=args.json)
    except Refused as refusal:
        _say(f"atelier: {refusal}")
        return EXIT_FAILED
    return 0


# What `generate` does


def _request(args: argparse.Namespace) -> dict[str, Any]:
    body = _given(
        prompt=args.prompt,
        model=args.model,
        negative_prompt=args.negative_prompt,
        width=args.width,
        height=args.height,
        num_frames=args.num_frames,
        fps=args.fps,
        num_inference_steps=args.steps,
        scheduler=args.scheduler,
        guidance_scale=args.guidance,
        guidance_scale_2=args.guidance_2,
        guidance_rescale=args.guidance_rescale,
        true_cfg_scale=args.true_cfg_scale,
        seed=args.seed,
        num_images=args.num_images,
        strength=args.strength,
    )
    files = {"image": args.image, "mask_image": args.mask, "last_image": args.last_image}
    body |= {name: _encoded(path) for name, path in files.items() if path}
    if args.output:
        body["output"] = {"format": _format(args.output)}
    return body


def _encoded(path: Path) -> str:
    try:
        return base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise UsageError(f"can't read {str(path)!r}: {error.strerror}") from None


def _format(path: Path) -> str:
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {str(path.parent)!r}")
    if _is_folder(path):
        return "png"
    try:
        return FORMATS[path.suffix.lower()]
    except KeyError:
        raise UsageError(f"{path.name!r} must end in {', '.join(FORMATS)}") from None


def _is_folder(path: Path) -> bool:
    return path.is_dir() or not path.suffix


def _make(client: Client, body: Mapping[str, Any], output: Path | None) -> int:
    client.submit(body)
    _show(client.follow())
    job = client.job()
    if job["state"] != "succeeded":
        _say(f"atelier: {_reason(job)}")
        return EXIT_FAILED
    for item in job["outputs"]:
        path = _path(output, item, len(job["outputs"]))
        path.write_bytes(client.output(item["url"]))
        print(path)
    return 0


def _show(events: Iterable[Event]) -> None:
    """A progress bar on a terminal, a few plain lines elsewhere; never on standard output."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        return _tell(events)
    columns = (TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("waiting", total=None)
        for event in events:
            progress.update(task, description=_doing(event), **_counts(event))


def _tell(events: Iterable[Event]) -> None:
    quarter = -1
    for event in events:
        counts = _counts(event)
        if not counts:
            _say(_doing(event))
        elif (now := 4 * counts["completed"] // counts["total"]) > quarter:
            quarter = now
            _say(f"step {counts['completed']} of {counts['total']}")


def _doing(event: Event) -> str:
    return {"queued": "waiting", "progress": "running", "preview": "running"}.get(
        event.name, event.name
    )


def _counts(event: Event) -> dict[str, Any]:
    if not event.data.get("steps"):
        return {}
    return {"completed": event.data["step"], "total": event.data["steps"]}


def _reason(job: Mapping[str, Any]) -> str:
    said = {"canceled": "the job was canceled", "expired": "the job's deadline passed"}
    error = job.get("error") or {}
    return said.get(job["state"]) or error.get("message") or "the job failed"


def _path(output: Path | None, item: Mapping[str, Any], count: int) -> Path:
    """Where one of `count` outputs goes; their names sort as they are counted."""
    suffix = item["content_type"].partition("/")[2]
    if output is None:
        return Path(f"atelier-{item['seed']}.{suffix}")
    number = f"{item['index']:0{len(str(count - 1))}}"
    if _is_folder(output):
        output.mkdir(exist_ok=True)
        return output / f"{number}.{suffix}"
    return output if count == 1 else output.with_stem(f"{output.stem}-{number}")


def _cancel(client: Client) -> int:
    if client.job_id:
        client.cancel()
    _say("atelier: canceled")
    return EXIT_INTERRUPTED


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
