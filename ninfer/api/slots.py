"""``POST /slots/{id}?action=A``: save, restore and erase the session of a lane (serving spec, 15.1)."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer.actors.gateway import Gateway
from ninfer.actors.messages import EraseSlot, RestoreSlot, SaveSlot, SlotMessage, SlotOutcome
from ninfer.api.body import parse_object
from ninfer.api.fields import text
from ninfer.errors import InvalidFilename, RequestRejected, Unsupported
from ninfer.snapshots.folder import check_filename

ACTIONS = ("save", "restore", "erase")


async def act_on_slot(
    gateway: Gateway, slot: str, action: str | None, body: bytes, *, lanes: int, enabled: bool
) -> Mapping[str, object]:
    """Answer one action; raises in the contract's order: off, slot, body, action, filename, then the slot's state."""
    if not enabled:
        raise Unsupported("Slots are saved and erased with --slot-save-path only.", code="slot_persistence_disabled")
    message = _parsed(slot, action, body, lanes)
    outcome = await gateway.act_on_slot(message)
    return _answer(message, outcome)


def _parsed(slot: str, action: str | None, body: bytes, lanes: int) -> SlotMessage:
    if not slot.isascii() or not slot.isdigit() or len(slot) > 9 or int(slot) >= lanes:
        raise RequestRejected(f"slots are numbered 0 to {lanes - 1}", code="invalid_slot")
    try:
        members = parse_object(body) if body.strip() else {}
    except RequestRejected as error:
        raise RequestRejected(error.message, code="invalid_request") from None
    if action not in ACTIONS:
        raise RequestRejected(f"action must be one of {', '.join(ACTIONS)}", code="invalid_action")
    lane = int(slot)
    if action == "erase":
        return EraseSlot(lane, _if_digest(members))
    filename = members.get("filename")
    if not isinstance(filename, str):
        raise InvalidFilename
    check_filename(filename)
    return SaveSlot(lane, filename, _if_digest(members)) if action == "save" else RestoreSlot(lane, filename)


def _if_digest(members: Mapping[str, object]) -> str | None:
    try:
        return text(members, "if_digest")
    except RequestRejected as error:
        raise RequestRejected(error.message, code="invalid_request") from None


def _answer(message: SlotMessage, outcome: SlotOutcome) -> Mapping[str, object]:
    milliseconds = 1000 * outcome.seconds
    match message:
        case SaveSlot():
            return {
                "id_slot": message.lane,
                "filename": message.filename,
                "n_saved": outcome.tokens,
                "n_written": outcome.file_bytes,
                "session_digest": outcome.session_digest,
                "timings": {"save_ms": milliseconds},
            }
        case RestoreSlot():
            return {
                "id_slot": message.lane,
                "filename": message.filename,
                "n_restored": outcome.tokens,
                "n_read": outcome.file_bytes,
                "session_digest": outcome.session_digest,
                "timings": {"restore_ms": milliseconds},
            }
        case EraseSlot():
            return {"id_slot": message.lane, "n_erased": outcome.tokens}
