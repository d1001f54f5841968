"""Log-probabilities as the OpenAI protocols write them. Pure.

Values are natural logarithms of the model's own probabilities, before temperature, penalties, cuts and constraints.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninfer.step import TokenLogprobs
from ninfer.text.detokenise import Detokeniser
from ninfer.text.tokenizer import Tokenizer

# Most alternatives of the protocols: Chat and Responses, text completions.
ALTERNATIVES_MAX = 20
COMPLETION_ALTERNATIVES_MAX = 5
Object = dict[str, object]


def entries(told: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> list[Object]:
    """One object for each token of the answer, its alternatives inside."""
    return [
        {
            **_entry(one.token_id, one.logprob, tokenizer),
            "top_logprobs": [_entry(token_id, logprob, tokenizer) for token_id, logprob in one.alternatives],
        }
        for one in told
    ]


def _entry(token_id: int, logprob: float, tokenizer: Tokenizer) -> Object:
    data = _bytes(token_id, tokenizer)
    return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}


def _bytes(token_id: int, tokenizer: Tokenizer) -> bytes:
    """Of a token, control tokens spelled out; nothing for an id that the tokenizer leaves unused."""
    try:
        return tokenizer.token_bytes(token_id)
    except ValueError:
        return b""


class CompletionLogprobs:
    """The `logprobs` object of ``/v1/completions``, in pieces as the text comes.

    Tokens have distinct names there: one that is no text by itself is `bytes:` and its bytes.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._text = Detokeniser()
        self._offset = 0

    def more(self, told: Sequence[TokenLogprobs]) -> Object:
        """The object of further tokens."""
        offsets = []
        for one in told:
            offsets.append(self._offset)
            self._offset += len(self._text.push(self._tokenizer.text_bytes(one.token_id)))
        return {
            "tokens": [self._name(one.token_id) for one in told],
            "token_logprobs": [one.logprob for one in told],
            "top_logprobs": [self._top(one) for one in told] if any(one.alternatives for one in told) else None,
            "text_offset": offsets,
        }

    def _top(self, one: TokenLogprobs) -> Object:
        """The likeliest, and the drawn one if it is none of them."""
        return {self._name(token_id): logprob for token_id, logprob in (*one.alternatives, (one.token_id, one.logprob))}

    def _name(self, token_id: int) -> str:
        data = _bytes(token_id, self._tokenizer)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
