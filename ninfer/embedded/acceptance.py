"""What the embedded model's guesses are worth, by task, and that they change no answer.

    python -m ninfer.embedded.acceptance [--drafts LIST] [--cases N] [--seed N] [--device DEVICE] [--limit N]
        [--only LIST] [--json FILE]

Every case is answered greedily without guesses and with each number of guesses of the list; ids that differ are an
error. Shown are tokens per round, the share of right guesses by their place in the round, and tokens per second of
decoding with and without.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ninfer.artifact.container import Artifact
from ninfer.config import EngineSettings
from ninfer.embedded import ARTIFACT
from ninfer.embedded.answers import Answer, answer
from ninfer.embedded.generate.documents import Renderer
from ninfer.embedded.generate.tasks import TASKS, held_out_cases
from ninfer.engine.device_engine import DeviceEngine
from ninfer.engine.devices import with_device
from ninfer.engine.engine import Engine
from ninfer.engine.loading import bind_for, load_engine
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer

CONTEXT_TOKENS = 16384 + 512


@dataclass(frozen=True, slots=True)
class Worth:
    """Of the cases of one task with one number of guesses.

    by_position   share of rounds in which the guess at this place was right, of those that had one there
    """

    task: str
    drafts: int
    cases: int
    tokens: int
    tokens_per_round: float
    by_position: tuple[float, ...]
    tokens_per_s: float
    plain_tokens_per_s: float


def worth(task: str, drafts: int, plain: list[Answer], guessed: list[Answer]) -> Worth:
    """Sum the rounds of all cases of a task."""
    rounds = [drawn for each in guessed for drawn in each.rounds]
    tried = [sum(drawn.drafted > place for drawn in rounds) for place in range(drafts)]
    right = [sum(drawn.accepted > place for drawn in rounds) for place in range(drafts)]
    drawn = sum(len(each.token_ids) for each in rounds)
    return Worth(
        task=task,
        drafts=drafts,
        cases=len(guessed),
        tokens=drawn,
        tokens_per_round=drawn / max(1, len(rounds)),
        by_position=tuple(good / max(1, count) for good, count in zip(right, tried, strict=True)),
        tokens_per_s=drawn / sum(each.decode_s for each in guessed),
        plain_tokens_per_s=drawn / sum(each.decode_s for each in plain),
    )


def measure(
    artifact: Artifact, settings: EngineSettings, drafts: list[int], only: list[str], seed: int, cases: int, limit: int
) -> list[Worth]:
    """A row for each number of guesses and task whose name contains one of `only`.

    Raises ValueError where ids differ.
    """
    guessing = replace(settings, drafter="mtp", draft_tokens=max(drafts), draft_head=True)
    bound = bind_for(artifact, guessing)
    tokenizer = Tokenizer.from_resources(
        bound.resource("text", "tokenizer.json"),
        bound.optional_resource("text", "tokenizer_config.json"),
        bound.optional_resource("text", "generation_config.json"),
    )
    source = bound.resource("text", "chat_template.jinja").decode()
    renderer = Renderer(ChatTemplate(source, tuple(tokenizer.control_ids)), tokenizer)
    engines: list[Engine | DeviceEngine] = [
        load_engine(bind_for(artifact, kind), kind, tokenizer.id_count) for kind in (settings, guessing)
    ]
    rows = []
    for task in (task for task in TASKS if any(word in task.name for word in only)):
        prompts = [tokenizer.encode_prompt(renderer.prompt(case)) for case in held_out_cases(task, seed, cases)]
        plain = [answer(engines[0], prompt, tokenizer.stop_ids, limit) for prompt in prompts]
        for count in drafts:
            guessed = [answer(engines[1], prompt, tokenizer.stop_ids, limit, count) for prompt in prompts]
            for number, (one, other) in enumerate(zip(plain, guessed, strict=True)):
                if one.ids != other.ids:
                    raise ValueError(f"{task.name}, case {number}, {count} guesses: {other.ids} instead of {one.ids}")
            rows.append(worth(task.name, count, plain, guessed))
            print(_line(rows[-1]), flush=True)
    return rows


def _line(row: Worth) -> str:
    places = " ".join(f"{share:.2f}" for share in row.by_position)
    return (
        f"{row.task}, {row.drafts} guesses: {row.cases} answers alike, {row.tokens_per_round:.2f} tokens a round, "
        f"right {places}, {row.tokens_per_s:.0f} tokens/s, {row.plain_tokens_per_s:.0f} without"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafts", default="1,3,5", help="numbers of guesses a round")
    parser.add_argument("--cases", type=int, default=10, help="cases of each task")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int, default=96, help="most tokens of an answer")
    parser.add_argument("--only", default="", metavar="LIST", help="tasks whose names contain one of these texts")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    on_gpu = args.device != "cpu"
    settings = with_device(
        EngineSettings(
            device=args.device,
            max_context_tokens=CONTEXT_TOKENS,
            kv_capacity_tokens=CONTEXT_TOKENS,
            kv_dtype="int8" if on_gpu else "bf16",
            compute_dtype="bf16" if on_gpu else "fp32",
        )
    )
    drafts = [int(word) for word in args.drafts.split(",")]
    with Artifact.open(ARTIFACT) as artifact:
        try:
            rows = measure(artifact, settings, drafts, args.only.split(","), args.seed, args.cases, args.limit)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
