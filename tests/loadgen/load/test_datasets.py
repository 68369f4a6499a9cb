"""Data sets: exact lengths and shares, equal prefixes exactly where block ids say so."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadgen import arrivals
from loadgen.load import datasets, environment, flags, setup
from loadgen.load.datasets import Choice, Chosen, choose
from loadgen.load.payloads import BlockPrompts, Said
from loadgen.workloads.request import Request, WorkloadError, build
from tests.architecture.sources import ROOT

DATA = ROOT.parent / "shared" / "data"
ALPHABET = tuple(range(100, 400))
there = pytest.mark.skipif(not DATA.is_dir(), reason="no public data here")


def even(count: int) -> Sequence[float]:
    return arrivals.constant(10.0, count)


def chosen(name: str, **said: object) -> Chosen:
    fields = {"name": name, "folder": DATA, "count": 40, "alphabet": ALPHABET} | said
    return choose(Choice(**fields), even)  # type: ignore[arg-type]


def ids(found: Chosen, number: int) -> list[int]:
    drawn = found.part.prompts.ids(number, None)
    assert not isinstance(drawn, str)
    return drawn.tolist()


def common(a: Sequence[int], b: Sequence[int]) -> int:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    return sum(1 for _ in pairs)


def test_random_prompts_have_exact_lengths_and_share_nothing() -> None:
    found = chosen("random-ids", input_tokens=(20, 60), output_tokens=(3, 9))
    rows = found.part.workload.requests
    drawn = [ids(found, number) for number in range(len(rows))]
    assert [len(one) for one in drawn] == [row.prompt_tokens for row in rows]
    assert {len(one) for one in drawn} <= set(range(20, 61)) and len({len(o) for o in drawn}) > 10
    assert all(3 <= row.output_tokens <= 9 for row in rows)
    assert set(np.concatenate(drawn).tolist()) <= set(ALPHABET)
    assert max(common(drawn[0], other) for other in drawn[1:]) < 4
    assert found.ideal_hit == 0.0
    again = chosen("random-ids", input_tokens=(20, 60), output_tokens=(3, 9))
    assert ids(again, 7) == drawn[7]
    assert ids(chosen("random-ids", input_tokens=(20, 60), seed=1), 7) != drawn[7]


@pytest.mark.parametrize(("shared", "tokens"), [(0.0, 0), (0.25, 64), (0.5, 128), (0.75, 192)])
def test_the_share_of_a_prefix_is_exact(shared: float, tokens: int) -> None:
    found = chosen("random-ids", input_tokens=(256, 256), shared=shared, groups=3)
    rows = found.part.workload.requests
    for a in range(8):
        for b in range(a + 1, 8):
            same = bool(shared) and rows[a].session == rows[b].session
            assert common(ids(found, a), ids(found, b)) // 16 * 16 == (tokens if same else 0)
    groups = len({row.session for row in rows}) if shared else 0
    assert found.ideal_hit == pytest.approx((40 - groups) * tokens / (40 * 256))


def test_a_prefix_tree_shares_its_upper_levels_with_neighbours() -> None:
    found = chosen("shared-prefix", prefix_tokens=256, input_tokens=(32, 32), groups=4, depth=2)
    rows = found.part.workload.requests
    first = {row.session: number for number, row in reversed(list(enumerate(rows)))}
    assert common(ids(found, first[0]), ids(found, first[1])) // 16 * 16 == 128
    assert common(ids(found, first[0]), ids(found, first[2])) < 16


def test_a_turn_repeats_what_was_said_and_what_was_answered() -> None:
    first = Request(at_s=0.0, prompt_tokens=32, output_tokens=8, blocks=(0, 1))
    second = Request(at_s=1.0, prompt_tokens=60, output_tokens=8, blocks=(0, 1, 2, 3), after=0)
    prompts = BlockPrompts(build("talk", 16, (first, second)), 0, ALPHABET)
    before = prompts.ids(0, None)
    answer = tuple(range(500, 508))
    said = Said(first, before, prompts.messages(0, None), answer, "yes")
    turn = prompts.ids(1, said)
    assert turn[:32].tolist() == before.tolist() and turn[32:40].tolist() == list(answer)
    assert len(turn) == 60
    messages = prompts.messages(1, said)
    assert [one["role"] for one in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == "yes" and len(messages[2]["content"].split()) == 60 - 40


def test_other_workloads_with_equal_block_ids_share_no_tokens() -> None:
    rows = (Request(at_s=0.0, prompt_tokens=32, output_tokens=1, blocks=(0, 1)),)
    one, other = (BlockPrompts(build(name, 16, rows), 0, ALPHABET) for name in ("a", "b"))
    assert common(one.ids(0, None).tolist(), other.ids(0, None).tolist()) < 4


@there
@pytest.mark.parametrize(
    ("name", "texts", "paced"),
    [
        ("mooncake", False, True), ("mooncake:synthetic", False, True), ("azure", False, True),
        ("azure:code", False, True), ("servegen:m-small", False, True),
        ("vidur:arxiv", False, False), ("preble:toolbench", False, False),
        ("preble:embodied", False, False), ("preble:programming", False, False),
        ("preble:videoqa", False, False), ("preble:loogle", False, False),
        ("sonnet", True, False), ("rag", True, False), ("multi-turn", False, False),
        ("agents", False, False),
    ],
)  # fmt: skip
def test_every_named_data_set_can_be_sent(name: str, texts: bool, paced: bool) -> None:
    found = chosen(name, depth=3 if name == "agents" else 1, prefix_tokens=32)
    rows = found.part.workload.requests
    assert len(rows) >= 40 and (found.texts, found.paced) == (texts, paced)
    drawn = found.part.prompts.ids(0, None)
    assert isinstance(drawn, str) == texts
    if not texts:
        assert len(drawn) == rows[0].prompt_tokens
    assert found.part.prompts.messages(0, None)[-1]["role"] == "user"
    assert 0 <= found.ideal_hit < 1


@there
def test_blocks_of_a_published_trace_become_equal_tokens() -> None:
    """Mooncake's ids name 512 tokens each."""
    found = chosen("mooncake", count=300)
    rows = found.part.workload.requests
    shared = {(a, b): common(rows[a].blocks, rows[b].blocks) for a in range(40) for b in range(a)}
    (a, b), blocks = max(shared.items(), key=lambda pair: pair[1])
    assert 1 <= blocks < min(len(rows[a].blocks), len(rows[b].blocks))
    assert blocks * 512 <= common(ids(found, a), ids(found, b)) < blocks * 512 + 16


