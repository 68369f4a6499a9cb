"""The contender's side of the talk, with nothing but the standard library: peers run it in their
own environment.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable

Measure = Callable[[dict[str, int]], float]


def serve(facts: dict[str, object], measure: Measure) -> None:
    """Say the facts, then answer work by work until there is no more."""
    _say(facts)
    for line in sys.stdin:
        work = json.loads(line)
        if not work:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            _say({"peak_bytes": peak})
            return
        _say({"seconds": measure(work)})


def prompts(work: dict[str, int], vocabulary: int) -> list[list[int]]:
    """Different token ids for each sequence and round."""
    return [
        [
            (7919 * work["seed"] + 104_729 * row + 31 * place + 11) % (vocabulary - 64) + 32
            for place in range(work["prompt_tokens"])
        ]
        for row in range(work["batch"])
    ]


def _say(fields: dict[str, object]) -> None:
    sys.stdout.write(json.dumps({"baton": fields}, separators=(",", ":")) + "\n")
    sys.stdout.flush()
