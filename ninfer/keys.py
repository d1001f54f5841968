"""Keys that open the server, from the file that holds them (serving spec, 2.3). Nothing of them is ever shown."""

from __future__ import annotations

from dataclasses import replace

from ninfer.config import HttpSettings
from ninfer.errors import StartupError


def with_keys(settings: HttpSettings) -> HttpSettings:
    """The settings with the keys of the file behind those of the command line.

    One key a line; white space around it, empty lines and lines that begin with ``#`` do not count.
    raises StartupError for a file that cannot be read, is not UTF-8 or holds no key
    """
    path = settings.api_key_file
    if path is None:
        return settings
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").split("\n")]
    except OSError as error:
        raise StartupError(f"--api-key-file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartupError(f"--api-key-file {path} is not UTF-8") from None
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise StartupError(f"--api-key-file {path} holds no key")
    return replace(settings, api_keys=(*settings.api_keys, *keys))
