"""The package in every form: wheel, sdist, editable, bare checkout. It installs nothing but `ninfer`."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COPIED = ("pyproject.toml", "README.md", "LICENSE", "ninfer", "actors", "kernels")
PROBE = """
import importlib.resources, pathlib, sys
import ninfer, ninfer.actors.system, ninfer.kernels.linear.op, ninfer.scheduler.machine, ninfer.serve
template = importlib.resources.files("ninfer.text").joinpath("templates", "qwen3_8.jinja").read_text()
assert "<|im_start|>" in template
from ninfer.artifact.container import Artifact
from ninfer.embedded import ARTIFACT
with Artifact.open(ARTIFACT) as artifact:
    assert artifact.directory.metadata["name"] == "ninfer-embedded"
print(pathlib.Path(ninfer.__file__).resolve().parent)
"""


def run(*command: str, cwd: Path, path: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(path) if path is not None else "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sources() -> set[str]:
    """Files of the package as git knows them, under their import paths."""
    names = run("git", "ls-files", "ninfer", "actors", "kernels", cwd=ROOT).splitlines()
    inside = [name if name.startswith("ninfer/") else f"ninfer/{name}" for name in names]
    return {name for name in inside if name.endswith((".py", ".html", ".jinja", ".json", ".md", ".ninfer"))}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built from a copy so that the checkout stays clean."""
    copy = tmp_path_factory.mktemp("checkout")
    names = run("git", "ls-files", *COPIED, cwd=ROOT).splitlines()
    for name in names:
        source, target = ROOT / name, copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        else:
            target.write_bytes(source.read_bytes())
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(copy / "dist"), ".", cwd=copy)
    return copy / "dist"


def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ninfer"}
    assert sources() <= set(names)


def test_the_sdist_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    out = tmp_path / "again"
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), ".", cwd=unpacked)
    (wheel,), (again,) = built.glob("*.whl"), out.glob("*.whl")
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_runs_where_it_is_installed(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    target = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(wheel), cwd=tmp_path)
    assert sorted(path.name for path in target.iterdir() if path.suffix != ".dist-info") == ["bin", "ninfer"]
    assert run(sys.executable, "-c", PROBE, cwd=tmp_path, path=target).strip() == str(target / "ninfer")
    version = run(sys.executable, "-m", "ninfer.serve", "--version", cwd=tmp_path, path=target)
    assert version.startswith("ninfer-serve ")


def test_a_bare_checkout_runs(tmp_path: Path) -> None:
    assert run(sys.executable, "-c", PROBE, cwd=ROOT).strip() == str(ROOT / "ninfer")
    assert run(sys.executable, "-c", PROBE, cwd=tmp_path, path=ROOT).strip() == str(ROOT / "ninfer")


def test_importing_the_package_loads_nothing(tmp_path: Path) -> None:
    heavy = "{'torch', 'numpy', 'quart', 'anyio', 'tokenizers'}"
    probe = f"import sys, ninfer; print(sorted(n for n in sys.modules if n.partition('.')[0] in {heavy}))"
    assert run(sys.executable, "-c", probe, cwd=tmp_path, path=ROOT).strip() == "[]"


def test_every_console_script_has_its_function() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts) == {"ninfer-serve", "ninfer-artifact", "ninfer-bench", "ninfer-parse", "ninfer-replay"}
    for target in scripts.values():
        module, _, function = target.partition(":")
        probe = f"import {module} as m; assert callable(m.{function})"
        run(sys.executable, "-c", probe, cwd=ROOT)


def test_requirements_pin_everything_exactly() -> None:
    for name in ("common", "base", "test", "gpu"):
        lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
        wanted = [line for line in lines if line and not line.startswith(("#", "-r "))]
        assert all("==" in line for line in wanted), name


@pytest.mark.parametrize("module", ["ninfer.serve", "ninfer.artifact.cli", "ninfer.bench.cli", "ninfer.replay"])
def test_a_command_is_a_module_too(module: str) -> None:
    """From a bare checkout, where no script is installed."""
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout[:6].lower()) == (0, "usage:"), done.stderr
