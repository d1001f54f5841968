"""``ninfer-bench cohort``: several clients of a running server (speculation spec, 15.5).

Times of the server are those of its ``timings``; where they are missing, the client's own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import anyio

from ninfer.bench.clients import Answer, Wave, run_wave, served_model
from ninfer.bench.http_client import Target
from ninfer.bench.report import Json, Output, Parser, add_output, columns, head, percentiles
from ninfer.bench.workloads import BodyOf, Overrides, workload
from ninfer.options import OptionError

CONCURRENCY = "1,2,4,8"


def _parser() -> Parser:
    parser = Parser("ninfer-bench cohort", __doc__)
    add = parser.add_argument
    add("--url", required=True, help="of the server, such as http://127.0.0.1:8080")
    add("--workload", default="generation_1k", help="generation_1k, prefill, saturation, or a file of JSON lines")
    add("--concurrency", default=CONCURRENCY, metavar="N[,N]", help=f"clients at once ({CONCURRENCY})")
    add("--requests", type=int, metavar="N", help="requests of a wave (as many as clients)")
    add("--repeat", type=int, default=1, metavar="N", help="waves of each concurrency (1)")
    add("--api", default="chat", choices=("chat",), help="the API to use; this version has one")
    add("--temperature", type=float, default=0.0, metavar="F", help="of every request (0)")
    add("--seed", type=int, metavar="N", help="of every request")
    add("--reasoning-effort", metavar="E", help="of every request")
    add("--no-thinking", action="store_true", help="answer without thinking")
    add("--prompt-tokens", type=int, metavar="N", help="length of the prompts, roughly")
    add("--max-tokens", type=int, metavar="N", help="output limit of every request")
    add("--api-key", metavar="KEY", help="key that the server wants")
    add_output(parser, drawn=True)
    return parser


def overrides_of(options: argparse.Namespace, model: str) -> Overrides:
    """What is the same in every request."""
    fields: Json = {"model": model, "temperature": options.temperature}
    if options.seed is not None:
        fields["seed"] = options.seed
    if options.reasoning_effort is not None:
        fields["reasoning_effort"] = options.reasoning_effort
    if options.no_thinking:
        fields["enable_thinking"] = False
    return Overrides(options.prompt_tokens, options.max_tokens, fields)


def main(argv: Sequence[str]) -> int:
    """The subcommand; raises NinferError or OSError."""
    options = _parser().parse_args(argv)
    try:
        concurrencies = [int(text) for text in options.concurrency.split(",")]
    except ValueError:
        raise OptionError("--concurrency must be integers with commas between them") from None
    if min(concurrencies) < 1 or options.repeat < 1 or (options.requests is not None and options.requests < 1):
        raise OptionError("--concurrency, --repeat and --requests must be at least 1")
    output = Output.of(options)
    target = Target.of(options.url, options.api_key)
    report = anyio.run(_measure, target, options, concurrencies, argv)
    output.deliver(report, lambda: table(report))
    if output.plot is not None:
        from ninfer.bench.plot import plot_cohort

        plot_cohort(report, output.plot)
    return 0


async def _measure(
    target: Target, options: argparse.Namespace, concurrencies: Sequence[int], argv: Sequence[str]
) -> Json:
    model = await served_model(target)
    body_of = workload(options.workload, overrides_of(options, str(model["id"])))
    waves: list[Json] = []
    number = 0
    for concurrency in concurrencies:
        for repeat in range(options.repeat):
            requests = concurrency if options.requests is None else options.requests
            waves.append(wave_object(await _wave(target, body_of, requests, concurrency, repeat, number)))
            number += requests
    return {
        **head("ninfer_cohort_report", argv),
        "server": model,
        "settings": {"workload": options.workload, "api": options.api, "temperature": options.temperature},
        "waves": waves,
    }


async def _wave(target: Target, body_of: BodyOf, requests: int, concurrency: int, repeat: int, number: int) -> Wave:
    bodies = [body_of(number + index) for index in range(requests)]
    return await run_wave(target, bodies, concurrency, repeat, number)


def wave_object(wave: Wave) -> Json:
    """The report's object of a wave. A failed request counts as an error and leaves the sums."""
    good = [answer for answer in wave.answers if answer.error is None]
    outputs = sum(answer.output_tokens for answer in good)
    computed = sum(answer.computed_tokens for answer in good)
    prefill_s = sum(float(answer.timings.get("prompt_ms", 0.0)) for answer in good) / 1e3
    decode_s = max((answer.decode_s for answer in good), default=0.0)
    return {
        "concurrency": wave.concurrency,
        "requests": len(wave.answers),
        "repeat": wave.repeat,
        "wall_seconds": wave.wall_s,
        "prompt_tokens": sum(answer.prompt_tokens for answer in good),
        "computed_prompt_tokens": computed,
        "output_tokens": outputs,
        "errors": len(wave.answers) - len(good),
        "aggregate_prefill_tok_s": _rate(computed, wave.wall_s),
        "active_prefill_tok_s": _rate(computed, prefill_s),
        "decode_tok_s": _rate(outputs, decode_s),
        "steady_decode_tok_s": None,
        "end_to_end_tok_s": _rate(outputs, wave.wall_s),
        "ttft_ms": percentiles([1e3 * answer.ttft_s for answer in good if answer.ttft_s is not None]),
        "tpot_ms": percentiles([_tpot_ms(answer) for answer in good if answer.output_tokens > 1]),
        "gap_ms": percentiles([1e3 * gap for answer in good for gap in answer.gaps_s], mean=False),
        "acceptance": None,
        "tokens_per_round": None,
        "peak_device_bytes": None,
        "per_request": [answer.to_json() for answer in wave.answers],
    }


def _rate(count: float, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None


def _tpot_ms(answer: Answer) -> float:
    return 1e3 * answer.decode_s / (answer.output_tokens - 1)


def table(report: Json) -> str:
    """One line per wave."""
    waves = report["waves"]
    assert isinstance(waves, list)
    rows = [
        ["clients", "requests", "errors", "prefill tok/s", "decode tok/s", "end to end", "ttft p50 ms", "gap p99 ms"]
    ]
    for wave in waves:
        cells = [wave["active_prefill_tok_s"], wave["decode_tok_s"], wave["end_to_end_tok_s"]]
        cells += [(wave["ttft_ms"] or {}).get("p50"), (wave["gap_ms"] or {}).get("p99")]
        numbers = ["" if value is None else f"{value:.1f}" for value in cells]
        rows.append([str(wave["concurrency"]), str(wave["requests"]), str(wave["errors"]), *numbers])
    return columns(rows)
