"""Where and when a run was made: enough to doubt it later."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadgen.workloads.request import Workload

_ROOT: Final = Path(__file__).resolve().parents[2]
_GIT_S: Final = 5.0


def describe() -> dict[str, Any]:
    """Plain values."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load_average": [round(one, 2) for one in os.getloadavg()],
        "git_revision": _git("rev-parse", "HEAD"),
        "git_changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def schedule_digest(workload: Workload, seed: int) -> str:
    """Names what was sent and when: equal digests can be compared request by request."""
    digest = hashlib.blake2b(f"{workload.block_tokens}:{seed}".encode(), digest_size=12)
    rows = np.asarray(
        [
            (
                request.at_s,
                request.prompt_tokens,
                request.output_tokens,
                -1 if request.after is None else request.after,
            )
            for request in workload
        ],
        np.float64,
    )
    digest.update(rows.tobytes())
    shared = np.asarray([len(request.blocks) for request in workload], np.int64)
    digest.update(shared.tobytes())
    for request in workload:
        digest.update(np.asarray(request.blocks[:1] + request.blocks[-1:], np.uint64).tobytes())
    return digest.hexdigest()


def _git(*words: str) -> str:
    """Empty outside of a checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *words],
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
