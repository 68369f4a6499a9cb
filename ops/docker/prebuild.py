"""Compiles the C libraries of engine and data plane into an image that has no compiler."""

from __future__ import annotations

import sys

from shared.dataplane.native.library import recipe
from shared.engine.native.library import RECIPE
from shared.native.library import prebuild


def main() -> None:
    """Say what was built. Raises BuildError."""
    exchange = recipe()
    for one in (RECIPE, *(() if exchange is None else (exchange,))):
        for path in prebuild(one):
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