@there
def test_a_trace_is_stretched_or_sent_at_another_rate() -> None:
    plain = chosen("azure:code")
    slow = chosen("azure:code", time_scale=3.0)
    fast = chosen("azure:code", rate_per_s=50.0)
    at = [[r.at_s for r in one.part.workload.requests] for one in (plain, slow, fast)]
    assert at[1] == pytest.approx([3 * t for t in at[0]])
    assert fast.part.workload.rate_per_s == pytest.approx(50.0)


def test_files_of_prompts_and_of_published_forms(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt":"one two"}\n{"prompt":"three","output_tokens":7}\n', "utf-8")
    found = chosen("jsonl", path=path, output_tokens=(5, 5))
    assert [r.output_tokens for r in found.part.workload] == [5, 7] and found.texts
    assert found.part.prompts.ids(1, None) == "three"
    path.write_text('{"prompt":3}\n', "utf-8")
    with pytest.raises(WorkloadError, match=r"line 1: prompt must be a text"):
        chosen("jsonl", path=path)
    talks = [{"conversations": [{"value": "Why?"}, {"value": "Because it is so."}]}]
    (tmp_path / "sharegpt.json").write_text(json.dumps(talks), "utf-8")
    shared = chosen("sharegpt", path=tmp_path / "sharegpt.json", count=3)
    assert len(shared.part.workload) == 3 and shared.part.workload.requests[0].output_tokens == 5
    table = tmp_path / "burst.csv"
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    table.write_text(head + "5,GPT-4,10,4,14,x\n6,GPT-4,9,0,9,x\n7.5,GPT-4,8,3,11,x\n", "utf-8")
    burst = chosen("burstgpt", path=table)
    assert [r.at_s for r in burst.part.workload] == [0.0, 2.5]
    assert burst.notes[0].startswith("1 rows without an answer")


def plan_of(*words: str) -> tuple[setup.Plan, argparse.Namespace]:
    parser = argparse.ArgumentParser()
    flags.add(parser)
    options = parser.parse_args(list(words))
    return setup.read(options), options


def test_flags_of_vllm_mean_the_same_here() -> None:
    plan, options = plan_of(
        "--backend", "openai-chat", "--host", "h", "--port", "7", "--dataset-name", "random",
        "--random-input-len", "99", "--random-output-len", "11", "--num-prompts", "5",
        "--request-rate", "inf", "--burstiness", "0.5", "--trust-remote-code", "--tokenizer", "t",
        "--goodput", "ttft:100", "e2el:900", "--max-concurrency", "4", "--profile",
        "--metric-percentiles", "50,75", "--seed", "3", "--top-k", "9", "--disable-tqdm",
        "--metadata", "a=b",
    )  # fmt: skip
    assert plan.base_url == "http://h:7" and plan.path.endswith("/chat/completions")
    assert plan.choice.input_tokens == (99, 99) and plan.choice.output_tokens == (11, 11)
    assert plan.arrival == "gamma" and plan.pace.cap == 4 and plan.body == {"top_k": 9}
    assert plan.slos.text == "ttft:100 e2e:900" and 75.0 in plan.percentiles
    assert options.ignored == ["--trust-remote-code", "--tokenizer"] and options.quiet


@pytest.mark.parametrize(
    ("words", "variation"),
    [
        (("--arrival", "constant"), (0.0, 0.001)),
        ((), (0.9, 1.1)),
        (("--burstiness", "0.25"), (1.7, 2.3)),
        (("--burstiness", "100"), (0.08, 0.12)),
    ],
)
def test_arrivals_have_the_burstiness_that_was_asked(
    words: tuple[str, ...], variation: tuple[float, float]
) -> None:
    plan, options = plan_of("--request-rate", "50", "--num-prompts", "4000", *words)
    at = np.asarray([r.at_s for r in setup.load(plan, options).part.workload])
    gaps = np.diff(at)
    assert variation[0] <= gaps.std() / gaps.mean() <= variation[1]
    assert 4000 / at[-1] == pytest.approx(50, rel=0.02)


def test_tenants_are_drawn_by_weight_and_keep_their_conversations(tmp_path: Path) -> None:
    path = tmp_path / "tenants.json"
    (tmp_path / "key").write_text("secret\n")
    key = {"api_key_file": str(tmp_path / "key"), "weight": 3}
    path.write_text(json.dumps({"chat": key, "batch": {"weight": 1}}))
    words = ("--tenants", str(path), "--dataset", "multi-turn", "--num-prompts", "800")
    plan, options = plan_of(*words)
    found = setup.load(plan, options)
    rows = found.part.workload.requests
    assert all(r.after is None or r.tenant == rows[r.after].tenant for r in rows)
    assert sum(r.tenant == "chat" for r in rows) / 800 == pytest.approx(0.75, abs=0.1)
    asking = setup.asking(plan, found, options, "m")
    assert asking.tenant_headers == {"chat": (("Authorization", "Bearer secret"),)}
    assert asking.token_ids, "follow-ups repeat the answers' own ids"


def test_equal_schedules_have_equal_names() -> None:
    def named(**said: object) -> str:
        workload = chosen("random-ids", **said).part.workload
        return environment.schedule_digest(workload, int(str(said.get("seed", 0))))

    assert named() == named() != named(seed=1)
    assert named() != named(input_tokens=(255, 255))
    assert replace(Choice(), count=3).count == 3 and datasets.ALIASES["rag"] == "musique"
