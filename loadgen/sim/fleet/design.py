"""What a performance run is about: how many workers of which kind, links, limits, beliefs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from loadgen.sim.fleet.budgets import budget
from loadgen.sim.fleet.prices import Price


class DesignError(ValueError):
    """A fleet that cannot be; says which limit binds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Each worker's network card, both ways, and what a read costs before its first byte."""

    bytes_per_s: float
    setup_s: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One fleet. Colocated fleets have no prefill workers."""

    prefills: int
    decodes: int
    prefill: Price
    decode: Price
    link: Link
    block_tokens: int = 16
    prefill_kv_tokens: int = 0
    """Room of one worker; 0: what its price says."""
    decode_kv_tokens: int = 0
    gateways: int = 1
    kvpools: int = 0
    kvpool_tokens: int = 0
    kvpool_link: Link | None = None
    """With which pool nodes read; None: like all others."""
    chunk_tokens: int = 2_048
    """Prompt tokens of one prefill step."""
    step_tokens: int = 512
    """Token budget of one decode step that also fills prompts; 0: as live workers choose it, so
    that a step keeps to `tpot_slo_s`."""
    max_sequences: int = 256
    policy: str = "baton"
    """Placement policy."""
    split: str = "always"
    """When a request stays on decode, under the route 'auto'."""
    route: str = "auto"
    admission: str = "none"
    """Who is refused at arrival, by the two objectives below."""
    patience_s: float = 1e7
    """How long a refused request is held at the gateway, which asks again. Waiting counts in its
    TTFT; with none, whoever is refused at arrival is refused for good."""
    ttft_slo_s: float = 1.0
    tpot_slo_s: float = 0.1
    context_tokens: int = 1 << 20
    heartbeat_s: float = 0.5
    belief: float = 1.0
    """Factor by which workers misjudge their own speed."""
    front_s: float = 0.0
    """From the client's send to the gateway's core: parsing, tokenising, a busy host."""
    beside: float = 1.0
    """How many times as long a step takes while another worker computes: all share the cores of
    one host. 1: each has its own devices."""
    copy_beside: float = 1.0
    """The same while a pool node copies."""
    gap_limit_s: float = math.inf
    """Gaps between tokens above it are counted in the rows."""
    stride: int = 1
    """Output tokens that one simulated decode step stands for: fewer events for large fleets. Who
    joins waits for the end of up to so many steps, and an answer takes so much less memory."""

    def __post_init__(self) -> None:
        if self.decodes < 1 or self.prefills < 0 or self.gateways < 1:
            raise DesignError("a fleet needs at least one decode worker and one gateway")
        for link in (self.link, self.kvpool_link or self.link):
            if not (link.bytes_per_s > 0 and link.setup_s >= 0):
                raise DesignError("a link needs a positive bandwidth")
        for name, factor in (("beside", self.beside), ("copy_beside", self.copy_beside)):
            if factor < 1.0 or (factor > 1.0 and self._piped):
                raise DesignError(
                    f"{name} is {factor:g}; expected at least 1, and 1 where there are pipelines"
                )
        if self.block_tokens < 1 or self.chunk_tokens < self.block_tokens:
            raise DesignError("a prefill step holds less than a block")
        if self.stride < 1 or (self.stride > 1 and self.route != "disaggregated"):
            raise DesignError(
                f"stride is {self.stride} on the route {self.route!r}; steps that also fill "
                "prompts have to be single, so only 'disaggregated' fleets take more than 1"
            )
        for role, tokens in (("prefill", self.prefill_tokens), ("decode", self.decode_tokens)):
            if tokens < self.block_tokens:
                raise DesignError(f"a {role} worker has room for {tokens} tokens of KV cache")

    @property
    def prefill_tokens(self) -> int:
        """Room of one lane: a pipeline runs as many steps at once as it has stages, and each has
        an equal part of the memory."""
        return (self.prefill_kv_tokens or self.prefill.kv_tokens) // self.prefill.stages

    @property
    def decode_tokens(self) -> int:
        return (self.decode_kv_tokens or self.decode.kv_tokens) // self.decode.stages

    @property
    def budget_tokens(self) -> int:
        """Of one decode step that also fills prompts."""
        return self.step_tokens or budget(self.decode, self.block_tokens, self.tpot_slo_s)

    @property
    def one_host(self) -> bool:
        """Whether workers are in each other's way."""
        return max(self.beside, self.copy_beside) > 1.0

    @property
    def _piped(self) -> bool:
        return max(self.prefill.stages, self.decode.stages) > 1

    @property
    def devices(self) -> int:
        """GPUs that are powered."""
        return self.prefills * self.prefill.devices + self.decodes * self.decode.devices
