"""When a request may be tried again: the retry budget (I21) and the poison ledger (I19).

Both learn from the ends of attempts alone. Knows no workers' state and no placement.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from shared.ids import Epoch, WorkerId
from shared.wire.requests import PlacementEnded, WorkerRef

PROGRESS_TOKENS: Final = 32
"""An attempt that added more tokens before it died got past the place of the death before: more
than a crash can swallow of what was already on its way to the client."""
_SETTLE_S: Final = 0.5
"""After a death the reports of all its victims come in: nobody is judged earlier."""
_TRIAL_S: Final = 5.0
_KEPT_OUT_S: Final = 300.0
_MAX_SUSPECTS: Final = 4_096


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """At most `share` of the live traffic may be tries after a failure."""

    share: float = 0.2
    floor: int = 64
    """Retries in a window that are always allowed: one decode worker full of sequences."""
    window_s: float = 10.0


RETRIES: Final = RetrySettings()


class RetryBudget:
    """Counts, in slices of a second, requests that were placed for the first time and again."""

    def __init__(self, settings: RetrySettings) -> None:
        self._settings = settings
        self._slices: deque[tuple[float, list[int]]] = deque()

    def first(self, now: float) -> None:
        """A request was placed for the first time."""
        self._slice(now)[0] += 1

    def again(self, now: float) -> None:
        """A request was placed after a failure."""
        self._slice(now)[1] += 1

    def allows(self, running: int, now: float) -> bool:
        """Whether one more retry fits; `running` are the sequences that workers report."""
        settings = self._settings
        self._forget(now)
        live = running + sum(counts[0] for _, counts in self._slices)
        return self.retries(now) < max(settings.floor, int(settings.share * live))

    def retries(self, now: float) -> int:
        """Retries in the window."""
        self._forget(now)
        return sum(counts[1] for _, counts in self._slices)

    def _slice(self, now: float) -> list[int]:
        self._forget(now)
        if not self._slices or now - self._slices[-1][0] >= 1.0:
            self._slices.append((now, [0, 0]))
        return self._slices[-1][1]

    def _forget(self, now: float) -> None:
        while self._slices and now - self._slices[0][0] >= self._settings.window_s:
            self._slices.popleft()


class Verdict(StrEnum):
    """May a request of this signature be placed?"""

    FREE = "free"
    WAIT = "wait"
    POISON = "poison"


_Death = tuple[WorkerId, Epoch]


@dataclass(slots=True)
class _Suspect:
    deaths: set[_Death] = field(default_factory=set)
    died_s: float = 0.0
    accompanied: bool = False
    """Another signature shared two of its deaths: it is tried before it is judged."""
    kept_out: bool = False
    trial_until_s: float | None = None
    convicted: bool = False
    """It was tried alone, and a worker died."""


class PoisonLedger:
    """Which signatures (digests of prompts) were being served when workers died.

    A death counts against a request when the incarnation that died was computing it: its
    prefill was accepted and unfinished there, or its tokens were being generated there. The
    gateway says so (`PlacementEnded.died`).
    - *Cleared*: it finished, or an attempt added more than PROGRESS_TOKENS tokens before its
      death. A deterministic poison kills at the same place, so progress speaks for the request.
    - *Poison*: two incarnations died with it, without progress in between, and no other
      signature shares both deaths. It is kept out for `_KEPT_OUT_S`.
    - *On trial*: another signature shares both deaths, so one of them is innocent. They are
      placed one at a time: who dies again is poison, who lives for `_TRIAL_S` is cleared.
    A death that poison explains counts against nobody else.
    So a lone poison meets two workers; one that always had the same company meets three.

    Declared dead is not dead: a worker that is cut off again and again, or starved, is given up
    though it lives. A death is *proven* when the worker's next incarnation beats, or when nothing
    was heard for `proof_s`; nobody is judged by others earlier. A beat of the same incarnation
    takes the death back, and with it what was judged by it.
    """

    def __init__(self, proof_s: float) -> None:
        self._proof_s = proof_s
        self._suspects: OrderedDict[str, _Suspect] = OrderedDict()
        self._unproven: set[_Death] = set()

    @property
    def kept_out(self) -> int:
        return sum(suspect.kept_out for suspect in self._suspects.values())

    def ended(self, event: PlacementEnded, now: float) -> None:
        """Learn from the end of an attempt."""
        if not event.signature:
            return
        if event.outcome == "finished" or event.emitted > PROGRESS_TOKENS:
            self._suspects.pop(event.signature, None)
        if event.died:
            self._died(event.signature, event.died, now)

    def heard(self, worker: WorkerId, epoch: Epoch) -> None:
        """This incarnation beats: it lives, and the ones before it are dead."""
        for death in [d for d in self._unproven if d[0] == worker and d[1] <= epoch]:
            self._unproven.discard(death)
            if death[1] == epoch:
                self._take_back(death)

    def judge(self, signature: str, now: float) -> Verdict:
        """Asked before each placement; opens a trial when it answers FREE to a suspect."""
        suspect = self._suspects.get(signature)
        if suspect is None or len(suspect.deaths) < 2:
            return Verdict.FREE
        if suspect.kept_out:
            return Verdict.POISON
        if suspect.trial_until_s is not None:
            return Verdict.FREE
        proven = self._unproven.isdisjoint(suspect.deaths)
        if now - suspect.died_s < (_SETTLE_S if proven else max(_SETTLE_S, self._proof_s)):
            return Verdict.WAIT
        if not suspect.convicted:
            self._find_company(signature, suspect)
        if suspect.convicted or not suspect.accompanied:
            self._keep_out(signature, suspect)
            return Verdict.POISON
        if any(other.trial_until_s is not None for other in self._suspects.values()):
            return Verdict.WAIT
        suspect.trial_until_s = now + _TRIAL_S
        return Verdict.FREE

    def expire(self, now: float) -> None:
        """Clear who survived a trial; forget what is old."""
        for signature, suspect in list(self._suspects.items()):
            survived = suspect.trial_until_s is not None and suspect.trial_until_s <= now
            if survived or suspect.died_s + _KEPT_OUT_S <= now:
                del self._suspects[signature]
        if self._unproven:
            self._unproven.intersection_update(
                death for suspect in self._suspects.values() for death in suspect.deaths
            )

    # -- inside ----------------------------------------------------------------------------

    def _died(self, signature: str, died: tuple[WorkerRef, ...], now: float) -> None:
        suspect = self._suspects.setdefault(signature, _Suspect())
        self._suspects.move_to_end(signature)
        fresh = {(ref.worker, ref.epoch) for ref in died} - suspect.deaths
        if not fresh:
            return
        suspect.deaths |= fresh
        suspect.died_s = now
        self._unproven |= fresh
        if suspect.trial_until_s is not None:
            suspect.convicted, suspect.trial_until_s = True, None
        while len(self._suspects) > _MAX_SUSPECTS:
            self._suspects.popitem(last=False)

    def _take_back(self, death: _Death) -> None:
        for signature, suspect in list(self._suspects.items()):
            if death in suspect.deaths:
                suspect.deaths.discard(death)
                suspect.kept_out = suspect.convicted = False
                if not suspect.deaths:
                    del self._suspects[signature]

    def _keep_out(self, signature: str, suspect: _Suspect) -> None:
        suspect.kept_out = True
        for name, other in list(self._suspects.items()):
            if name != signature and not other.kept_out:
                other.deaths -= suspect.deaths
                if not other.deaths:
                    del self._suspects[name]

    def _find_company(self, signature: str, suspect: _Suspect) -> None:
        for name, other in self._suspects.items():
            if name != signature and len(other.deaths & suspect.deaths) >= 2:
                suspect.accompanied = other.accompanied = True
