"""A decoder-only model, forward only: one token matrix for all linear layers, paged attention.

Touvron et al. (2023): RMSNorm before each half, rotary positions, grouped queries, gated MLP.
What other architectures add is in the spec, and in weights that Llama does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

from shared.checkpoint.spec import ModelSpec
from shared.engine.attention import StepAttention
from shared.engine.attention_rules import capped
from shared.engine.batch import StepItem
from shared.engine.native.attention import NativeAttention
from shared.engine.native.layers import PlainLayers, plain
from shared.engine.native.operations import NativeOperations
from shared.engine.operations import Matrix, Operations, TorchOperations
from shared.engine.paged_kv import PagedKv
from shared.engine.rope import Turn
from shared.engine.team import Alone, Team
from shared.engine.weights import LayerWeights, ModelWeights


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step's items as tensors on the device, all items' tokens one after the other."""

    tokens: torch.Tensor
    positions: torch.Tensor
    new_rows: torch.Tensor
    """Where each token's keys and values go (`PagedKv.new_rows`)."""
    drawn_rows: torch.Tensor
    """Last row of each item that draws."""


def step_inputs(kv: PagedKv, items: Sequence[StepItem]) -> StepInputs:
    """Flatten a step."""
    drawn, end = [], 0
    for item in items:
        end += len(item.tokens)
        if item.draw is not None:
            drawn.append(end - 1)
    runs = (range(item.start, item.start + len(item.tokens)) for item in items)
    return StepInputs(
        tokens=torch.tensor([token for item in items for token in item.tokens], device=kv.device),
        positions=torch.tensor([position for run in runs for position in run], device=kv.device),
        new_rows=kv.new_rows(items),
        drawn_rows=torch.tensor(drawn, device=kv.device, dtype=torch.int64),
    )


