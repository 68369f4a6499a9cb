"""`python -m services.worker ROLE SECRETS [flags]`: an engine worker that may change its role.

Starts `services.prefill` or `services.decode`, and the other one when that ends with EXIT_TURNED:
what the local cluster does for its processes, for a container. `<SECRETS>/<role>/nats.json` is the
credential of each role. Flags go to both; settings of one role come by BATON_PREFILL_… and
BATON_DECODE_… variables. Ends as its child ends.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final

from shared.orphans import end_with_parent
from shared.runtime.turning import EXIT_TURNED, OTHER_ROLE

_EXIT_USAGE: Final = 2

Start = Callable[[Sequence[str]], "subprocess.Popen[bytes]"]


class Keeper:
    """One child at a time; signals are passed on to it."""

    def __init__(self, role: str, secrets: str, flags: Sequence[str], start: Start) -> None:
        self.role = role
        self._secrets = secrets
        self._flags = list(flags)
        self._start = start
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def run(self) -> int:
        """Until a child ends for another reason than a change of its role; its exit code."""
        while True:
            child = self._child = self._start(self.command())
            if self._stopping:
                child.send_signal(signal.SIGTERM)
            code = child.wait()
            if code != EXIT_TURNED:
                return code
            if self._stopping:
                return 0
            self.role = OTHER_ROLE[self.role]
            sys.stderr.write(f"serves {self.role} from now on\n")

    def command(self) -> list[str]:
        """Of the role that it serves now."""
        own = f"--nats-credentials-file={self._secrets}/{self.role}/nats.json"
        module = ["-m", f"services.{self.role}"]
        return [sys.executable, *module, own, "--switchable=true", *self._flags]

    def signalled(self, number: int, _: FrameType | None) -> None:
        self._stopping = True
        if self._child is not None:
            self._child.send_signal(number)


def main(argv: Sequence[str]) -> int:
    """The exit code of the last child; 2 after one line on how to call this."""
    if len(argv) < 2 or argv[0] not in OTHER_ROLE:
        sys.stderr.write("usage: python -m services.worker prefill|decode SECRETS [flags]\n")
        return _EXIT_USAGE
    keeper = Keeper(argv[0], argv[1], argv[2:], _start)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, keeper.signalled)
    code = keeper.run()
    return code if code >= 0 else 128 - code


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, preexec_fn=end_with_parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
