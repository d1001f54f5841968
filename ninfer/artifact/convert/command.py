"""``ninfer-artifact convert`` (artifact spec, section 12.4)."""

from __future__ import annotations

import argparse
from pathlib import Path

from ninfer.artifact.convert.convert import BASE_COMPONENTS, Conversion, convert
from ninfer.artifact.parameters import DRAFTERS
from ninfer.artifact.placement import DEFAULT_MAX_FILE_BYTES
from ninfer.artifact.progress import progress_bar
from ninfer.artifact.recipes import RECIPE_NAMES
from ninfer.artifact.registered import PROPOSAL_ROWS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="checkpoint directory")
    parser.add_argument("--recipe", choices=RECIPE_NAMES, default="generic_int", help="default: %(default)s")
    parser.add_argument(
        "--components",
        type=_components,
        metavar="LIST",
        help="comma-separated: text, vision, mtp, dflash, dflash2; default: all that the checkpoint has",
    )
    parser.add_argument(
        "--source",
        type=_source,
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="checkpoint of a drafter: dflash=DIR or dflash2=DIR",
    )
    parser.add_argument("--proposal", action="store_true", help="write a draft head; needs --ranking or --unranked")
    parser.add_argument("--proposal-rows", type=int, metavar="N", help=f"rows of the draft head ({PROPOSAL_ROWS})")
    ranking = parser.add_mutually_exclusive_group()
    ranking.add_argument("--ranking", type=Path, metavar="FILE", help="token counts that choose the draft head's rows")
    ranking.add_argument("--unranked", action="store_true", help="choose the draft head's rows as if all counts were 0")
    parser.add_argument(
        "--resource",
        type=_resource,
        action="append",
        default=[],
        metavar="ROLE=FILE",
        help="take a frontend file from elsewhere, e.g. chat_template.jinja=FILE",
    )
    parser.add_argument("--name", help="public model name; default: the registered name, or the directory's")
    parser.add_argument("--max-file-bytes", type=int, default=DEFAULT_MAX_FILE_BYTES, metavar="N")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="artifact to write")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Convert; returns 0. Faults of the input are raised as ArtifactError, of the command line as SystemExit(2)."""
    if args.proposal and not (args.ranking or args.unranked):
        args.usage_error("--proposal needs --ranking FILE, or --unranked to take token ids in order")
    if not args.proposal and (args.ranking or args.unranked or args.proposal_rows is not None):
        args.usage_error("--ranking, --unranked and --proposal-rows need --proposal")
    if args.proposal_rows is not None and args.proposal_rows < 1:
        args.usage_error("--proposal-rows must be at least 1")
    conversion = Conversion(
        model=args.model,
        recipe=args.recipe,
        out=args.out,
        components=args.components,
        drafts=dict(args.source),
        proposal_rows=(args.proposal_rows or PROPOSAL_ROWS) if args.proposal else None,
        ranking=args.ranking,
        resources=dict(args.resource),
        name=args.name,
        max_file_bytes=args.max_file_bytes,
    )
    with progress_bar("converting") as progress:
        report = convert(conversion, progress)
    size = sum(file["bytes"] for file in report["files"])
    print(f"{args.out}: {size:,} bytes, {report['objects']} objects, artifact {report['artifact_id']}")
    return 0


def _components(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    known = (*BASE_COMPONENTS, *DRAFTERS)
    if "text" not in names or not set(names) <= set(known) or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"must list text and any of {', '.join(known[1:])}, each once: {text!r}")
    return names


def _source(text: str) -> tuple[str, Path]:
    name, found, path = text.partition("=")
    if not found or name not in DRAFTERS or not path:
        raise argparse.ArgumentTypeError(f"must be dflash=DIR or dflash2=DIR: {text!r}")
    return name, Path(path)


def _resource(text: str) -> tuple[str, Path]:
    role, found, path = text.partition("=")
    if not found or not role or not path:
        raise argparse.ArgumentTypeError(f"must be ROLE=FILE: {text!r}")
    return role, Path(path)
