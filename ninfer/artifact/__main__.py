"""``python -m ninfer.artifact`` is ``ninfer-artifact``."""

from __future__ import annotations

import sys

from ninfer.artifact.cli import main

if __name__ == "__main__":
    sys.exit(main())
