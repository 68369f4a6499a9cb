"""What the scheduler believes about speed, per worker class, and how sure it may be.

Starts from the profile that each worker measures at its start (its heartbeat's CostModel, or a
shipped one where that makes no sense) and corrects it by what steps took. Knows no placement.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from services.scheduler.core.models.lengths import Lengths
from services.scheduler.core.models.links import Links
from services.scheduler.core.models.regression import Drift, FactorFit
from shared.costs import WorkCosts
from shared.ids import WorkerId
from shared.wire.workers import CostModel, Heartbeat, StepSample

SHIPPED: Final = WorkCosts(
    step_s=0.018, token_s=1.02e-4, pair_s=7.1e-9, decode_step_s=0.02, decode_sequence_s=4e-5
)
"""DistServe's fit of OPT-13B on one A100 (algorithms, 16.2): for a worker that reports nothing
usable. Its absolute level hardly matters: all workers of such a cluster share it."""

_HALF: Final = (0.5, 1.5)
_CONTEXT: Final = (0.0, 1_000.0)
"""Of a first sequence, per 10^5 tokens: on a CPU a thousand may take as long as all weights."""
_PER_TOKENS: Final = 1e5
_MOST_CLASSES: Final = 256
_LARGEST_S: Final = 3600.0

ClassKey = tuple[str, str, str]


class SpeedClass:
    """Workers of one role, model and layout."""

    def __init__(self) -> None:
        self.prefill = FactorFit((_HALF, _HALF, _HALF), (1.0, 1.0, 1.0))
        self.decode = FactorFit((_HALF, _HALF, _CONTEXT), (1.0, 1.0, 0.0), (0.05, 0.05, 400.0))
        self.drift = Drift()

    def learn(self, profile: WorkCosts, sample: StepSample) -> None:
        """One step. A mixed step is bound by its prompt tokens: it teaches prefill."""
        if sample.new_tokens > 0:
            fit, parts = self.prefill, prefill_parts(profile, sample)
        elif sample.sequences > 0:
            fit, parts = self.decode, decode_parts(profile, sample)
        else:
            return
        error = fit.add(parts, sample.seconds)
        if error is not None and self.drift.add(error):
            fit.loosen()

    def costs(self, profile: WorkCosts) -> WorkCosts:
        """The profile as corrected."""
        step, token, pair = self.prefill.factors
        first, further, _ = self.decode.factors
        return WorkCosts(
            step_s=profile.step_s * step,
            token_s=profile.token_s * token,
            pair_s=profile.pair_s * pair,
            decode_step_s=profile.decode_step_s * first,
            decode_sequence_s=profile.decode_sequence_s * further,
        )

    def context_token_s(self, profile: WorkCosts) -> float:
        """What each token of context adds to a decode step."""
        return self.decode.factors[2] * profile.decode_step_s / _PER_TOKENS


class Learned:
    """All models. Total: whatever comes in, what goes out is finite and positive."""

    def __init__(self) -> None:
        self.lengths = Lengths()
        self.links = Links()
        self._classes: OrderedDict[ClassKey, SpeedClass] = OrderedDict()
        self._profiles: dict[CostModel, WorkCosts] = {}
        self._costs: dict[WorkerId, tuple[CostModel, WorkCosts, float]] = {}
        self.refused_profiles = 0

    def heard(self, beat: Heartbeat, now: float) -> None:
        """Learn from what a worker measured since its last beat."""
        if beat.steps:
            known, profile = self._class(class_key(beat)), self._profile(beat.cost)
            for sample in beat.steps:
                known.learn(profile, sample)
            self._costs.clear()
        for read in beat.links:
            self.links.add(beat.worker, read.peer, read.size_bytes, read.seconds, now)

    def costs(self, beat: Heartbeat) -> WorkCosts:
        """Coefficients of this worker."""
        return self._corrected(beat)[1]

    def context_token_s(self, beat: Heartbeat) -> float:
        """What each token of context adds to one of its decode steps."""
        return self._corrected(beat)[2]

    def shown(self) -> dict[str, object]:
        """For people: every class with factors, samples and drift."""
        return {
            "classes": [
                {
                    "role": role,
                    "model": model,
                    "layout": layout,
                    "prefill_factors": [round(f, 4) for f in known.prefill.factors],
                    "decode_factors": [round(f, 4) for f in known.decode.factors],
                    "samples": known.prefill.samples + known.decode.samples,
                    "refused": known.prefill.refused + known.decode.refused,
                    "drift": round(known.drift.mean, 4),
                    "drift_alarms": known.drift.alarms,
                }
                for (role, model, layout), known in self._classes.items()
            ],
            "links": self.links.shown(),
            "lengths": self.lengths.shown(),
            "refused_profiles": self.refused_profiles,
        }

    def alarms(self) -> int:
        """Lasting changes noticed so far."""
        return sum(known.drift.alarms for known in self._classes.values())

    # -- inside ------------------------------------------------------------------------------

    def _class(self, key: ClassKey) -> SpeedClass:
        known = self._classes.get(key)
        if known is None:
            known = self._classes[key] = SpeedClass()
            while len(self._classes) > _MOST_CLASSES:
                self._classes.popitem(last=False)
        return known

    def _corrected(self, beat: Heartbeat) -> tuple[CostModel, WorkCosts, float]:
        """Remembered per worker until its profile or anything learnt changes."""
        found = self._costs.get(beat.worker)
        if found is not None and found[0] is beat.cost:
            return found
        profile = self._profile(beat.cost)
        known = self._classes.get(class_key(beat))
        if known is None:
            found = (beat.cost, profile, 0.0)
        else:
            found = (beat.cost, known.costs(profile), known.context_token_s(profile))
        if len(self._costs) >= 16_384:
            self._costs.clear()
        self._costs[beat.worker] = found
        return found

    def _profile(self, cost: CostModel) -> WorkCosts:
        """As reported, or the shipped one when no engine can be like that."""
        found = self._profiles.get(cost)
        if found is None:
            fields = (
                cost.step_s,
                cost.token_s,
                cost.pair_s,
                cost.decode_step_s,
                cost.decode_sequence_s,
            )
            sound = all(math.isfinite(f) and 0.0 <= f < _LARGEST_S for f in fields)
            if sound and cost.step_s + cost.token_s > 0.0:
                found = WorkCosts(*fields)
            else:
                self.refused_profiles += 1
                found = SHIPPED
            if len(self._profiles) >= 4096:
                self._profiles.clear()
            self._profiles[cost] = found
        return found


def class_key(beat: Heartbeat) -> ClassKey:
    """Workers that may be expected to be equally fast for one profile."""
    return beat.role, beat.model_digest, beat.layout_digest


def prefill_parts(profile: WorkCosts, sample: StepSample) -> tuple[float, float, float]:
    """Fixed, per token, per pair: seconds that the profile expects of each."""
    total = sample.new_tokens + sample.cached_tokens
    pairs = total**2 - sample.cached_tokens**2
    tokens = sample.new_tokens + sample.sequences
    return profile.step_s, profile.token_s * tokens, profile.pair_s * pairs


def decode_parts(profile: WorkCosts, sample: StepSample) -> tuple[float, float, float]:
    """First sequence, further sequences, context (in units of the first per 10^5 tokens)."""
    context = profile.decode_step_s * sample.context_tokens / _PER_TOKENS
    further = profile.decode_sequence_s * (sample.sequences - 1)
    return profile.decode_step_s, further, context
