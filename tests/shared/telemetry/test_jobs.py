"""What workers add to the spans of their jobs."""

from __future__ import annotations

from shared.telemetry.context import below, derived, read_context
from shared.telemetry.jobs import MOST_OF_A_KIND, Fold, Place, hop


def test_spans_beyond_the_cap_are_counted_by_kind() -> None:
    fold = Fold()
    made = sum(fold.admits("job", "prefill.chunk") for _ in range(MOST_OF_A_KIND + 7))
    assert made == MOST_OF_A_KIND and fold.admits("job", "prefill.seal")
    assert fold.closed("job") == {"baton.folded.prefill.chunk": 7}
    assert fold.closed("job") == {} and fold.admits("job", "prefill.chunk")


def test_a_worker_says_who_it_is() -> None:
    epochs = iter((3, 4))
    place = Place("decode-0", lambda: next(epochs), "baton.decode.decode-0.job")
    assert place.identity(2) == {"baton.worker": "decode-0", "baton.epoch": 3, "baton.attempt": 2}
    assert place.identity(2)["baton.epoch"] == 4
    assert hop("s", "send") == {
        "messaging.system": "nats",
        "messaging.destination.name": "s",
        "messaging.operation.type": "send",
    }


def test_a_derived_place_is_the_same_everywhere_and_another_for_each_name() -> None:
    parent = below(None)
    again = read_context(parent.traceparent)
    assert again == parent
    names = ("decode.job", "prefill.job")
    places = [derived(parent, name) for name in names]
    assert places == [derived(again, name) for name in names]
    assert len({place.span_id for place in (*places, parent)}) == 3
    assert all(place.trace_id == parent.trace_id and place.sampled for place in places)
    unsampled = read_context(parent.traceparent[:-2] + "00")
    assert unsampled is not None and not derived(unsampled, "decode.job").sampled
