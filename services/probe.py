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
_WORDS: Final = 200


def main(argv: Sequence[str]) -> int:
    urls = list(argv) or written_urls(Path(os.environ.get("BATON_RUN_DIR", ".")))
    if not urls:
        print("nothing has said yet where it listens", file=sys.stderr)
        return 1
    refusals = [f"{url}: {word}" for url in urls if (word := refusal(url))]
    for line in refusals:
        print(line, file=sys.stderr)
    return 1 if refusals else 0


def written_urls(folder: Path) -> list[str]:
    """The readiness URL of each `<worker>.json`."""
    found = (json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json")))
    return [f"{entry['probe_url']}/readyz" for entry in found if "probe_url" in entry]


def refusal(url: str) -> str:
    """Why a GET does not give 200 in time, in the process's own word; '' when it does."""
    if not url.startswith("http://"):
        return "not an http:// address"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return "" if int(answer.status) == 200 else f"status {answer.status}"
    except urllib.error.HTTPError as error:
        return error.read(_WORDS).decode("utf-8", "replace").strip() or f"status {error.code}"
    except (urllib.error.URLError, OSError):
        return "no answer"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
