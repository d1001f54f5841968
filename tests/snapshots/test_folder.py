"""Names of slot files, and what is swept up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ninfer.errors import InvalidFilename
from ninfer.snapshots.folder import TEMPORARY, check_filename, clean_folder, lock, temporary_name


@pytest.mark.parametrize("name", ["a", "a.bin", "-", "_x", "A-Za_z.0..9", "x" * 128])
def test_good_names(name: str) -> None:
    assert check_filename(name) == name
    assert TEMPORARY.fullmatch(temporary_name(name))
    assert temporary_name(name) != temporary_name(name)
    assert len(temporary_name(name)) <= 255


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".a", "../a", "a/b", "/a", "a\\b", "a\0", "a\n", "\na", "a b", "é", "٣", "x" * 129, None, 7, ["a"]],
    ids=repr,
)
def test_bad_names(name: object) -> None:
    with pytest.raises(InvalidFilename) as caught:
        check_filename(name)
    assert (caught.value.code, caught.value.http_status, caught.value.param) == ("invalid_filename", 400, "filename")


def test_only_what_a_dead_writer_left_is_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("stays")
    folder = tmp_path / "slots"
    folder.mkdir()
    kept = ["a.bin", ".a.bin.tmp", ".hidden", "a.bin.0123456789abcdef.tmp", ".a.0123456789abcdeF.tmp"]
    for name in (*kept, temporary_name("a.bin"), temporary_name("b")):
        (folder / name).write_bytes(b"x")
    link, sub, busy = temporary_name("link"), temporary_name("sub"), temporary_name("busy")
    (folder / link).symlink_to(outside)
    (folder / sub).mkdir()
    descriptor = os.open(folder / busy, os.O_WRONLY | os.O_CREAT)
    assert lock(descriptor)
    assert clean_folder(folder) == 2
    assert {path.name for path in folder.iterdir()} == {*kept, link, sub, busy}
    assert outside.read_text() == "stays"
    os.close(descriptor)
    assert clean_folder(folder) == 1  # the writer is gone
    assert clean_folder(folder) == 0


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        clean_folder(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        clean_folder(tmp_path / "file")
