"""One follower of a tensor-parallel worker, as a process: computes what rank 0 sends.

    python -m shared.engine.rank_process SOCKET_FD PAGES_FD      (started by rank 0 alone)

On a GPU the pages are its own, and it tells rank 0 how to map them; the file is empty then.
Ends when rank 0 is gone, and with one line on stderr when it cannot go on itself.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from typing import Final

from shared.checkpoint.geometry import page_layout
from shared.checkpoint.opening import open_checkpoint
from shared.engine.device_handles import lend
from shared.engine.device_pages import DevicePages
from shared.engine.rank_group import RankGroup
from shared.engine.rank_wire import RankLink, RankOrder, unpack_recording, unpack_step
from shared.engine.runner import TorchEngine
from shared.engine.tuning import HostSetup
from shared.errors import BatonError, EngineError

UP: Final = "up"
READY: Final = "ready"
DONE: Final = "done"
RECORDED: Final = "recorded"


def main() -> None:
    socket_fd, pages_fd = (int(word) for word in sys.argv[1:3])
    # The terminal's Ctrl-C reaches the whole group; rank 0 decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = RankLink(socket.socket(fileno=socket_fd))
    threading.Thread(target=_end_with_rank_0, args=(link,), daemon=True).start()
    serve(link, pages_fd)


def serve(link: RankLink, pages_fd: int) -> None:
    """Load and say so, then do what rank 0 sends."""
    try:
        engine = _load(link, pages_fd)
        pages = lend(engine.pages) if isinstance(engine.pages, DevicePages) else None
    except BatonError as error:
        link.send({"error": error.message})
        return
    link.send(READY if pages is None else {READY: pages})
    follow(engine, link)


def follow(engine: TorchEngine, link: RankLink) -> None:
    """Step after step, or recordings of steps, until rank 0 goes or one fails."""
    while True:
        try:
            message = link.receive()
        except EngineError:
            return
        try:
            answer = _obeyed(engine, message)
        except EngineError as error:
            link.send({"error": error.message})
            return
        link.send(answer)


def _obeyed(engine: TorchEngine, message: object) -> object:
    sequences = unpack_recording(message)
    if sequences is not None:
        return {RECORDED: engine.record_graphs(sequences)}
    engine.follow(unpack_step(message))
    return DONE


def _end_with_rank_0(link: RankLink) -> None:
    """Also amid a step: a recorded sum waits for its peers for ever."""
    link.wait_for_end()
    os._exit(0)


def _load(link: RankLink, pages_fd: int) -> TorchEngine:
    fields = link.receive()
    if not isinstance(fields, dict):
        raise EngineError("a rank was started without its order")
    order = RankOrder(**fields)
    link.send(UP)
    team = RankGroup(order.rank, order.size, order.meeting_file, order.device)
    checkpoint = open_checkpoint(order.model_path)
    layout = page_layout(checkpoint, order.dtype, order.block_tokens)
    setup = HostSetup(order.threads, order.weights)
    return TorchEngine.load(checkpoint, order.device, layout, order.pages, setup, team, pages_fd)


if __name__ == "__main__":
    main()
    # Other threads (gloo's) may wait for ranks that are gone.
    os._exit(0)
