"""What the scheduler is told about the requests that a dying worker was computing."""

from __future__ import annotations

from services.gateway.core import actions as act
from services.gateway.core import events as ev
from services.gateway.core.events import Role, Silence
from shared.ids import RequestId
from shared.wire.requests import PlacementEnded, WorkerRef
from tests.services.gateway.core.builders import (
    DECODE,
    DECODE_2,
    PREFILL,
    SAMPLING,
    Core,
    R,
    started,
)


def report(core: Core) -> PlacementEnded:
    (ended,) = core.got(act.ReportEnd)
    return ended.message


def died(core: Core) -> tuple[WorkerRef, ...]:
    return report(core).died


def signature(prompt: tuple[int, ...]) -> str:
    core = Core()
    core.feed(ev.Opened(R, prompt, SAMPLING, "auto", core.now + 60))
    return core.got(act.Place)[0].message.signature


def test_prefill_is_computing_until_the_first_token() -> None:
    core = started()
    core.died(PREFILL, "prefill")
    core.failed(DECODE, "worker_lost")
    assert died(core) == (PREFILL,) == report(core).failed
    core = started()
    core.died(DECODE, "decode")
    assert report(core).failed == (DECODE,) and died(core) == (), "it only waited for pages"


def test_decode_that_went_on_for_a_dead_prefill_worker_was_computing_too() -> None:
    core = started()
    core.died(PREFILL, "prefill")
    core.died(DECODE, "decode")
    assert died(core) == (PREFILL, DECODE) == report(core).failed
    core = started()
    core.died(PREFILL, "prefill")
    core.chunk(0, 5)
    core.died(DECODE, "decode")
    assert died(core) == (DECODE,), "it got past the place where prefill died"


def test_decode_is_computing_from_the_first_token_on() -> None:
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    core.chunk(1, 6)
    core.died(DECODE, "decode")
    assert died(core) == (DECODE,) and report(core).emitted == 2
    core.run(2, decode=DECODE_2)
    core.chunk(2, 7, ref=PREFILL, attempt=2)
    core.died(DECODE_2, "decode")
    assert died(core) == (DECODE_2,) and report(core).emitted == 1


def test_a_colocated_worker_is_computing_as_soon_as_it_accepted() -> None:
    core = Core()
    core.open()
    core.placed(prefill=None)
    core.accepted(Role.DECODE, DECODE)
    core.died(DECODE, "decode")
    assert died(core) == (DECODE,)


def test_a_worker_that_never_had_the_job_died_of_something_else() -> None:
    core = Core()
    core.open()
    core.placed(prefill=None)
    core.died(DECODE, "decode")
    assert report(core).failed == (DECODE,) and died(core) == ()


def test_leaving_and_failing_are_no_deaths() -> None:
    core = started()
    core.died(PREFILL, "prefill", cause="ended")
    assert report(core).failed == (PREFILL,) and died(core) == ()
    core = started()
    core.failed(PREFILL, "internal")
    assert died(core) == ()


def test_silence_of_a_computing_worker_is_a_death() -> None:
    core = started()
    core.wait(1.5)
    assert {ask.role for ask in core.got(act.AskResend)} == {Role.PREFILL, Role.DECODE}
    core.unsent(Role.PREFILL, Silence.NO_RESPONDER)
    core.failed(DECODE, "worker_lost")
    assert died(core) == (PREFILL,)


def test_no_answer_may_be_our_own_fault_and_is_no_death() -> None:
    """Only our words may be lost: a request must not be called poison for that."""
    core = started()
    core.wait(1.5)
    core.unsent(Role.PREFILL, Silence.TIMEOUT)
    core.wait(0.2)
    core.unsent(Role.PREFILL, Silence.TIMEOUT)
    assert report(core).failed == (PREFILL,) and died(core) == ()


def test_a_signature_names_the_whole_prompt_and_outlives_attempts() -> None:
    assert len({signature(tuple(range(length))) for length in range(1, 50)}) == 49
    assert signature((1, 2, 3)) != signature((1, 2, 4))
    assert signature((*range(16), 1)) != signature((*range(16), 2))
    long = tuple(range(70))
    assert signature(long) == signature(long) and len(signature(long)) == 32
    core = started()
    first = core.all(act.Place)[0].message
    core.chunk(0, 5, ref=PREFILL)
    core.chunk(1, 6)
    core.died(DECODE, "decode")
    again = core.all(act.Place)[-1].message
    assert again.attempt == 2 and again.signature == first.signature == report(core).signature
    core.open(RequestId("r2"))
    assert core.all(act.Place)[-1].message.signature == first.signature, "same prompt, same tenant"
