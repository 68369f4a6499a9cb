"""Requests are checked at one door; ids keep their meaning in smaller blocks."""

from __future__ import annotations

import pytest

from loadgen.workloads.request import Request, WorkloadError, build, finer


def _request(**fields: object) -> Request:
    return Request(**{"at_s": 0.0, "prompt_tokens": 40, "output_tokens": 5} | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt_tokens": 0}, "prompt_tokens is 0"),
        ({"output_tokens": -1}, "output_tokens is -1"),
        ({"at_s": float("nan")}, "at_s is nan"),
        ({"at_s": -0.1}, "at_s is -0.1"),
        ({"blocks": (1, 2)}, "blocks has 2 ids"),
        ({"after": 0}, "after is 0"),
    ],
)
def test_a_request_that_cannot_be_is_named_with_its_row(
    fields: dict[str, object], named: str
) -> None:
    with pytest.raises(WorkloadError, match=f"mine, row 0: {named}"):
        build("mine", 16, [_request(**fields)])


def test_times_out_of_order_and_no_requests_are_refused() -> None:
    with pytest.raises(WorkloadError, match="row 1: at_s is 1"):
        build("mine", 16, [_request(at_s=2.0), _request(at_s=1.0)])
    with pytest.raises(WorkloadError, match="no requests"):
        build("mine", 16, [])


def test_a_follow_up_counts_from_the_end_of_another() -> None:
    found = build("mine", 16, [_request(at_s=5.0), _request(at_s=0.5, after=0)])
    assert found.requests[1].after == 0


def test_the_ideal_hit_counts_whole_shared_blocks() -> None:
    rows = [_request(blocks=(0, 1, 2)), _request(blocks=(0, 1, 9))]
    assert build("mine", 16, rows).ideal_hit == pytest.approx(32 / 80)


def test_smaller_blocks_keep_equal_prefixes_equal() -> None:
    ours = finer((7, 8), 900, 512, 16)
    theirs = finer((7, 5), 1_024, 512, 16)
    assert len(ours) == 900 // 16
    assert ours[:32] == theirs[:32]
    assert not set(ours[32:]) & set(theirs[32:])
    with pytest.raises(WorkloadError, match="do not split"):
        finer((1,), 512, 512, 24)
