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
    code = "invalid_value"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else type(self).code
        self.param = param


class Overloaded(RequestRejected):
    """All lanes and the whole queue are taken; `retry_after_s` is a whole number of seconds, at least 1."""

    http_status = 429
    kind = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, *, retry_after_s: int = 1, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


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
