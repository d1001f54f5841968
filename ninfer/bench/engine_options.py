"""The command line of ``ninfer-bench engine``: what to measure, and the server's options for the engine. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ninfer.bench.report import Output, Parser, add_output
from ninfer.config import Settings
from ninfer.options import OPTIONS, OptionError, parse
from ninfer.step import PAGE_TOKENS, pages_for

# Options of ``ninfer-serve`` that mean something without HTTP (serving spec, 18.2, 18.3 and 18.9).
ENGINE_OPTIONS = frozenset(
    {
        "--max-context", "--kv-capacity", "--max-concurrency", "--prefill-chunk", "--device-memory-limit",
        "--kv-headroom-mib", "--deterministic", "--no-cuda-graph", "--device", "--kv-dtype",
        "--short-chunk-products",
    }
)  # fmt: skip
GUESSING_OPTIONS = frozenset({"--spec", "--draft-tokens", "--lm-head-draft", "--ngram-draft-tokens"})
MAX_COLUMNS = 16
# Rounds that a lane is decoded before a round of several columns is measured, so that its open block is half full.
OPEN_ROWS = PAGE_TOKENS // 2
WARM_ROUNDS = 16  # before those that are profiled


@dataclass(frozen=True, slots=True)
class Test:
    """One row of the table: read `prompt` tokens in each of `lanes` lanes, then decode `output` rounds of them.

    assumed    the prompt is not read: its positions are taken for granted, with random contents of the cache
    """

    prompt: int
    output: int
    lanes: int = 1
    assumed: bool = False

    @property
    def name(self) -> str:
        lanes = f"x{self.lanes}" if self.lanes > 1 else ""
        if not self.output:
            return f"pp{self.prompt}"
        if self.assumed:
            return f"tg{self.output}@{self.prompt}{lanes}"
        return f"tg{self.output}{lanes}" if self.prompt == 1 else f"pp{self.prompt}+tg{self.output}{lanes}"

    @property
    def measures_prefill(self) -> bool:
        return self.prompt > 1 and not self.assumed

    @property
    def positions(self) -> int:
        """Of one lane, at the end."""
        return self.prompt + self.output + 1


@dataclass(frozen=True, slots=True)
class EngineBench:
    """Everything that was asked for.

    capacity_tokens  what the tests need of the page pool
    columns          rounds of B lanes with L columns each, at `column_position`
    profile_rounds   rounds to look for idle time between, 0 for none
    long_s           a test whose first repetition takes longer is not repeated
    """

    settings: Settings
    capacity_tokens: int
    tests: tuple[Test, ...]
    columns: tuple[tuple[int, int], ...]
    column_position: int
    profile_rounds: int
    lanes: tuple[int, ...]
    repetitions: int
    warmup: int
    long_s: float
    interleave: bool
    corpus: Path | None
    output: Output


def _numbers(least: int) -> Callable[[str], tuple[int, ...]]:
    def read(text: str) -> tuple[int, ...]:
        try:
            values = tuple(int(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' must be integers with commas between them") from None
        if any(value < least for value in values):
            raise argparse.ArgumentTypeError(f"'{text}': each must be at least {least}")
        return values

    return read


def _pair(text: str) -> tuple[int, int]:
    values = _numbers(1)(text)
    if len(values) != 2:
        raise argparse.ArgumentTypeError(f"'{text}' must be two integers with a comma between them")
    return values[0], values[1]


def _parser() -> Parser:
    parser = Parser(
        "ninfer-bench [engine] MODEL.ninfer",
        "Drive the engine without HTTP: greedy, no stops, no prefix reuse. Options of ninfer-serve for the engine are "
        f"taken too: {', '.join(sorted(ENGINE_OPTIONS))}.",
    )
    add = parser.add_argument
    add("-p", type=_numbers(0), default=(512,), metavar="N[,N]", help="read prompts of N tokens; 0: none (512)")
    add("-n", type=_numbers(0), default=(128,), metavar="N[,N]", help="decode N tokens after one; 0: none (128)")
    add("-pg", type=_pair, default=[], action="append", metavar="P,G", help="decode G tokens at depth P; repeatable")
    add("--lanes", type=_numbers(1), default=(1,), metavar="N[,N]", help="lanes decoded together (1)")
    add("--assume-depth", action="store_true", help="with -pg: do not read the P tokens, take them for granted")
    add("--columns", type=_pair, default=[], action="append", metavar="B,L", help="a round of B lanes, L columns each")
    add("--column-position", type=int, default=992, metavar="N", help="where those rounds stand (992)")
    add("--profile-rounds", type=int, default=0, metavar="N", help="look for idle time between N rounds")
    add("-r", type=int, default=5, metavar="N", help="measured repetitions of a test (5)")
    add("--warmup", type=int, default=1, metavar="N", help="repetitions before those (1)")
    add("--long", type=float, default=20.0, metavar="S", help="run a test once that takes longer than this (20)")
    add("--interleave", action="store_true", help="repetitions of all tests in turn")
    add("--corpus", type=Path, metavar="FILE", help="UTF-8 text to read (a text of the package)")
    add_output(parser, drawn=True)
    return parser


def parse_engine(argv: Sequence[str]) -> EngineBench:
    """The measurements that a command line asks for; raises OptionError."""
    options, rest = _parser().parse_known_args(argv)
    _check_server_options(rest)
    if options.r < 1 or options.warmup < 0 or options.profile_rounds < 0:
        raise OptionError("-r must be at least 1, --warmup and --profile-rounds at least 0")
    if any(lanes > 8 for lanes in (*options.lanes, *(rows for rows, _ in options.columns))):
        raise OptionError("at most 8 lanes are decoded together")
    if any(columns > MAX_COLUMNS for _, columns in options.columns):
        raise OptionError(f"a round has at most {MAX_COLUMNS} columns of a lane")
    if options.column_position <= PAGE_TOKENS or (options.column_position - OPEN_ROWS) % PAGE_TOKENS:
        raise OptionError(f"--column-position must be {OPEN_ROWS} more than a positive multiple of {PAGE_TOKENS}")
    tests = _tests(options)
    if not (tests or options.columns or options.profile_rounds):
        raise OptionError("nothing to measure")
    needs = _needs(options, tests)
    return EngineBench(
        settings=parse([*rest, *_sizes(needs, rest)]),
        capacity_tokens=needs.capacity,
        tests=tests,
        columns=tuple(options.columns),
        column_position=options.column_position,
        profile_rounds=options.profile_rounds,
        lanes=options.lanes,
        repetitions=options.r,
        warmup=options.warmup,
        long_s=options.long,
        interleave=options.interleave,
        corpus=options.corpus,
        output=Output.of(options),
    )


def _check_server_options(rest: Sequence[str]) -> None:
    for argument in rest:
        name = argument.partition("=")[0]
        if name in GUESSING_OPTIONS:
            raise OptionError(f"{name}: rounds with guesses are measured by python -m ninfer.bench.speculation")
        if name in OPTIONS and name not in ENGINE_OPTIONS:
            raise OptionError(f"{name} is an option of ninfer-serve that does not concern the engine")


def _tests(options: argparse.Namespace) -> tuple[Test, ...]:
    found = [Test(prompt, 0) for prompt in options.p if prompt]
    found += [Test(1, output, lanes) for output in options.n if output for lanes in options.lanes]
    for prompt, output in options.pg:
        if options.assume_depth and prompt % PAGE_TOKENS:
            raise OptionError(f"--assume-depth needs depths that are multiples of {PAGE_TOKENS}")
        found += [Test(prompt, output, lanes, options.assume_depth) for lanes in options.lanes]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Needs:
    """Longest sequence, tokens of the page pool, lanes."""

    context: int
    capacity: int
    lanes: int


def _needs(options: argparse.Namespace, tests: Sequence[Test]) -> _Needs:
    needs = [(test.positions, test.lanes) for test in tests]
    needs += [(options.column_position + MAX_COLUMNS + 1, rows) for rows, _ in options.columns]
    if options.profile_rounds:
        needs += [(options.profile_rounds + WARM_ROUNDS + 2, lanes) for lanes in options.lanes]
    context = max(positions for positions, _ in needs)
    capacity = PAGE_TOKENS * max(lanes * pages_for(positions) for positions, lanes in needs)
    return _Needs(context, capacity, max(lanes for _, lanes in needs))


def _sizes(needs: _Needs, rest: Sequence[str]) -> list[str]:
    """What the tests need, as options of the server, where the user gave none."""
    context = PAGE_TOKENS * pages_for(needs.context)
    wanted = {
        "--max-context": (needs.context, context),
        "--kv-capacity": (needs.capacity, max(context, needs.capacity)),
        "--max-concurrency": (needs.lanes, needs.lanes),
    }
    words: list[str] = []
    for name, (least, value) in wanted.items():
        given = _given(rest, name)
        if given is None:
            words += [name, str(value)]
        elif 0 < given < least:
            raise OptionError(f"{name} {given} leaves no room for the tests, which need {least}")
    return words


def _given(rest: Sequence[str], wanted: str) -> int | None:
    """The number that the user gave for an option; 0 for what is not one, which the server's parser judges."""
    for at, argument in enumerate(rest):
        name, has_value, attached = argument.partition("=")
        if name == wanted:
            text = attached if has_value else rest[at + 1] if at + 1 < len(rest) else ""
            return int(text) if text.isdecimal() else 0
    return None
