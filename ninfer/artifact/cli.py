"""``ninfer-artifact``: inspect, verify, upgrade, convert, synth (artifact spec, section 12.4).

Exit status 0: done; 1: the file is bad or the work failed; 2: the command line is wrong. A subcommand's modules are
imported when it is chosen, so that inspecting and upgrading need nothing but the standard library.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from ninfer.errors import ArtifactError


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _inspect(args: argparse.Namespace) -> int:
    from ninfer.artifact.inspection import inspect, report

    listing = inspect(args.file)
    _print(json.dumps(listing.to_json(), ensure_ascii=False, indent=2) if args.json else report(listing))
    return 0


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--values", action="store_true", help="also check every stored value (reads the whole file)")
    parser.add_argument("--sha256", action="store_true", help="also compare with the published file, if there is one")


def _verify(args: argparse.Namespace) -> int:
    from ninfer.artifact.progress import progress_bar
    from ninfer.artifact.verify import check_digest, verify

    with progress_bar("checking values") as progress:
        faults = verify(args.file, values=args.values, progress=progress)
    for fault in faults:
        _complain(fault)
    if args.sha256:
        with progress_bar("computing SHA-256") as progress:
            digest, published = check_digest(args.file, progress=progress)
        _print(f"{args.file}: SHA-256 {digest}, {'as published' if published else 'no published file to compare with'}")
    if faults:
        return 1
    _print(f"{args.file}: ok")
    return 0


def _upgrade_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", metavar="OLD", help="version 1 or 2 file")
    parser.add_argument("new", metavar="NEW", nargs="?", help="version 3 file to write")
    parser.add_argument("--chat-template", metavar="FILE", type=Path, help="replace the stored chat template")
    parser.add_argument("--in-place", action="store_true", help="only turn a published version 1 file into version 2")
    parser.set_defaults(usage_error=parser.error)


def _upgrade(args: argparse.Namespace) -> int:
    from ninfer.artifact.upgrade import known_version_1_files, no_progress, upgrade, upgrade_in_place

    def progress_bar(title: str) -> AbstractContextManager[Callable[[int, int], None]]:
        # The upgrade also runs where nothing is installed; then it is silent.
        if importlib.util.find_spec("rich") is None:
            return nullcontext(no_progress)
        from ninfer.artifact.progress import progress_bar as rich_progress_bar

        return rich_progress_bar(title)

    if args.in_place:
        if args.new is not None or args.chat_template is not None:
            args.usage_error("--in-place takes one file and no --chat-template")
        with progress_bar("checking the file") as progress:
            changed = upgrade_in_place(args.old, known_version_1_files(), progress=progress)
        _print(f"{args.old}: {'is version 2 now' if changed else 'was version 2 already'}")
        return 0
    if args.new is None:
        args.usage_error("NEW is needed, or --in-place")
    template = None if args.chat_template is None else args.chat_template.read_bytes()
    if template == b"":
        args.usage_error("the file of --chat-template is empty")
    with progress_bar("copying the payload") as progress:
        upgrade(args.old, args.new, chat_template=template, progress=progress)
    _print(f"{args.new}: version 3 written")
    return 0


Arguments = Callable[[argparse.ArgumentParser], None]
Run = Callable[[argparse.Namespace], int]

_HERE: dict[str, tuple[str, Arguments, Run]] = {
    "inspect": ("list header, components, formats and files", _inspect_arguments, _inspect),
    "verify": ("check structure, bindings, and on request values and digest", _verify_arguments, _verify),
    "upgrade": ("rewrite a version 1 or 2 file", _upgrade_arguments, _upgrade),
}
_ELSEWHERE = {
    "convert": ("make an artifact from a Hugging Face checkpoint", "ninfer.artifact.convert.command"),
    "synth": ("make a random artifact of a registered model", "ninfer.artifact.synth"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status, usage faults and --help included."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except ArtifactError as error:
        _complain(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        _complain(f"{where}{error.strerror or error}")
    return 1


def _run(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="ninfer-artifact", description="Work with .ninfer model files.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    runs: dict[str, Run] = {}
    for name, (summary, add_arguments, run) in _HERE.items():
        add_arguments(commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."))
        runs[name] = run
    for name, (summary, module_name) in _ELSEWHERE.items():
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if words[:1] == [name]:
            module = importlib.import_module(module_name)
            module.add_arguments(command)
            runs[name] = module.run
    args = parser.parse_args(words)
    return runs[args.command](args)


def _printable(text: str, encoding: str | None) -> str:
    """Names come from files: what the terminal cannot show is escaped, control characters above all."""
    escaped = "".join(sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1] for sign in text)
    known = encoding or "utf-8"
    return escaped.encode(known, "backslashreplace").decode(known)


def _print(text: str) -> None:
    print(_printable(text, sys.stdout.encoding))


def _complain(text: str) -> None:
    print(_printable(f"ninfer-artifact: {text}", sys.stderr.encoding), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
