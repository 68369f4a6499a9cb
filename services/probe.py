"""`python -m services.probe [URL]`: exit 0 when a process is ready. Made for health checks.

Without a URL it asks every process that wrote its address into BATON_RUN_DIR. Standard library
only: it starts in a twentieth of a second, every few seconds.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_TIMEOUT_S: Final = 3.0


def main(argv: Sequence[str]) -> int:
    urls = list(argv) or written_urls(Path(os.environ.get("BATON_RUN_DIR", ".")))
    if not urls:
        print("nothing has said yet where it listens", file=sys.stderr)
        return 1
    unready = [url for url in urls if not answers(url)]
    for url in unready:
        print(f"{url} is not ready", file=sys.stderr)
    return 1 if unready else 0


def written_urls(folder: Path) -> list[str]:
    """The readiness URL of each `<worker>.json`."""
    found = (json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json")))
    return [f"{entry['probe_url']}/readyz" for entry in found if "probe_url" in entry]


def answers(url: str) -> bool:
    """Whether a GET gives 200 in time."""
    if not url.startswith("http://"):
        return False
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
