"""What a policy may look at when it decides about one request, in one unit: seconds.

Everything is read-only and total: an unknown worker holds nothing, a foreign block size fits no
hash, and no model gives anything but a finite number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from services.scheduler.core.cards import Backlog
from services.scheduler.core.cluster import Worker
from services.scheduler.core.columns import least
from services.scheduler.core.groups import Group
from services.scheduler.core.lookup import Match
from services.scheduler.core.placement.weights import Weights
from services.scheduler.core.world import World
from shared import costs
from shared.ids import WorkerId
from shared.wire.requests import TOP_PRIORITY, PlaceRequest

if TYPE_CHECKING:
    from services.scheduler.core.placement.option import Offer

_TIE_S: Final = 1e-9
"""Where streams cost nothing, the fewest are least all the same."""


class View:
    """One request against the world, at one moment."""

    def __init__(self, ask: PlaceRequest, world: World, weights: Weights, now: float) -> None:
        self.ask = ask
        self.now = now
        self.world = world
        self.weights = weights
        self.cluster = world.cluster
        self.match: Match = world.index.match(ask.block_hashes, now)
        self.prefills: Group = world.cluster.group("prefill", ask.model_digest)
        self.decodes: Group = world.cluster.group("decode", ask.model_digest)
        self.pools: Group = world.cluster.group("kvpool", ask.model_digest)
        self.expected_tokens = world.learned.lengths.expected(
            ask.tenant, ask.model_digest, ask.expected_output_tokens, max(1, ask.max_tokens)
        )
        priority = min(TOP_PRIORITY, max(-TOP_PRIORITY, ask.priority))
        self.others = float(0.5 ** (priority / max(1.0, weights.priority_halves)))
        """How much the delay of others counts: half for each step of priority. A forged priority
        counts as the nearest one there is."""
        self._most_later = weights.busy_most / (1.0 - weights.busy_most)
        self._failed = {(ref.worker, ref.epoch) for ref in ask.excluded}
        self._cached: dict[WorkerId, int] = {}
        self._lightest: dict[int, list[Worker]] = {}
        self._size = self._fit = 0
        self._holders: dict[tuple[int, int], list[Worker]] = {}

    @property
    def ttft_slo_s(self) -> float:
        return self.ask.ttft_slo_s or self.weights.ttft_slo_s

    @property
    def tpot_slo_s(self) -> float:
        return self.ask.tpot_slo_s or self.weights.tpot_slo_s

    # -- who -----------------------------------------------------------------------------

    def failed(self, worker: Worker) -> bool:
        """Whether this incarnation failed this request before."""
        return (worker.report.worker, worker.report.epoch) in self._failed

    def fresh(self, workers: list[Worker]) -> list[Worker]:
        """Without those that failed this request, unless that leaves nobody: then a worker that
        failed once and still lives is better than none."""
        if not self._failed:
            return workers
        return [worker for worker in workers if not self.failed(worker)] or workers

    def has_room(self, worker: Worker) -> bool:
        """Whether the prompt and one more token fit there now."""
        return worker.pages_free() >= self.pages(worker)

    def colocated(self, offer: Offer) -> list[Worker]:
        """Decode workers that may compute the prompt themselves."""
        if not offer.colocated:
            return []
        return [worker for worker in self.roomy() if self.may_stay(worker, offer)]

    def may_stay(self, worker: Worker, offer: Offer) -> bool:
        """Whether this decode worker is among those that the offer means."""
        if offer.only is not None and worker.ref != offer.only:
            return False
        if offer.most_left is None:
            return True
        cached = self.cached(worker) * worker.report.block_tokens
        return self.ask.prompt_tokens - cached < offer.most_left

    def roomy(self) -> list[Worker]:
        """Decode workers with room. Looks at all of them."""
        return self.fresh([worker for worker in self.decodes.workers if self.has_room(worker)])

    def idlest(self, group: Group, most: int) -> list[Worker]:
        """Workers with the least wait; half as many more where that of their card counts too."""
        columns = self.cluster.columns
        waits = columns.wait_s(group.rows, self.now)
        later = waits + self.weights.exposed_share * columns.sending_s(group.rows, self.now)
        rows = least(waits, most).tolist()
        for _ in range(min(most // 2, len(later))):
            rows.append(int(later.argmin()))
            later[rows[-1]] = np.inf
        return [group.workers[row] for row in dict.fromkeys(rows)]

    def lightest(self, most: int) -> list[Worker]:
        """Decode workers with room: those to whose streams, and to whose card, one more adds least,
        and half as many that hold the prefix."""
        known = self._lightest.get(most)
        if known is None:
            known = self._lightest[most] = self._find_lightest(most)
        return known

    def _find_lightest(self, most: int) -> list[Worker]:
        group, columns = self.decodes, self.cluster.columns
        if not group.workers:
            return []
        first = group.workers[0]
        adds = columns.streams(group.rows) * (self.stream_s(first) + _TIE_S)
        adds += self.weights.exposed_share * columns.receiving_s(group.rows, self.now)
        adds[columns.pages_free(group.rows) < self.pages(first)] = np.inf
        found = [group.workers[row] for row in least(adds, most).tolist()]
        chosen = {w.report.worker: w for w in (*found, *self.holders(group, most // 2))}
        return [worker for worker in chosen.values() if self.has_room(worker)]

    def compatible(self, prefill: Worker, decode: Worker) -> bool:
        """Whether decode can read the pages of prefill, and nobody has complained."""
        return prefill.report.layout_digest == decode.report.layout_digest and (
            self.cluster.reachable(decode.report.worker, prefill.report.worker, self.now)
        )

    def may_copy(self, reader: Worker, owner: Worker) -> bool:
        """Whether a worker could take over blocks of another one, and has not complained of it."""
        return (
            owner is not reader
            and self.cluster.reachable(reader.report.worker, owner.report.worker, self.now)
            and (owner.report.role == "kvpool" or self._alike(reader, owner))
        )

    @staticmethod
    def _alike(one: Worker, other: Worker) -> bool:
        here, there = one.report, other.report
        return (here.layout_digest, here.block_tokens) == (there.layout_digest, there.block_tokens)

    # -- what they hold --------------------------------------------------------------------

    def cached(self, worker: Worker) -> int:
        """Leading blocks on its device that need not be computed; the last token always is."""
        name = worker.report.worker
        known = self._cached.get(name)
        if known is None:
            known = self._cached[name] = self._depth(worker, "device")
        return known

    def held(self, worker: Worker) -> int:
        """Leading blocks that are on its device for a fact: that it could lend."""
        slot = self.world.index.slot(worker.report.worker, "device")
        return 0 if slot is None else min(self.match.held(slot), self._most(worker))

    def in_pool(self, pool: Worker) -> int:
        """Leading blocks that a pool node holds."""
        return self._depth(pool, "host")

    def _depth(self, worker: Worker, tier: str) -> int:
        slot = self.world.index.slot(worker.report.worker, tier)
        return 0 if slot is None else min(self.match.depth(slot), self._most(worker))

    def _most(self, worker: Worker) -> int:
        """Blocks of this request that a worker can have, with blocks of its size."""
        size = worker.report.block_tokens
        if size == self._size:
            return self._fit
        prompt, self._size = self.ask.prompt_tokens, size
        self._fit = 0 if prompt // size < len(self.ask.block_hashes) else (prompt - 1) // size
        return self._fit

    def holders(self, group: Group, most: int) -> list[Worker]:
        """Ready workers of a group with the deepest prefix on their device, deepest first."""
        key = id(group), most
        found = self._holders.get(key)
        if found is None:
            slots = self.world.index.slots
            owners = [slots.owner(slot) for slot, _ in self.match.deepest(self.mask(group), most)]
            found = [group.by_name[owner[0]] for owner in owners if owner is not None]
            self._holders[key] = found
        return found

    def holders_in_pool(self, most: int) -> list[Worker]:
        """Pool nodes with the deepest prefix."""
        index, group = self.world.index, self.pools
        if not group.workers:
            return []
        owners = [
            index.slots.owner(slot)
            for slot, _ in self.match.deepest(self.mask(group, "host"), most)
        ]
        return [group.by_name[owner[0]] for owner in owners if owner is not None]

    def cached_limit(self, worker: Worker) -> int:
        """Blocks of the prompt that could be cached at most."""
        return max(0, self.ask.prompt_tokens - 1) // worker.report.block_tokens

    def pages_total(self) -> int:
        """Of all workers that may compute this prompt."""
        workers = self.prefills.workers or self.decodes.workers
        return sum(worker.report.load.pages_total for worker in workers)

    def mask(self, group: Group, tier: str = "device") -> int:
        """Slots of a group's workers in this tier."""
        index = self.world.index
        slots = (index.slot(name, tier) for name in group.by_name)
        return group.mask(index.slots.version, tier, (s for s in slots if s is not None))

    # -- what it would take ----------------------------------------------------------------

    def wait_s(self, worker: Worker) -> float:
        """Until a job placed now would start."""
        seconds = worker.done_s - self.now
        if seconds <= 0.0:
            return 0.0
        if worker.joins(self.now):
            seconds -= min(seconds, self.world.learned.costs(worker.report).step_s)
        return seconds * self.world.trust.factor(worker.report.worker)

    def prefill_s(self, worker: Worker, cached: int) -> float:
        """To compute what is left of the prompt after so many blocks: on a decode worker in chunks
        beside what runs there."""
        beat, world = worker.report, self.world
        known = world.learned.costs(beat)
        tokens = cached * beat.block_tokens
        left = self.ask.prompt_tokens - tokens
        if beat.load.step_tokens:
            chunk = self.chunk_tokens(worker)
            seconds = costs.filled_s(known, left, tokens, chunk, worker.streams())
        else:
            seconds = costs.prefill_s(known, left, tokens)
        return seconds * world.trust.factor(beat.worker)

    def chunk_tokens(self, worker: Worker) -> int:
        """Of this prompt in one step there: all of it where nothing else runs."""
        most, streams = worker.report.load.step_tokens, worker.streams()
        if most and streams:
            return max(most - streams, worker.report.block_tokens)
        return self.ask.prompt_tokens

    def prefilling(self, worker: Worker) -> Callable[[int], float]:
        """The same as a function of the blocks."""
        beat, world = worker.report, self.world
        if beat.load.step_tokens:
            return partial(self.prefill_s, worker)
        known, factor = world.learned.costs(beat), world.trust.factor(beat.worker)
        size, prompt = beat.block_tokens, self.ask.prompt_tokens

        def left_s(cached: int) -> float:
            tokens = cached * size
            return costs.prefill_s(known, prompt - tokens, tokens) * factor

        return left_s

    def step_s(self, worker: Worker, sequences: float, context_tokens: float) -> float:
        """One decode step of so many sequences."""
        beat = worker.report
        known = self.world.learned
        return costs.decode_s(
            known.costs(beat),
            max(1, round(sequences)),
            round(context_tokens),
            known.context_token_s(beat),
        )

    def joined_step_s(self, decode: Worker) -> float:
        """One decode step of all that is there or on its way, and this request."""
        context = decode.pages_used() * decode.report.block_tokens + self.ask.prompt_tokens
        return self.step_s(decode, decode.streams() + 1, context)

    def transfer_s(self, reader: Worker, owner: Worker, blocks: int) -> float:
        """For `reader` to pull so many pages from `owner`."""
        link = self.world.learned.links.between(reader.report.worker, owner.report.worker, self.now)
        return costs.transfer_s(link, blocks * reader.report.page_bytes)

    def pages(self, worker: Worker) -> int:
        """That the prompt and one more token need there."""
        return -(-(self.ask.prompt_tokens + 1) // worker.report.block_tokens)

    # -- how busy things are ---------------------------------------------------------------

    def later_s(self, worker: Worker, wait_s: float, work_s: float) -> float:
        """How much this work delays later requests, together: those wait for it that come to the
        worker before it is done, as they do now. In a burst they will come to idle workers too, so
        each is taken to get its part of what comes to all."""
        weights, paces = self.weights, self.world.paces
        size = len((self.prefills if self.prefills.workers else self.decodes).workers)
        usual_per_s = self.world.burst.per_s(self.now) / max(1, size)
        per_s = max(paces.per_s(worker.report.worker, self.now), usual_per_s)
        coming = per_s * (wait_s + work_s)
        waiting, most = weights.later_share * coming, self._most_later
        return (waiting if waiting < most else most) * work_s * self.others

    def busy(self) -> float:
        """Share of time for which the workers that may compute this prompt have work."""
        size = len((self.prefills if self.prefills.workers else self.decodes).workers)
        return self.world.pace.busy(self.now) / max(1, size)

    def receiving(self, reader: WorkerId) -> Backlog:
        """What the card of this reader has to receive."""
        return self.world.receiving(reader, self.now)

    def sending(self, owner: WorkerId) -> Backlog:
        """What the card of this owner of pages has to send."""
        return self.world.sending(owner, self.now)

    def stream_s(self, decode: Worker) -> float:
        """What one more stream costs each that is there: dST = gamma + beta * (N + o/2) more a
        step, for as many steps as it lasts."""
        beat, known = decode.report, self.world.learned
        context = self.ask.prompt_tokens + self.expected_tokens / 2
        step_s = known.costs(beat).decode_sequence_s + known.context_token_s(beat) * context
        return step_s * self.expected_tokens

    def slack_s(self, decode: Worker) -> float:
        """What the TPOT objective leaves this request, over all tokens of its answer, beyond the
        steps that it would have there."""
        spare_s = self.tpot_slo_s - self._shared_s(decode, self.joined_step_s(decode))
        return spare_s * self.expected_tokens if spare_s > 0.0 else 0.0

    def _shared_s(self, decode: Worker, step_s: float) -> float:
        """A mean decode step, when prompts share as many of them as they do now."""
        beat = decode.report
        chunk, busy = beat.load.step_tokens, self.world.paces.busy(beat.worker, self.now)
        if not (chunk and busy > 0.0 and step_s > 0.0):
            return step_s
        known, busy = self.world.learned.costs(beat), min(1.0, busy)
        filled_s = max(step_s, costs.filled_s(known, chunk, 0, chunk, decode.streams()))
        return 1.0 / ((1.0 - busy) / step_s + busy / filled_s)

    def after_first_s(self, seconds: float, slack_s: float) -> float:
        """What a delay after the first token counts: a share, as far as the answer keeps to its
        TPOT objective all the same, and whole beyond."""
        beyond_s = seconds - slack_s
        if beyond_s <= 0.0:
            return self.weights.exposed_share * seconds
        return self.weights.exposed_share * slack_s + beyond_s

    def link_price(self, reader: WorkerId) -> float:
        """The same for a second of a reader's link, never nothing."""
        carried = self.world.link_work.per_s(reader, self.now)
        if carried <= 0.0:
            return self.weights.link_price
        most = self.weights.busy_most
        busy = carried / self.world.learned.links.of(reader, self.now).bytes_per_s
        if busy > most:
            busy = most
        return self.weights.link_price + busy / (1.0 - busy)
