"""How the control tokens that a template writes are told from the same spellings in client text.

The template is parsed, and in its syntax tree every control spelling inside a literal that is *written* is replaced by
one private character, its mark. Literals that are only compared, searched for or cut by stay as they are, so the
template still sees client text as it is. A mark found in the render came from the template; a spelling that is left
came from a client, even where the spelling arose only by joining several client texts. Marks are surrogates, which no
valid text holds. That a marked template writes what the plain one writes is checked with probes when it is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from jinja2 import nodes

from ninfer.errors import StartupError
from ninfer.text.prompt import RenderedPrompt, Segment

MARK = re.compile("[\ud800-\udfff]")
_FIRST_MARK = 0xD800
# Long texts are searched in windows: a search keeps the interpreter to itself, at 10 ns a character.
_WINDOW = 1 << 16
_MARKS_MAX = 0x800

# The children of a node whose value reaches the output; a node that is not listed passes all of its children on.
_WRITTEN_CHILDREN: dict[type[nodes.Node], tuple[str, ...]] = {
    nodes.Compare: (),
    nodes.Test: (),
    nodes.Filter: ("node",),
    nodes.Getitem: ("node",),
    nodes.Pair: ("value",),
    nodes.CondExpr: ("expr1", "expr2"),
    nodes.If: ("body", "elif_", "else_"),
    nodes.For: ("body", "else_"),
}


def mark_places(text: str) -> Iterator[int]:
    """Where marks stand in a text of any length, in order."""
    for begin in range(0, len(text), _WINDOW):
        for found in MARK.finditer(text, begin, begin + _WINDOW):
            yield found.start()


class Marks:
    """The marks of one tokenizer's control tokens.

    spellings   control tokens, at most 2,048; StartupError for more
    """

    def __init__(self, spellings: Sequence[str]) -> None:
        if len(spellings) > _MARKS_MAX:
            raise StartupError(f"{len(spellings)} control tokens are more than the {_MARKS_MAX} that can be told apart")
        self.spellings = tuple(spellings)
        self._mark_of = {spelling: chr(_FIRST_MARK + n) for n, spelling in enumerate(spellings)}
        longest_first = sorted(spellings, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def put_into(self, node: nodes.Node) -> None:
        """Replace, in place, the control spellings in all literals below the node that are written."""
        if isinstance(node, nodes.Const) and isinstance(node.value, str):
            node.value = self._marked(node.value)
        elif isinstance(node, nodes.TemplateData):
            node.data = self._marked(node.data)
        for child in node.iter_child_nodes(only=_written_children(node)):
            self.put_into(child)

    def _marked(self, text: str) -> str:
        return self._pattern.sub(lambda found: self._mark_of[found.group()], text)

    def read(self, marked: str) -> RenderedPrompt:
        """The prompt that a marked template wrote."""
        segments: list[Segment] = []
        position = 0
        for at in mark_places(marked):
            if at > position:
                segments.append(Segment(marked[position:at], control=False))
            segments.append(Segment(self.spellings[ord(marked[at]) - _FIRST_MARK], control=True))
            position = at + 1
        if position < len(marked):
            segments.append(Segment(marked[position:], control=False))
        return RenderedPrompt(tuple(segments))

    def leaves_spelling(self, prompt: RenderedPrompt) -> bool:
        """Whether plain text of the prompt holds a control spelling."""
        return any(not segment.control and self._pattern.search(segment.text) for segment in prompt.segments)


def _written_children(node: nodes.Node) -> tuple[str, ...] | None:
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
        # `content.split('</think>')` searches; `turn('<|im_start|>')`, a call of a macro, writes.
        return ("node",)
    return _WRITTEN_CHILDREN.get(type(node))


def _question(text: str) -> Mapping[str, object]:
    return {"role": "user", "content": text}


def mark_probes(spellings: Sequence[str]) -> list[tuple[bool, dict[str, object]]]:
    """Variables to render for the check of the marks; the flag says that no client text holds a control spelling."""
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "x", "n": 1}}}
    tool_turns: list[Mapping[str, object]] = [
        {"role": "system", "content": "s"},
        _question("q"),
        {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [call, call]},
        {"role": "tool", "content": "t"},
        {"role": "tool", "content": "u"},
    ]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    media = {"role": "user", "content": [{"type": "image"}, {"type": "video"}, {"type": "text", "text": "q"}]}
    everything = " ".join(spellings)
    inline: list[Mapping[str, object]] = [
        _question("q"),
        {"role": "assistant", "content": "<think>\nold\n</think>\n\nans"},
        _question(everything),
        {"role": "assistant", "content": everything, "reasoning_content": everything},
        _question("<tool_response>\nx\n</tool_response>"),
        {"role": "tool", "content": everything},
    ]
    conversations: list[tuple[bool, dict[str, object]]] = [
        (True, {"messages": [_question("hi")]}),
        (True, {"messages": tool_turns, "tools": tools}),
        (True, {"messages": [media]}),
        (False, {"messages": inline}),
        (False, {"messages": inline[2:]}),
    ]
    options: list[dict[str, object]] = [
        {},
        {"enable_thinking": True, "preserve_thinking": True, "add_generation_prompt": True, "add_vision_id": True},
        {"enable_thinking": False, "preserve_thinking": False, "add_generation_prompt": True},
    ]
    return [(benign, conversation | chosen) for benign, conversation in conversations for chosen in options]
