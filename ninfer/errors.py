"""Every exception of the project, arranged by whose fault it is.

A subclass of :class:`RequestRejected` is the client's doing and carries what the client is told; everything else
directly below :class:`NinferError` is ours, or the operator's (:class:`StartupError`, :class:`ArtifactError`).
The catalogue of ``code`` values is that of the serving contract (section 3.2).
"""

from __future__ import annotations


class NinferError(Exception):
    """Root of the tree; the status is what an HTTP client sees when nothing more specific applies."""

    http_status = 500


class RequestRejected(NinferError):
    """A request that cannot be served as it was sent.

    message      one sentence for the person who wrote the client: what is wrong and what to do
    code         machine-readable name of the fault
    param        the request field at fault, or None
    """

    http_status = 400
    kind = "invalid_request_error"
    code: str | None = "invalid_value"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else type(self).code
        self.param = param


class MalformedField(RequestRejected):
    """A request field of the wrong type or out of its range: the field is named, and there is no code."""

    code = None


class RequestNotFound(RequestRejected):
    """Nothing is known of a request, or not any more."""

    http_status = 404
    code = "request_not_found"

    def __init__(self, wanted: str) -> None:
        super().__init__(f"There is no request '{wanted}' under way or among the last ones.", param="id")


class ModelNotFound(RequestRejected):
    """The request names another model than the one that is served."""

    http_status = 404
    code = "model_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"The model '{name}' does not exist.", param="model")


class RequestTooLarge(RequestRejected):
    """The body of the request is longer than the server takes."""

    http_status = 413
    code = "request_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request body is larger than {limit_bytes} bytes.")


class InvalidFilename(RequestRejected):
    """The name is not that of a file in the slot folder."""

    code = "invalid_filename"

    def __init__(self) -> None:
        super().__init__(
            "The filename must be 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-', and not begin with a dot.",
            param="filename",
        )


class SlotBusy(RequestRejected):
    """The slot works for a request, or is being saved or restored."""

    http_status = 409
    code = "slot_busy"

    def __init__(self) -> None:
        super().__init__("The slot is busy; wait for its request to end.")


class SlotSessionMismatch(RequestRejected):
    """The slot does not hold the session that the client named."""

    http_status = 409
    code = "slot_session_mismatch"

    def __init__(self) -> None:
        super().__init__("The slot does not hold the session of if_digest; see GET /slots.")


class SlotFileError(RequestRejected):
    """A slot file could not be written or read; the session in the slot is as it was."""


class SlotSaveFailed(SlotFileError):
    """The session was not saved."""

    code = "slot_save_failed"


class SlotRestoreFailed(SlotFileError):
    """No session could be had from the slot file."""

    code = "slot_restore_failed"


class Overloaded(RequestRejected):
    """All lifetime capacity is in use; `retry_after_s` is a whole number of seconds, at least 1."""

    http_status = 429
    kind = "rate_limit_error"
    code = "server_overloaded"

    def __init__(self, message: str, *, retry_after_s: int = 1, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class Unavailable(NinferError):
    """The server cannot serve this request, and the request is not to blame."""

    http_status = 503
    kind = "server_error"
    code = "service_unavailable"
    retry_after_s = 1

    def __init__(self, message: str = "The server is not available.") -> None:
        super().__init__(message)
        self.message = message


class ModelLoading(Unavailable):
    """The model is still on its way to the device."""

    kind = "service_unavailable"
    code = "model_loading"
    retry_after_s = 2

    def __init__(self, message: str = "The model is loading.") -> None:
        super().__init__(message)


class QueueTimeout(Unavailable):
    """The pending deadline passed before the request was admitted."""

    code = "request_queue_timeout"

    def __init__(self, message: str = "The request was not admitted before its pending deadline.") -> None:
        super().__init__(message)


class Unsupported(NinferError):
    """The function exists in the contract and not in this server, as it was built or started."""

    http_status = 501
    kind = "server_error"

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class EngineFailure(NinferError):
    """The engine failed while it ran this request; nothing of the inside is told."""

    kind = "internal_error"
    code = None

    def __init__(self, message: str = "Internal server error.") -> None:
        super().__init__(message)
        self.message = message


class DeadEnd(NinferError):
    """An output constraint leaves no token to go on with, and the answer is not complete."""

    kind = "server_error"
    code = "constraint_dead_end"

    def __init__(self) -> None:
        super().__init__("The output constraint leaves no token to go on with.")
        self.message = str(self)


class StartupError(NinferError):
    """The server cannot start as configured; the message tells the operator what to change."""


class IllegalTransition(NinferError):
    """A rule of a state machine was broken: a fault of ours. Admission stops and the scheduler is restarted."""


class DeviceFault(NinferError):
    """The device thread raised while it ran a command; requests in that command end with an error."""


class ActorStopped(NinferError):
    """A message reached an actor that is stopping; the sender is told instead of left waiting."""

    http_status = 503


class ArtifactError(NinferError):
    """An artifact is unusable (artifact spec, section 15).

    code     name of the case in the spec's table, e.g. ``OVERLAP``
    path     the file at fault; empty where a value in memory is at fault
    detail   what was expected and what was found, with the object or parameter concerned
    """

    def __init__(self, code: str, path: str, detail: str) -> None:
        super().__init__(f"{path}: {code}: {detail}" if path else f"{code}: {detail}")
        self.code = code
        self.path = path
        self.detail = detail
