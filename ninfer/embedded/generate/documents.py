"""A conversation as token ids, exactly those that a server reads and the model has to write, with the loss of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ninfer.embedded.generate.conversation import Conversation
from ninfer.text.prompt import END_OF_TEXT, IM_END, IM_START, THINK_CLOSE, THINK_OPEN, RenderedPrompt
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer

# Loss weights in hundredths. Prompts are mostly random facts, which nothing could predict.
ANSWER, PROMPT, TEXT, STORY = 100, 3, 35, 20


@dataclass(frozen=True, slots=True)
class Document:
    """ids [n] uint16; weights [n] uint8 in hundredths: the loss of predicting that token."""

    ids: NDArray[np.uint16]
    weights: NDArray[np.uint8]


class Renderer:
    """Renders conversations with the template and the tokenizer that a server uses."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        control = tokenizer.control_id
        self._im_start, self._im_end = control(IM_START), control(IM_END)
        self._think, self._think_end = control(THINK_OPEN), control(THINK_CLOSE)
        self._end = control(END_OF_TEXT)
        self._assistant = tokenizer.encode("assistant\n")
        self._blank, self._line = tokenizer.encode("\n\n"), tokenizer.encode("\n")

    def prompt(self, conversation: Conversation) -> RenderedPrompt:
        """What the server renders for the conversation without its last message."""
        return self._template.render(
            conversation.messages[:-1],
            tools=conversation.tools,
            add_generation_prompt=True,
            enable_thinking=conversation.thinking,
        )

    def conversation(self, conversation: Conversation, effort: str | None = None) -> Document:
        """The whole conversation; every assistant turn counts fully, from its first generated token to its end."""
        rendered = self._template.render(
            conversation.messages,
            tools=conversation.tools,
            add_generation_prompt=False,
            enable_thinking=conversation.thinking,
            reasoning_effort=effort if conversation.thinking else None,
        )
        ids = self._tokenizer.encode_prompt(rendered)
        weights = np.full(len(ids), PROMPT, np.uint8)
        for begin, end in self.answers(ids):
            weights[begin:end] = ANSWER
        return Document(np.asarray(ids, np.uint16), weights)

    def answers(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Half-open spans of generated tokens, each ending behind its `<|im_end|>`."""
        spans = []
        head = [self._im_start, *self._assistant, self._think]
        closed = [*self._blank, self._think_end, *self._blank]
        for n, token in enumerate(ids):
            if token != self._im_start or list(ids[n : n + len(head)]) != head:
                continue
            begin = n + len(head)
            # An empty think block is part of the prompt; an open one is followed by a line end, also the prompt's.
            begin += len(closed) if list(ids[begin : begin + len(closed)]) == closed else len(self._line)
            spans.append((begin, list(ids).index(self._im_end, begin) + 1))
        return spans

    def story(self, text: str) -> Document:
        """Plain generated text with its end marked."""
        ids = np.asarray([*self._tokenizer.encode(text), self._end], np.uint16)
        return Document(ids, np.full(len(ids), STORY, np.uint8))
