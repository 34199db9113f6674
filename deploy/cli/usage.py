"""`atelier usage`: sum up the usage of tenants, from the ledger's files in the store."""

from __future__ import annotations

import argparse
from datetime import MAXYEAR, UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.cli.options import Commands, add_settings, settings_of
from deploy.cli.output_files import check_writable
from deploy.exit_codes import UsageError

if TYPE_CHECKING:
    from deploy.admin.usage import Period

NAMES = (
    "tenant", "class", "key", "model", "checkpoint", "outcome", "chip", "spot", "pool", "region",
    "month", "day", "job",
)  # fmt: skip
FORMATS = ("table", "json", "csv", "parquet")


def add(commands: Commands) -> None:
    """Add the command `atelier usage` and its options to the parser."""
    parser = commands.add_parser("usage", help="sum the outputs and the usage of jobs")
    parser.add_argument(
        "--by",
        nargs="+",
        choices=NAMES,
        default=["tenant"],
        metavar="NAME",
        help=f"one sum for each of {', '.join(NAMES)}; several: for each combination "
        "(default: tenant)",
    )
    parser.add_argument(
        "--month",
        type=_month,
        nargs="?",
        const=datetime.now(UTC),
        metavar="YYYY-MM",
        help="records of one month, in UTC; without a value: of this one",
    )
    parser.add_argument(
        "--from", dest="begin", type=_day, metavar="YYYY-MM-DD", help="records from that day on"
    )
    parser.add_argument(
        "--to", dest="end", type=_day, metavar="YYYY-MM-DD", help="records up to that day's end"
    )
    parser.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="add the cost, by the prices in this file of Prometheus' rules (prices.yaml)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="table", help="output format (default: table)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="file to write (default: standard output)"
    )
    add_settings(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from deploy.admin import prices, usage

    check_writable(args.output)
    by_machine = args.prices and prices.read(args.prices)
    report = usage.Report(args.by, _span(args), args.format, by_machine)
    usage.show(settings_of(args), report, args.output)
    return 0


def _span(args: argparse.Namespace) -> Period:
    from deploy.admin.usage import Period

    if args.month is None:
        end = args.end and args.end + timedelta(days=1)
        if args.begin and end and args.begin >= end:
            raise UsageError("--to: it is before --from")
        return Period(args.begin, end)
    if args.begin or args.end:
        raise UsageError("--month cannot be combined with --from and --to")
    begin = args.month.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return Period(begin, (begin + timedelta(days=31)).replace(day=1))


def _month(text: str) -> datetime:
    return _date(text, "%Y-%m", "a month, such as 2026-11")


def _day(text: str) -> datetime:
    return _date(text, "%Y-%m-%d", "a day, such as 2026-11-30")


def _date(text: str, form: str, expected: str) -> datetime:
    try:
        date = datetime.strptime(text, form).replace(tzinfo=UTC)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {expected}, not {text!r}") from None
    if date.year == MAXYEAR:  # its end would exceed the range of datetime
        raise argparse.ArgumentTypeError(f"must be in a year before {MAXYEAR}, not {text!r}")
    return date
