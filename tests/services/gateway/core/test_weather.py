"""Any event in any state: nothing raises, every invariant holds, one ending per request."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.core import actions as act
from services.gateway.core import events as ev
from services.gateway.core.events import Role, Silence
from shared.ids import Attempt, Epoch, RequestId
from shared.wire.requests import (
    Accepted,
    JobFailed,
    PlacementEnded,
    Refused,
    TokenChunk,
    TokenEntry,
)
from shared.wire.workers import WorkerLost
from tests.services.gateway.core.builders import (
    DECODE,
    DECODE_2,
    PREFILL,
    SAMPLING,
    Core,
    placement,
)

requests = st.sampled_from([RequestId("a"), RequestId("b")])
attempts = st.integers(1, 4).map(Attempt)
roles = st.sampled_from(list(Role))
silences = st.sampled_from(list(Silence))
workers = st.sampled_from([PREFILL, DECODE, DECODE_2])
codes = st.sampled_from(
    [
        "no_worker",
        "draining",
        "kv_pages_exhausted",
        "internal",
        "transfer_failed",
        "bad word",
        "unknown_request",
        "poison_request",
        "deadline_exceeded",
    ]
)
refusals = st.builds(lambda code: Refused(code, "no", None), codes)
entries = st.builds(
    lambda request, attempt, index, count, finish: TokenEntry(
        request, attempt, index, tuple(range(index, index + count)), finish, 3
    ),
    requests,
    attempts,
    st.integers(-1, 9),
    st.integers(0, 3),
    st.sampled_from([None, None, None, "stop", "length", "odd"]),
)


@st.composite
def placements(draw: st.DrawFn) -> ev.Placed:
    request, attempt = draw(requests), draw(attempts)
    prefill = draw(st.sampled_from([None, PREFILL]))
    decode = draw(st.sampled_from([DECODE, DECODE_2]))
    leader = draw(st.integers(1, 2))
    whole = placement(attempt, prefill, decode, request, leader)
    return ev.Placed(request, attempt, draw(st.one_of(st.just(whole), refusals)))


EVENTS: st.SearchStrategy[ev.Event] = st.one_of(
    requests.map(lambda r: ev.Opened(r, tuple(range(20)), SAMPLING, "auto", 130.0)),
    placements(),
    placements(),
    st.builds(ev.Closed, requests, st.sampled_from(["stop", "client_gone"])),
    st.builds(ev.PlaceUnanswered, requests, attempts, silences),
    st.builds(
        lambda request, attempt, role, ref, refused: ev.JobAnswered(
            request, attempt, role, refused or Accepted(ref.worker, ref.epoch)
        ),
        requests,
        attempts,
        roles,
        workers,
        st.one_of(st.none(), st.none(), refusals),
    ),
    st.builds(ev.JobUnanswered, requests, attempts, roles, silences),
    st.builds(
        lambda ref, found: ev.TokensArrived(TokenChunk(ref.worker, ref.epoch, tuple(found))),
        workers,
        st.lists(entries, max_size=3),
    ),
    st.builds(
        lambda request, attempt, ref, code: ev.AttemptFailed(
            JobFailed(request, attempt, ref.worker, ref.epoch, code, "")
        ),
        requests,
        attempts,
        workers,
        codes,
    ),
    st.builds(
        lambda ref: ev.WorkerDied(WorkerLost(ref.worker, "decode", ref.epoch, Epoch(1), "silent")),
        workers,
    ),
    st.builds(ev.ResendAnswered, requests, attempts, roles, st.one_of(entries, refusals)),
    st.builds(ev.ResendUnanswered, requests, attempts, roles, silences),
    st.builds(lambda r, a, w: ev.CancelAnswered(r, a, w.worker), requests, attempts, workers),
    st.builds(
        lambda r, a, w, s: ev.CancelUnanswered(r, a, w.worker, s),
        requests,
        attempts,
        workers,
        silences,
    ),
    st.builds(lambda r, a: ev.EndUnsent(PlacementEnded(r, a, "finished")), requests, attempts),
    st.just(ev.BusReturned()),
    st.just(ev.Ticked()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.sampled_from([0.0, 0.05, 0.5, 3.0])), max_size=60))
def test_any_event_in_any_state(script: list[tuple[ev.Event, float]]) -> None:
    core = Core()
    endings, ended_attempts = Counter[RequestId](), Counter[tuple[RequestId, Attempt]]()
    for event, pause_s in script:
        core.now += pause_s
        known = event.request in core.machine._open if isinstance(event, ev.Closed) else False
        for action in core.feed(event):
            match action:
                case act.Deliver(request=request, finish=finish):
                    assert endings[request] == 0
                    endings[request] += finish is not None
                case act.Fail(request=request):
                    endings[request] += 1
                case act.EndAttempt(request=request, attempt=attempt):
                    ended_attempts[request, attempt] += 1
        if isinstance(event, ev.Closed) and known:
            endings[event.request] += 1
    core.now += 1000
    for action in core.feed(ev.Ticked()):
        if isinstance(action, act.Fail):
            endings[action.request] += 1
        elif isinstance(action, act.EndAttempt):
            ended_attempts[action.request, action.attempt] += 1
    opened = {e.request for e, _ in script if isinstance(e, ev.Opened)}
    assert endings == Counter(dict.fromkeys(opened, 1))
    begun = {(a.request, a.attempt) for a in core.all(act.StartAttempt)}
    assert ended_attempts == Counter(dict.fromkeys(begun, 1))
    assert core.machine.open_requests == 0
    for request in opened:
        tokens = [t for d in core.all(act.Deliver) if d.request == request for t in d.token_ids]
        assert tokens == list(range(len(tokens)))
