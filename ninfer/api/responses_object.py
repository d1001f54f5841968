"""The response object (serving spec, 8.4). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.actors.messages import Finished, Usage
from ninfer.api.chat_response import constraint_member
from ninfer.api.envelopes import Fault
from ninfer.api.responses_request import ResponsesRequest
from ninfer.types import FinishReason, Sampling

_COMPLETE = frozenset({FinishReason.STOP_TOKEN, FinishReason.STOP_STRING})
Event = dict[str, object]


@dataclass(frozen=True, slots=True)
class Frame:
    """What every state of one response repeats.

    created_at   unix second
    max_tokens   as the client said; None is the default
    """

    id: str
    created_at: int
    model: str
    request: ResponsesRequest
    sampling: Sampling

    def in_progress(self) -> Event:
        """The response before it has any output."""
        return self._object("in_progress", [])

    def ended(self, output: Sequence[Event], finished: Finished, is_cut: bool, unix_time: float) -> Event:
        """The response at its end."""
        status = status_of(finished, is_cut)
        response = self._object(status, output)
        response["usage"] = usage_object(finished.usage)
        response.update(constraint_member(finished))
        if status == "completed":
            response["completed_at"] = int(unix_time)
        else:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        return response

    def failed(self, output: Sequence[Event], fault: Fault) -> Event:
        """The response that broke off."""
        response = self._object("failed", output)
        response["error"] = {"code": fault.code if fault.code is not None else "server_error", "message": fault.message}
        return response

    def _object(self, status: str, output: Sequence[Event]) -> Event:
        request = self.request
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_tokens,
            "max_tool_calls": None,
            "metadata": request.metadata,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": not request.tools.one_call,
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": request.cache_key,
            "reasoning": {"effort": request.thinking.effort, "summary": None},
            "service_tier": "default",
            "store": request.store,
            "temperature": self.sampling.temperature,
            "text": {"format": request.text_format},
            "tool_choice": request.declared.choice,
            "tools": request.declared.wire,
            "top_logprobs": request.logprobs or 0,
            "top_p": self.sampling.top_p,
            "truncation": "disabled",
            "usage": None,
        }


def status_of(finished: Finished, is_cut: bool) -> str:
    """Whether the model came to its end, or a limit came first."""
    return "completed" if finished.reason in _COMPLETE and not is_cut else "incomplete"


def usage_object(usage: Usage) -> Event:
    """The ``usage`` object."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
