"""Generators: exact sharing, published moments, turns that grow, trees that fork."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from pathlib import Path

import pytest

from loadgen.workloads.catalogue import Wish, load
from loadgen.workloads.prefixes import PREBLE, Family, families, preble
from loadgen.workloads.sessions import Talk as Conversation
from loadgen.workloads.sessions import Tree, talks, trees

_NOW = (0.0,)


def test_families_share_exactly_their_prefix() -> None:
    family = Family(groups=3, shared_tokens=320, own_tokens=80, output_tokens=4)
    found = families("mine", family, _NOW * 30)
    heads = {request.blocks[:20] for request in found}
    assert len(heads) == 3
    assert found.ideal_hit == pytest.approx(27 * 320 / (30 * 400))
    own = [block for request in found for block in request.blocks[20:]]
    assert len(own) == len(set(own))


def test_zipf_makes_the_first_group_the_hottest() -> None:
    found = families("mine", Family(40, 160, 16, 4, zipf=1.1), _NOW * 4_000)
    popularity = Counter(request.session for request in found)
    assert popularity[0] / 4_000 == pytest.approx(
        1 / sum(rank**-1.1 for rank in range(1, 41)), rel=0.1
    )


@pytest.mark.parametrize("kind", PREBLE)
def test_preble_has_the_published_lengths(kind: str) -> None:
    found = preble(kind, _NOW * 1_500, seed=1)
    moments = PREBLE[kind]
    # Few groups of very different sizes (programming) leave the mean of prompts uncertain.
    prompts = statistics.mean({r.session: r.prompt_tokens for r in found}.values())
    assert prompts == pytest.approx(moments.prompt[0], rel=0.4)
    assert statistics.mean(r.output_tokens for r in found) == pytest.approx(
        moments.output[0], rel=0.15
    )


def test_a_turn_repeats_all_that_was_said() -> None:
    talk = Conversation(4, 64, (30, 10), (50, 20), 2.0)
    found = talks("mine", talk, (0.0, 1.0)).requests
    assert [request.after for request in found] == [None, 0, 1, 2, None, 4, 5, 6]
    for earlier, later in itertools.pairwise(found[:4]):
        said = earlier.prompt_tokens + earlier.output_tokens
        assert later.prompt_tokens > said
        whole = earlier.prompt_tokens // 16
        assert later.blocks[:whole] == earlier.blocks[:whole]
    assert found[0].blocks[:4] == found[4].blocks[:4]


def test_a_tree_forks_below_the_context_of_its_parent() -> None:
    found = trees("mine", Tree(3, 2, 64, (30, 10), (20, 5), 0.5), (0.0,)).requests
    assert [request.after for request in found] == [None, 0, 0, 1, 1, 2, 2]
    parent, left, right = found[1], found[3], found[4]
    whole = parent.prompt_tokens // 16
    assert left.blocks[:whole] == right.blocks[:whole] == parent.blocks[:whole]
    assert left.blocks != right.blocks


@pytest.mark.parametrize("name", ["zipf", "hot", "groups96", "chat", "agents", "preble:toolbench"])
@pytest.mark.parametrize("arrival", ["poisson", "constant", "gamma:4", "on-off:2:6"])
def test_a_seed_gives_one_workload(name: str, arrival: str, tmp_path: Path) -> None:
    wish = Wish(name, count=60, rate_per_s=5.0, arrival=arrival, seed=3)
    assert load(wish, tmp_path) == load(wish, tmp_path)
