"""What a session in a file must fulfil: the same rules for a save and for a restore (serving spec, 15.4).

Every function returns what is wrong as the rest of a sentence about the session snapshot, or None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ninfer.step import MOST_DRAFTS, PAGE_TOKENS, pages_for

# From a state to the tokens behind it, at most.
FARTHEST = PAGE_TOKENS + MOST_DRAFTS

# Fields of the configuration by the name under which a difference is reported.
GROUPS = {
    # First, because a drafter has planes in the pages.
    "speculative configuration": (
        "spec_backend", "draft_window", "draft_slot_bytes", "backend_planes", "backend_page_bytes",
    ),
    "KV configuration": ("kv_dtype", "quant_group", "kv_flags", "page_size", "text_planes", "text_page_bytes"),
    "state geometry": ("gdn_layers", "conv_slot_bytes", "recurrent_slot_bytes", "tail_hidden_bytes"),
}  # fmt: skip


def config_fault(found: Mapping[str, int], wanted: Mapping[str, int]) -> str | None:
    """The first group of section 4 in which a file and the server differ, with the field."""
    for group, names in GROUPS.items():
        for name in names:
            if found[name] != wanted[name]:
                there, here = found[name], wanted[name]
                return f"{group} does not match the server: {name} is {there} in the file and {here} here"
    return None


def session_fault(session: Mapping[str, int], max_context_tokens: int) -> str | None:
    """The first rule that section 5 breaks.

    Beyond 15.4 it asks for what a restore by this server relies on: states at block starts, and pages that cover them.
    """
    tokens, execution, state = session["tokens"], session["execution_frontier"], session["state_frontier"]
    covered, pages, checkpoint = session["text_kv_valid"], session["text_pages"], session["checkpoint_frontier"]
    held = session["checkpoint_valid"]
    rules = (
        (1 <= tokens <= max_context_tokens, f"token count {tokens} is outside [1, {max_context_tokens}]"),
        (session["ledger_frontier"] == tokens, f"ledger frontier {session['ledger_frontier']} is not {tokens} tokens"),
        (
            execution in (tokens - 1, tokens),
            f"execution frontier {execution} is neither {tokens - 1} nor {tokens}",
        ),
        (
            # 15.4 asks for less than a block. An engine that folds a block when the next begins is a whole one behind
            # where its last round filled one, and by as many tokens more as guesses have led out of it.
            0 <= execution - state <= FARTHEST,
            f"state frontier {state} is not in the {FARTHEST} tokens up to the execution frontier {execution}",
        ),
        (state % PAGE_TOKENS == 0, f"state frontier {state} is not at a block start"),
        (
            state <= covered <= execution,
            f"KV of {covered} tokens is not between the state frontier {state} and the execution frontier {execution}",
        ),
        (
            pages_for(covered) <= pages <= pages_for(max_context_tokens),
            f"page count {pages} does not fit {covered} tokens of KV",
        ),
        (
            session["backend_kv_valid"] == 0 and session["backend_pages"] == 0,
            f"backend KV of {session['backend_kv_valid']} tokens, {session['backend_pages']} pages has no backend here",
        ),
        (session["rope_delta"] == 0, f"position shift {session['rope_delta']} is not that of a session of text"),
        (session["tail_hidden_valid"] == 0, "hidden row is not one that this server keeps"),
        (held in (0, 1), f"checkpoint flag {held} is neither 0 nor 1"),
        (bool(held) or checkpoint == 0, f"checkpoint frontier {checkpoint} is given without a checkpoint"),
        (
            checkpoint % PAGE_TOKENS == 0 and 0 <= checkpoint <= covered,
            f"checkpoint frontier {checkpoint} is not a block start within {covered} tokens of KV",
        ),
    )
    return next((fault for kept, fault in rules if not kept), None)


def ring_fault(frontiers: Sequence[int], covered: int) -> str | None:
    """The first rule that the frontiers of a ring break; `covered` is the KV that the pages hold, in tokens."""
    below = -1
    for frontier in frontiers:
        if frontier <= below:
            return f"ring frontier {frontier} does not ascend from {below}"
        if frontier % PAGE_TOKENS or frontier > covered:
            return f"ring frontier {frontier} is not a block start within {covered} tokens of KV"
        below = frontier
    return None