class DecoderModel:
    """Computes logits and fills pages. Not thread-safe; knows nothing of sequences."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        kv: PagedKv,
        team: Team | None = None,
        operations: Operations | None = None,
    ) -> None:
        """`spec` is the whole model's; a team's rank computes its share. `operations` are those
        that the weights were placed for; None: torch's. Where they are the library's, it runs
        all plain layers but the last at once."""
        self._team: Team = team or Alone()
        self._spec = spec.shard(self._team.size)
        self._weights = weights
        self._operations: Operations = operations or TorchOperations(kv)
        self._plain: PlainLayers | None = None
        alone = self._team.size == 1
        if isinstance(operations, NativeOperations) and alone and plain(spec, weights.layers):
            self._plain = PlainLayers(spec, weights.layers, operations)

    @property
    def ranks(self) -> int:
        """How many compute this model together."""
        return self._team.size

    @property
    def matrix_bytes(self) -> int:
        """Bytes of weights that a step reads."""
        return self._weights.matrix_bytes

    def forward(self, inputs: StepInputs, attention: StepAttention) -> torch.Tensor:
        """[drawing item, vocab] float32 logits; keys and values of all tokens are in the pages."""
        spec, weights = self._spec, self._weights
        turns = self._turns(inputs.positions)
        hidden = self._operations.embed(inputs.tokens, weights.embed)
        if spec.embed_scale != 1.0:
            hidden = hidden * spec.embed_scale
        if self._plain is not None and isinstance(attention, NativeAttention):
            if self._plain.rounded(attention):
                hidden = self._plain.run_all(hidden, turns, inputs.new_rows, attention)
                return self._told(self._norm(hidden, weights.norm))
            done = len(weights.layers) - 1
            self._plain.run(done, hidden, turns, inputs.new_rows, attention)
        else:
            done = 0
        return self._told(self._run(hidden, done, turns, inputs, attention))

    def _run(
        self,
        hidden: torch.Tensor,
        done: int,
        turns: tuple[Turn, Turn],
        inputs: StepInputs,
        attention: StepAttention,
    ) -> torch.Tensor:
        """The layers from `done` on, operation by operation: the last norm, [drawing item,
        hidden]."""
        layers = self._weights.layers
        last = len(layers) - 1
        normed = self._norm(hidden, layers[done].attn_norm)
        for number, layer in enumerate(layers[done:], done):
            turn = turns[self._spec.window(number) > 0]
            queries = self._queries(number, layer, normed, turn, inputs.new_rows)
            if number == last:
                break
            mixed = attention.attend(number, queries)
            hidden, normed = self._finish(layer, hidden, mixed, layers[number + 1].attn_norm)
        if not len(inputs.drawn_rows):
            return hidden.new_empty((0, self._spec.hidden))
        mixed = attention.attend(last, queries)[inputs.drawn_rows]
        kept = hidden[inputs.drawn_rows]
        return self._finish(layers[last], kept, mixed, self._weights.norm)[1]

    def _told(self, normed: torch.Tensor) -> torch.Tensor:
        """Logits of the normed rows of the last layer."""
        spec, weights = self._spec, self._weights
        if not len(normed):
            return normed.new_empty((0, spec.vocab), dtype=torch.float32)
        part = self._operations.project(normed, weights.head).float()
        return capped(self._team.join(part, spec.vocab), spec.logit_cap)

    def _turns(self, positions: torch.Tensor) -> tuple[Turn, Turn]:
        """Angles of layers without and with a window."""
        plain = self._weights.rotary.angles(positions)
        local = self._weights.local_rotary
        return plain, plain if local is None else local.angles(positions)

    def _queries(
        self,
        number: int,
        layer: LayerWeights,
        normed: torch.Tensor,
        turn: Turn,
        new_rows: torch.Tensor,
    ) -> torch.Tensor:
        """Store the layer's keys and values; give the queries, [token, head, head_dim]."""
        spec = self._spec
        mixed = self._operations.project(normed, layer.qkv)
        if layer.qkv_bias is not None:
            mixed += layer.qkv_bias
        heads = mixed.view(len(normed), -1, spec.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            keys = slice(spec.heads, spec.heads + spec.kv_heads)
            heads[:, : spec.heads] = self._norm(heads[:, : spec.heads], layer.q_norm)
            heads[:, keys] = self._norm(heads[:, keys], layer.k_norm)
        self._operations.turn_and_store(number, heads, turn, new_rows)
        return heads[:, : spec.heads]

    def _finish(
        self,
        layer: LayerWeights,
        hidden: torch.Tensor,
        mixed: torch.Tensor,
        next_norm: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What a layer leaves, and its norm as what follows wants it."""
        rows, post_norm = mixed.flatten(1), layer.attn_post_norm
        hidden, normed = self._onto(hidden, rows, layer.out, post_norm, layer.ffn_norm)
        rows = self._gated(self._operations.project(normed, layer.gate_up))
        return self._onto(hidden, rows, layer.down, layer.ffn_post_norm, next_norm)

    def _onto(
        self,
        hidden: torch.Tensor,
        rows: torch.Tensor,
        matrix: Matrix,
        post_norm: torch.Tensor | None,
        next_norm: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The end of a half: hidden + (all ranks' rows @ matrix.T, normed where it has that), and
        the norm of that."""
        if post_norm is None and self._team.size == 1:
            hidden = self._operations.project(rows, matrix, onto=hidden)
            return hidden, self._norm(hidden, next_norm)
        half = self._team.sum_(self._operations.project(rows, matrix))
        if post_norm is not None:
            half = self._norm(half, post_norm)
        return self._operations.add_norm(half, hidden, next_norm, self._spec.rms_eps)

    def _gated(self, both: torch.Tensor) -> torch.Tensor:
        if self._spec.activation == "silu":
            return self._operations.silu_gate(both)
        gate, up = both.chunk(2, dim=-1)
        return functional.gelu(gate, approximate="tanh") * up

    def _norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._operations.norm(rows, weight, self._spec.rms_eps)
