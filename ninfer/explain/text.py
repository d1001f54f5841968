"""An account as lines for people. Times are since the arrival."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ninfer.explain.account import (
    FILE,
    Account,
    Admission,
    Begin,
    Cause,
    Chunk,
    End,
    Fate,
    Gap,
    GivenUp,
    Holder,
    LaneChoice,
)

# Longer lists are cut, and say how much of them is missing; `--json` has all of it.
MOST_LINES = 20
MOST_STEPS = 8
INDENT = " " * 12

_FATES = {
    "continued": "is continued by {who}",
    "kept": "makes room for {who}; the state at its end is kept as an image",
    "lost": "makes room for {who}; no state of its end is kept",
    "given up": "is gone: blocks of it were given up for {who}",
    "erased": "is erased",
    "overwritten": "makes room for a slot file",
    "fault": "is gone with a fault of the device",
}


def lines_of(account: Account) -> list[str]:
    """The account, oldest first."""
    known_as = f" ({account.name})" if account.name else ""
    blocks = sorted(_blocks(account), key=lambda block: block[0])
    return [f"request {account.request_id}{known_as}", *(line for _at, lines in blocks for line in lines)]


def _blocks(account: Account) -> Iterator[tuple[float, list[str]]]:
    """Lines that belong together, and the time at which they stand."""
    yield 0.0, [f"{_at(0.0)} arrived at {account.arrived:.3f} of the log; to be admitted by {account.deadline:+.3f} s"]
    yield from _waits(account)
    if account.prepared is not None:
        yield account.prepared, [_prepared(account, account.prepared)]
    if account.admission is not None:
        yield account.admission.at, list(_admission(account.admission))
    if account.begin is not None:
        yield account.begin.at, list(_begin(account.begin))
    if account.given_up:
        yield account.given_up[0].at, list(_given_up(account.given_up))
    yield from _chunks(account)
    if account.first_token is not None:
        yield account.first_token, [f"{_at(account.first_token)} first token"]
    if account.longest_gap is not None:
        yield account.longest_gap.begin, list(_gap(account.longest_gap))
    if account.last_token is not None:
        others = f", with up to {account.largest_round - 1} others" if account.largest_round > 1 else ""
        guesses = f", {account.accepted_tokens} of {account.drafted_tokens} guesses right"
        drawn = (
            f"{account.drawn_tokens} in all, {account.rounds} rounds{others}{guesses * bool(account.drafted_tokens)}"
        )
        yield account.last_token, [f"{_at(account.last_token)} last token: {drawn}"]
    if account.end is not None:
        yield account.end.at, [_end(account.end)]
    if account.released is not None:
        yield account.released, [f"{_at(account.released)} let go: the answer was written, or its client left"]
    if account.fate is not None:
        yield account.fate.at, [_fate(account.fate)]


def _prepared(account: Account, at: float) -> str:
    urgency = f", priority {account.priority}" if account.priority else ""
    limit = f"at most {account.max_tokens} to generate"
    return f"{_at(at)} prepared: {_tokens(account.prompt_tokens)} to read, {limit}{urgency}"


def _waits(account: Account) -> Iterator[tuple[float, list[str]]]:
    told = [wait for wait in account.waits if wait.end > wait.begin or wait is account.waits[-1]]
    for wait in told[:MOST_LINES]:
        yield wait.begin, [f"{_at(wait.begin)} {_cause(wait.cause)}, for {wait.end - wait.begin:.3f} s"]
    if len(told) > MOST_LINES:
        spent = sum(wait.end - wait.begin for wait in told[MOST_LINES:])
        yield told[MOST_LINES].begin, [f"{INDENT} and {len(told) - MOST_LINES} more waits, {spent:.3f} s in all"]


def _at(seconds: float) -> str:
    return f"{seconds:+10.3f} s"


def _tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"


def _who(request_id: int | None) -> str:
    if request_id is None:
        return "a slot action"
    return "a slot file" if request_id == FILE else f"request {request_id}"


def _list(request_ids: Sequence[int]) -> str:
    shown = ", ".join(str(request_id) for request_id in request_ids[:MOST_STEPS])
    more = len(request_ids) - MOST_STEPS
    return f"{'requests' if len(request_ids) > 1 else 'request'} {shown}" + (f" and {more} more" if more > 0 else "")


def _cut(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:MOST_LINES]
    if len(lines) > MOST_LINES:
        yield f"{INDENT} and {len(lines) - MOST_LINES} more such lines"


def _cause(cause: Cause) -> str:
    behind = f", behind {_list(cause.ahead)}" if cause.ahead else ""
    held = ", ".join(_holder(holder) for holder in cause.holders)
    pages = f"{cause.wanted} pages wanted, {cause.available} to be had"
    match cause.kind:
        case "preparing":
            return "was being prepared"
        case "lanes":
            return f"waited for a lane{behind}: {held}"
        case "pages":
            return f"waited for pages: {pages}, held by {held or 'nobody'}"
        case "order":
            return (
                f"waited its turn{behind}: {pages}, and it may pass only if nothing is displaced or brought back for it"
            )
        case "stopping":
            return f"waited, but the server was stopping{behind}"
        case "joins":
            return f"had a lane, and waited for a state that it can go on from: {held}"
        case _:
            return f"had a lane, and waited for the device: {held or 'steps of others'}"


def _holder(holder: Holder) -> str:
    pages = f" with {holder.pages} pages" if holder.pages else ""
    return f"lane {holder.lane} {holder.what.lower()} for {_who(holder.request_id)}{pages}"


def _admission(admission: Admission) -> Iterator[str]:
    passed = f", past {_list(admission.passed)}" if admission.passed else ""
    yield f"{_at(admission.at)} admitted to lane {admission.lane} with {admission.pages} pages{passed}"
    for choice in admission.choices:
        taken = "taken" if choice.lane == admission.lane else "idle"
        yield f"{INDENT}   lane {choice.lane} ({taken}): {_choice(choice)}"


def _choice(choice: LaneChoice) -> str:
    offers = "nothing to go on from"
    if choice.reusable_tokens:
        state = "its own state" if choice.source == "own" else f"a stored state ({choice.source})"
        offers = f"{_tokens(choice.reusable_tokens)} to go on from, by {state}"
    loss = "empty"
    if choice.session_tokens:
        loss = f"retains {_tokens(choice.session_tokens)} of {_who(choice.session_request_id)}"
    return f"{offers}; {loss}"


def _given_up(given_up: Sequence[GivenUp]) -> Iterator[str]:
    pages, parked = sum(one.pages for one in given_up), sum(one.parked_pages for one in given_up)
    images = sum(one.dropped_images for one in given_up)
    until = f" until {given_up[-1].at:+.3f} s" if len(given_up) > 1 else ""
    to_host = f", {parked} of them to host memory" if parked else ""
    states = f"; {images} stored states went with them" if images else ""
    yield f"{_at(given_up[0].at)} {pages} pages that nobody used were given up for it{until}{to_host}{states}"
    for one in given_up:
        for lane in one.forgotten_lanes:
            yield f"{INDENT}   lane {lane} lost its session with that, at {one.at:+.3f} s"


def _begin(begin: Begin) -> Iterator[str]:
    yield f"{_at(begin.at)} begun in lane {begin.lane}: {begin.way}, {_tokens(begin.cached_tokens)} reused"
    if begin.state == "own":
        yield f"{INDENT}   the state is the lane's own, left by {_who(begin.state_request_id)}"
    elif begin.state == "image":
        yield f"{INDENT}   the state is a stored one of {_who(begin.state_request_id)}"
    for origin in begin.origins:
        yield f"{INDENT}   tokens [{origin.begin}, {origin.end}) were read or drawn by {_who(origin.request_id)}"
    if begin.loaded_pages:
        yield f"{INDENT}   {begin.loaded_pages} pages came back from host memory"
    if begin.displaced is not None:
        session = f"the lane's session of {_tokens(begin.displaced.tokens)} by {_who(begin.displaced.request_id)}"
        yield f"{INDENT}   {session} {_FATES[begin.displaced.fate].format(who='this one')}"


def _chunks(account: Account) -> Iterator[tuple[float, list[str]]]:
    lines = [(chunk.launched, _chunk(chunk)) for chunk in account.chunks]
    for pause in account.set_aside:
        others = ", ".join(f"{_tokens(tokens)} of request {name}" for name, tokens in pause.tokens.items())
        lines.append((pause.begin, f"{_at(pause.begin)} set aside for {pause.end - pause.begin:.3f} s: {others} read"))
    lines.sort(key=lambda line: line[0])
    yield from ((at, [line]) for at, line in lines[:MOST_LINES])
    if len(lines) > MOST_LINES:
        yield lines[MOST_LINES][0], [f"{INDENT} and {len(lines) - MOST_LINES} more chunks"]


def _chunk(chunk: Chunk) -> str:
    took = "never landed" if chunk.landed is None else f"landed after {chunk.landed - chunk.launched:.3f} s"
    device = "" if chunk.landed is None else f", {chunk.device_s:.3f} s on the device"
    stored = ", its state is stored" if chunk.stored else ""
    size = _tokens(chunk.end - chunk.begin)
    return f"{_at(chunk.launched)} chunk [{chunk.begin}, {chunk.end}), {size}: {took}{device}{stored}"


def _gap(gap: Gap) -> Iterator[str]:
    others = len(gap.ran) - 1
    yield f"{_at(gap.begin)} longest gap between tokens: {gap.end - gap.begin:.3f} s, with {others} other steps in it"
    lines = []
    for ran in gap.ran:
        what = f"round of {_list(ran.request_ids)}"
        if ran.kind == "chunk":
            what = f"chunk of {_tokens(ran.tokens)} of request {ran.request_ids[0]}"
        elif ran.kind == "part":
            what = f"part of a chunk of request {ran.request_ids[0]}"
        lines.append(f"{INDENT}   {what}: {ran.device_s:.3f} s on the device")
    yield from _cut(lines)


def _end(end: End) -> str:
    kept = "nothing of it is retained"
    if end.retained_tokens:
        kept = f"lane {end.lane} retains {_tokens(end.retained_tokens)}"
    return f"{_at(end.at)} ended: {end.reason}; {kept}"


def _fate(fate: Fate) -> str:
    return f"{_at(fate.at)} its session {_FATES[fate.what].format(who=_who(fate.request_id))}"
