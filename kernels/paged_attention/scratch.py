"""What a fused attention launch needs on the device besides its inputs, allocated once per stream.

tickets and arrivals are zero between launches: the last program to leave and the last split to
arrive put them back, so a captured launch can be replayed. Two launches that run at the same time
need a scratch each.
"""

from __future__ import annotations

from typing import Final

import torch

TICKET_WORDS: Final = 3
UNBOUNDED: Final = 2**30


class FusedScratch:
    """Tickets, arrivals and partial results of the decode splits."""

    def __init__(self, device: torch.device, sms: int, occupancy: int = 2) -> None:
        """`sms` and `occupancy` (programs that fit on an SM) give the size of the launch."""
        if sms < 1 or occupancy < 1:
            raise ValueError("a fused launch needs at least one program")
        self.device = device
        self.sms = sms
        self.programs = sms * occupancy
        self.quota = UNBOUNDED
        """Most items that a program takes; tests bound it to let programs take turns."""
        self.tickets = torch.zeros(TICKET_WORDS + sms, dtype=torch.int32, device=device)
        self.program_sms = (torch.arange(self.programs, device=device) % sms).int()
        self.arrivals = torch.zeros(0, dtype=torch.int32, device=device)
        self.acc = torch.empty(0, dtype=torch.float32, device=device)
        self.peaks, self.sums = self.acc, self.acc

    def reserve(self, entries: int, joins: int, heads: int, head_dim: int) -> None:
        """Make room for a step with that many splits and (sequence, kv head) pairs. Grows by
        allocating, which a graph capture must not see: reserve the largest step before it."""
        parts = entries * heads
        if joins > len(self.arrivals):
            self.arrivals = torch.zeros(joins, dtype=torch.int32, device=self.device)
        if parts > len(self.peaks):
            self.peaks, self.sums = torch.empty((2, parts), dtype=torch.float32, device=self.device)
        if parts * head_dim > len(self.acc):
            self.acc = torch.empty(parts * head_dim, dtype=torch.float32, device=self.device)

    def idle(self) -> bool:
        """Whether all tickets were given back. Waits for the device."""
        return not bool(self.tickets.any()) and not bool(self.arrivals.any())


def for_device(device: torch.device, occupancy: int = 2) -> FusedScratch:
    """Scratch for all SMs of a CUDA device."""
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return FusedScratch(device, sms, occupancy)
