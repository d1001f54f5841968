"""What a client is told when a request fails, in the shape of the protocol it speaks (serving spec, 3.1)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import orjson

from ninfer.errors import ActorStopped, DeadEnd, NinferError, Overloaded, RequestRejected, Unavailable, Unsupported

INTERNAL_MESSAGE = "Internal server error."


class Family(enum.Enum):
    """The protocol family of a path."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


def family_of(path: str) -> Family:
    """Everything is OpenAI's but ``/v1/messages`` and what is below it; Responses names its own faults differently."""
    for root, family in (("/v1/messages", Family.ANTHROPIC), ("/v1/responses", Family.RESPONSES)):
        if path == root or path.startswith(f"{root}/"):
            return family
    return Family.OPENAI


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as the client sees it.

    status          HTTP status; 0 < `retry_after_s` becomes ``Retry-After``
    kind, code      OpenAI's ``type`` and ``code``
    """

    status: int
    kind: str
    code: str | None
    param: str | None
    message: str
    retry_after_s: int = 0


_INTERNAL = Fault(500, "internal_error", None, None, INTERNAL_MESSAGE)

_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# An overloaded server and a queue timeout have statuses of their own there (serving spec, section 0).
_ANTHROPIC_STATUS = {"server_overloaded": 529, "request_queue_timeout": 504}


def fault_of(error: Exception) -> Fault:
    """The fault that an exception stands for. What is not meant for clients is an internal error without details."""
    match error:
        case Overloaded():
            return Fault(error.http_status, error.kind, error.code, None, error.message, error.retry_after_s)
        case RequestRejected():
            return Fault(error.http_status, error.kind, error.code, error.param, error.message)
        case Unavailable():
            return Fault(error.http_status, error.kind, error.code, None, error.message, error.retry_after_s)
        case Unsupported() | DeadEnd():
            return Fault(error.http_status, error.kind, error.code, None, error.message)
        case ActorStopped():
            return fault_of(Unavailable("The server is shutting down."))
        case NinferError():
            return _INTERNAL
    return _INTERNAL


def status_for(fault: Fault, family: Family) -> int:
    """HTTP status of a fault in a protocol."""
    if family is Family.ANTHROPIC and fault.code is not None:
        return _ANTHROPIC_STATUS.get(fault.code, fault.status)
    return fault.status


def openai_error(fault: Fault) -> dict[str, object]:
    """The error object; all four members are always present."""
    return {"error": {"message": fault.message, "type": fault.kind, "param": fault.param, "code": fault.code}}


def body_for(fault: Fault, family: Family, request_id: str) -> bytes:
    """The response body of a fault."""
    if family is Family.RESPONSES and fault.kind == _INTERNAL.kind:
        fault = replace(fault, kind="server_error")
    if family is not Family.ANTHROPIC:
        return orjson.dumps(openai_error(fault))
    status = status_for(fault, family)
    kind = _ANTHROPIC_KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": fault.message}, "request_id": request_id})


def headers_for(fault: Fault) -> list[tuple[bytes, bytes]]:
    """Response headers that a fault adds."""
    return [(b"retry-after", str(fault.retry_after_s).encode())] if fault.retry_after_s else []
