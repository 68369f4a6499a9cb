"""Who leads: one lease key in a store with compare-and-set, timed by watching its revision.

No dates: a leader trusts its claim for `lease_s` from before it asked to write it; a follower
takes the lead when it has seen one revision for `lease_s` without a break. So the first always
ends before the second begins, whatever clocks say, as long as both run equally fast. A claim that
cannot be renewed is not acted upon, and a paused leader notices before its next deed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from shared.ids import Epoch, WorkerId

_MARGIN_S: Final = 0.1
"""Of the lease, given away by the leader for clocks that do not run equally fast."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of the lease key."""

    epoch: Epoch
    incarnation: str
    """'' when the leader has given up its lease: the next one need not wait."""
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Who we are, and the rhythm."""

    worker: WorkerId
    incarnation: str
    lease_s: float = 2.0
    renew_s: float = 0.5
    watch_s: float = 0.25


# -- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watched:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The key was read. `revision` 0: it is not there."""

    claim: Claim | None
    revision: int


@dataclass(frozen=True, slots=True)
class Wrote:
    """Our write was answered; `revision` None: somebody else was faster."""

    claim: Claim
    revision: int | None
    asked_s: float
    """Before it was sent."""


@dataclass(frozen=True, slots=True)
class StoreSilent:
    """No answer: a write may or may not have happened."""


@dataclass(frozen=True, slots=True)
class Resigned:
    """The process is about to end."""


LeaseEvent = Watched | Observed | Wrote | StoreSilent | Resigned

# -- actions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadKey:
    """Feed `Observed` or `StoreSilent`."""


@dataclass(frozen=True, slots=True)
class WriteKey:
    """Write if the key is at `revision`; feed `Wrote` or `StoreSilent`."""

    claim: Claim
    revision: int


@dataclass(frozen=True, slots=True)
class TakeLead:
    """Answer from now on, with this epoch. `deposed`: whom we followed, unless it was us."""

    epoch: Epoch
    deposed: Claim | None


@dataclass(frozen=True, slots=True)
class StepBack:
    """Answer nothing from now on."""

    cause: str
    """'lapsed' (not renewed in time; it may still be ours), 'replaced', 'resigned'."""


LeaseAction = ReadKey | WriteKey | TakeLead | StepBack


class Leadership:
    """One candidate. At most one exchange with the store is open at any time."""

    def __init__(self, settings: LeaseSettings) -> None:
        self._settings = settings
        self._mine: tuple[Claim, int] | None = None
        """Our claim and its revision, as far as we know."""
        self._leading = False
        self._valid_until_s = 0.0
        self._followed: Claim | None = None
        self._seen: tuple[int, float] | None = None
        """The foreign revision, and since when it has been seen without a break."""
        self._highest = Epoch(0)
        self._due_s = float("-inf")
        self._exchanging = False
        self._doubtful = False
        """A write of ours is in doubt: read before anything else."""
        self._begun = False
        self._resigned = False

    @property
    def leading(self) -> bool:
        return self._leading

    @property
    def follows(self) -> bool:
        """Somebody else's claim was there when we last looked."""
        return self._seen is not None

    def leads(self, now: float) -> bool:
        """Whether we may act as the leader at this instant."""
        return self._leading and now < self._valid_until_s

    def lapse(self, now: float) -> list[StepBack]:
        """Step back when the claim is too old to act upon. (`Watched` does so too.)"""
        if not self._leading or now < self._valid_until_s:
            return []
        self._leading = False
        return [StepBack("lapsed")]

    def handle(self, event: LeaseEvent, now: float) -> list[LeaseAction]:
        """Apply one event."""
        match event:
            case Watched():
                return [*self.lapse(now), *self._go_on(now)]
            case Observed():
                self._exchanging = False
                return self._observed(event, now)
            case Wrote():
                self._exchanging = False
                return self._wrote(event, now)
            case StoreSilent():
                self._exchanging = False
                self._seen, self._doubtful = None, True
                self._due_s = now + self._settings.watch_s
                return [*self.lapse(now)]
            case Resigned():
                return self._resign()
            case _:
                assert_never(event)

    # -- inside ----------------------------------------------------------------------------

    def _go_on(self, now: float) -> list[LeaseAction]:
        """The next exchange, when it is due."""
        if self._exchanging or self._resigned or now < self._due_s:
            return []
        self._exchanging = True
        if self._mine is None or self._doubtful:
            return [ReadKey()]
        return [WriteKey(*self._mine)]

    def _observed(self, event: Observed, now: float) -> list[LeaseAction]:
        claim, revision = event.claim, event.revision
        self._doubtful = False
        self._due_s = now + self._settings.watch_s
        if self._resigned:
            return []
        if claim is not None:
            self._highest = max(self._highest, claim.epoch)
            if claim.incarnation == self._settings.incarnation:
                return self._write(claim, revision)
        fresh, self._begun = not self._begun, True
        held = self._mine is not None
        back = self._replaced()
        if self._is_free(claim, fresh=fresh, held=held):
            return [*back, *self._seize(claim, revision)]
        if self._seen is None or self._seen[0] != revision:
            self._seen = (revision, now)
        elif now - self._seen[1] >= self._settings.lease_s:
            return [*back, *self._seize(claim, revision)]
        return back

    def _replaced(self) -> list[LeaseAction]:
        """The key is not ours (any more)."""
        held, self._mine = self._mine is not None, None
        self._leading = False
        return [StepBack("replaced")] if held else []

    def _is_free(self, claim: Claim | None, *, fresh: bool, held: bool) -> bool:
        """Nobody can be leading. A key that vanished under a leader (a store that forgets) is
        free for that leader alone; a process that begins takes its own id's lease back."""
        if claim is None:
            return fresh or held
        own = claim.worker == self._settings.worker
        return not claim.incarnation or (fresh and own)

    def _seize(self, claim: Claim | None, revision: int) -> list[LeaseAction]:
        settings = self._settings
        self._followed = claim
        epoch = Epoch(self._highest + 1)
        return self._write(Claim(epoch, settings.incarnation, settings.worker), revision)

    def _write(self, claim: Claim, revision: int) -> list[LeaseAction]:
        self._exchanging = True
        return [WriteKey(claim, revision)]

    def _wrote(self, event: Wrote, now: float) -> list[LeaseAction]:
        if event.revision is None:
            self._doubtful, self._seen, self._due_s = True, None, now
            self._valid_until_s = now
            return [*self.lapse(now)]
        if self._resigned:
            return []
        settings = self._settings
        self._mine, self._seen = (event.claim, event.revision), None
        self._highest = max(self._highest, event.claim.epoch)
        self._valid_until_s = event.asked_s + settings.lease_s - _MARGIN_S
        self._due_s = event.asked_s + settings.renew_s
        if self._leading or now >= self._valid_until_s:
            return [*self.lapse(now)]
        self._leading = True
        deposed, self._followed = self._followed, None
        return [TakeLead(event.claim.epoch, deposed)]

    def _resign(self) -> list[LeaseAction]:
        """Let the next one begin at once. (An exchange under way makes that write fail; then the
        lease simply runs out.)"""
        mine, led = self._mine, self._leading
        self._mine, self._leading, self._resigned = None, False, True
        if mine is None:
            return []
        claim, revision = mine
        vacant = Claim(claim.epoch, "", claim.worker)
        left: list[LeaseAction] = [StepBack("resigned")] if led else []
        return [*left, WriteKey(vacant, revision)]
