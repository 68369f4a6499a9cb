"""Live traffic for a recorder: everything that shapes load, nothing that a client wrote."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen import capture as recorder
from loadgen.__main__ import parser
from loadgen.workloads import file
from services.gateway import capture
from services.gateway.core.events import Hints
from shared.clock import ManualClock
from shared.errors import RefusedError
from shared.ids import BlockHash, RequestId
from shared.wire.requests import PlaceRequest
from tests.builders import until
from tests.services.gateway.rig import Rig, rig

SECRET = "the quick brown fox" * 9
SESSION = "session-of-somebody"


async def chat(gateway: Rig, text: str, **headers: str) -> None:
    body = {"model": "hashchain", "messages": [{"role": "user", "content": text}]}
    url = f"{gateway.url}/v1/chat/completions"
    async with gateway.http.post(url, json=body, headers=headers) as answer:
        assert answer.status == 200


async def test_a_capture_plays_again_and_holds_no_text(tmp_path: Path) -> None:
    out = tmp_path / "captured.jsonl"
    async with rig(tmp_path) as gateway:
        flags = ["capture", "--admin-url", gateway.admin_url, "--out", str(out), "--count", "3"]
        lines = recorder.watch(f"{gateway.admin_url}/admin/capture")
        head = await anext(lines)
        assert head == {"format": capture.FORMAT, "block_tokens": 16}
        for number in range(2):
            await chat(gateway, SECRET + "ab"[number] + "c" * 32, **{"x-baton-affinity": SESSION})
        seen = [await anext(lines), await anext(lines)]
        await lines.aclose()
        await until(lambda: not gateway.app._capture._watchers)
        for row in seen:
            assert set(row) == {
                "at_s", "prompt_tokens", "output_tokens", "blocks", "outcome", "session"
            }  # fmt: skip
            assert row["outcome"] == "finished" and row["prompt_tokens"] > 16 * 9
        shared = [a == b for a, b in zip(seen[0]["blocks"], seen[1]["blocks"], strict=True)]
        assert shared[0] and not shared[-1]  # one beginning, two ends
        assert seen[0]["session"] == seen[1]["session"] != SESSION
        said = orjson.dumps(seen).decode()
        assert "quick" not in said and SESSION not in said and "chat" not in said
        assert await _recorded(flags, gateway) == 0
    found = file.read(out)
    assert len(found) == 3 and found.ideal_hit > 0.3
    assert [request.session for request in found] == [0, None, 0]
    assert set(out.read_text()) <= set('{}[]":,. \n-+_/abcdefghijklmnopqrstuvwxyz0123456789')
    rows = [orjson.loads(line) for line in out.read_bytes().splitlines()[1:]]
    assert all(type(value) in (int, float, list) for row in rows for value in row.values())
    assert [path.name for path in tmp_path.glob("captured*")] == ["captured.jsonl"]  # noqa: ASYNC240
    sim = ["sim", "run", "--workload", str(out), "--count", "3"]
    options = parser().parse_args(sim)
    assert await options.call(options) == 0


async def _recorded(flags: list[str], gateway: Rig) -> int:
    """The command, while three requests are served."""
    options = parser().parse_args(flags)
    running = asyncio.create_task(options.call(options))
    await until(lambda: bool(gateway.app._capture._watchers))
    await chat(gateway, SECRET, **{"x-baton-affinity": SESSION})
    await chat(gateway, SECRET + "!")
    await chat(gateway, SECRET, **{"x-baton-affinity": SESSION})
    return int(await running)


def ask(number: int) -> PlaceRequest:
    name = RequestId(f"r{number}")
    blocks = (BlockHash("ab" * 16),)
    return PlaceRequest(name, 1, 20, 8, blocks, "m", "auto", (), 60.0)  # type: ignore[arg-type]


def test_a_watcher_that_reads_slowly_loses_rows_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capture, "QUEUE_ROWS", 2)
    clock = ManualClock(5.0)
    tap = capture.Capture(clock, 16)
    tap.placed(ask(0))
    assert not tap._asked  # nobody watches: nothing is kept
    watcher = capture._Watcher(clock.now())
    tap._watchers.append(watcher)
    for number in range(4):
        tap.placed(ask(number))
        tap.ended(RequestId(f"r{number}"), 6.0, 3, Hints(ttft_slo_s=0.5), "finished")
    tap.ended(RequestId("never-placed"), 6.0, 0, Hints(), "failed")
    tap.placed(ask(9))
    tap.ended(RequestId("r9"), 4.0, 3, Hints(), "finished")  # begun before anybody watched
    assert not tap._asked

    async def lines() -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in (await watcher.next_lines()).splitlines()]

    first, second, last = asyncio.run(lines())
    assert first["at_s"] == second["at_s"] == 1.0 and first["ttft_slo_s"] == 0.5
    assert last == {"lost": 2, "unplaced": 1}
    assert first["blocks"] != ["ab" * 16] and len(first["blocks"][0]) == 16


async def test_too_many_watchers_are_refused() -> None:
    tap = capture.Capture(ManualClock(), 16)
    tap._watchers += [capture._Watcher(0.0) for _ in range(capture.MOST_WATCHERS)]
    with pytest.raises(RefusedError):
        await tap.watch(None)  # type: ignore[arg-type]
