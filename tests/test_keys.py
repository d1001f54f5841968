"""Keys from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninfer.config import HttpSettings
from ninfer.errors import StartupError
from ninfer.keys import with_keys


def test_without_a_file_the_settings_stand() -> None:
    settings = HttpSettings(api_keys=("a",))
    assert with_keys(settings) is settings


def test_keys_of_the_file_follow_those_of_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes("# who\nb\n\n  grün key \r\n#c\nd#e".encode())
    settings = with_keys(HttpSettings(api_keys=("a",), api_key_file=path))
    assert settings.api_keys == ("a", "b", "grün key", "d#e")
    assert "grün" not in repr(settings)


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "cannot be read: No such file"), (b"\n# only words\n", "holds no key"), (b"s3cret\xff", "is not UTF-8")],
)
def test_a_file_that_gives_no_key_is_refused_without_showing_it(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartupError, match=why) as refused:
        with_keys(HttpSettings(api_key_file=path))
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None
