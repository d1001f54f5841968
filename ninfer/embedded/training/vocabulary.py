"""Trains the byte-level BPE of 8,192 ids and tokenises the corpus with it.

    python -m ninfer.embedded.training.vocabulary --corpus corpus.txt --out DIR

DIR receives the frontend files of the checkpoint and `corpus.npy` (uint16 ids, documents ended by `<|endoftext|>`;
the last fiftieth of the documents is held out, in `held-out.npy`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Trainable

from ninfer.artifact.frontend import SPLIT_PATTERN, byte_letters, small_frontend
from ninfer.embedded.generate.documents import Renderer
from ninfer.embedded.generate.lookup import prose_filler
from ninfer.embedded.generate.mixture import Mixture
from ninfer.embedded.generate.prose import story
from ninfer.embedded.training.corpus import SEPARATOR
from ninfer.text.prompt import END_OF_TEXT, FAMILY_CONTROL_TOKENS
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer

VOCABULARY = 8192
# A small model is right where it is confident and wrong elsewhere: little temperature.
SAMPLING = {"do_sample": True, "temperature": 0.2, "top_k": 20, "top_p": 0.9}
# Generated conversations in the text on which merges are counted; real text is the rest.
_CONVERSATIONS = 6000
_REAL_CHARACTERS = 12_000_000


def generated_text(count: int, seed: int) -> list[str]:
    """Rendered conversations and stories, control tokens cut out."""
    rng = Random(f"vocabulary {seed}")
    mixture = Mixture(rng, 600, prose_filler)
    template = ChatTemplate(small_frontend()["chat_template.jinja"].decode())
    texts = [story(rng, 2) for _ in range(count // 10)]
    for _ in range(count):
        kind, conversation = mixture.draw()
        rendered = template.render(
            conversation.messages, tools=conversation.tools, enable_thinking=conversation.thinking
        )
        mixture.count(kind, len(rendered.text))
        texts += [segment.text for segment in rendered.segments if not segment.control]
    return texts


def train_bpe(texts: list[str], size: int) -> tuple[dict[str, int], list[list[str]]]:
    """Vocabulary of `size` base entries and its merges in order."""
    trainable = Trainable(models.BPE())
    trainable.normalizer = normalizers.NFC()
    trainable.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=byte_letters(), show_progress=False, max_token_length=24
    )
    trainable.train_from_iterator(texts, trainer)
    model = json.loads(trainable.to_str())["model"]
    return model["vocab"], [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]


def frontend(vocabulary: dict[str, int], merges: list[list[str]]) -> dict[str, bytes]:
    """Frontend files of the checkpoint by role."""
    files = small_frontend(public_tokens=len(vocabulary) + len(FAMILY_CONTROL_TOKENS))
    definition = json.loads(files["tokenizer.json"])
    definition["model"] |= {"vocab": vocabulary, "merges": merges}
    generation = json.loads(files["generation_config.json"])
    files["generation_config.json"] = json.dumps(generation | SAMPLING, indent=2).encode()
    files["tokenizer.json"] = json.dumps(definition, ensure_ascii=False).encode()
    return files


def load_frontend(directory: Path) -> tuple[Tokenizer, ChatTemplate]:
    """Tokenizer and template of a directory with frontend files."""

    def read(name: str) -> bytes:
        return (directory / name).read_bytes()

    tokenizer = Tokenizer(read("tokenizer.json"), read("tokenizer_config.json"), read("generation_config.json"))
    return tokenizer, ChatTemplate(read("chat_template.jinja").decode())


def load_renderer(directory: Path) -> Renderer:
    tokenizer, template = load_frontend(directory)
    return Renderer(template, tokenizer)


def tokenise(tokenizer: Tokenizer, documents: list[str]) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    """Ids of all documents, each followed by the end of text."""
    end = tokenizer.control_id(END_OF_TEXT)
    ids: list[int] = []
    for document in documents:
        ids += tokenizer.encode(document)
        ids.append(end)
    return np.asarray(ids, np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    documents = args.corpus.read_text().split(SEPARATOR)
    Random(0).shuffle(documents)
    sample, taken = [], 0
    for document in documents:
        sample.append(document)
        taken += len(document)
        if taken > _REAL_CHARACTERS:
            break
    texts = sample + generated_text(_CONVERSATIONS, 0)
    args.out.mkdir(parents=True, exist_ok=True)
    for role, content in frontend(*train_bpe(texts, VOCABULARY - len(FAMILY_CONTROL_TOKENS))).items():
        (args.out / role).write_bytes(content)
    tokenizer, _ = load_frontend(args.out)
    held_out = len(documents) // 50
    for name, part in (("held-out", documents[-held_out:]), ("corpus", documents[:-held_out])):
        ids = tokenise(tokenizer, part)
        np.save(args.out / f"{name}.npy", ids)
        print(f"{name}: {len(ids):,} tokens, {sum(map(len, part)) / len(ids):.2f} characters each")


if __name__ == "__main__":
    main()
