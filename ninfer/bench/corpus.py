"""Text to read: a file of yours, or the small one of the package, tiled to the length that a test needs."""

from __future__ import annotations

from pathlib import Path

from ninfer.errors import StartupError
from ninfer.text.tokenizer import Tokenizer

PACKAGED = Path(__file__).with_name("corpus.md")


def corpus_ids(tokenizer: Tokenizer, file: Path | None, tokens: int) -> list[int]:
    """The first `tokens` ids of the text, which begins again where it ends. Raises StartupError."""
    path = PACKAGED if file is None else file
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise StartupError(f"--corpus {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartupError(f"--corpus {path} is not UTF-8") from None
    ids = tokenizer.encode(text)
    if not ids:
        raise StartupError(f"--corpus {path} is empty")
    return (ids * -(-tokens // len(ids)))[:tokens]
