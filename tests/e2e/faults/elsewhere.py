"""Rows of the matrix that processes cannot be made to show from outside, and the tests that do."""

from __future__ import annotations

from typing import Final

ELSEWHERE: Final[dict[str, tuple[str, str, str]]] = {
    "F06": (
        "client stops reading (the kernel's buffers hold a whole answer of the weightless model)",
        "tests/services/gateway/test_endings.py",
        "test_a_client_that_does_not_read_is_cut",
    ),
    "F33": (
        "bit flip in a page on the wire",
        "tests/services/decode/test_pages.py",
        "test_a_flipped_bit_is_fetched_once_more",
    ),
    "F35": (
        "one-way partition of the data plane",
        "tests/services/decode/test_shell.py",
        "test_torn_late_and_refused_reads_change_no_token",
    ),
    "F39": (
        "P's first token and D's first chunk cross",
        "tests/services/gateway/core/test_machine.py",
        "test_first_token_and_decode_chunk_may_cross",
    ),
    "F43": (
        "eviction races a lookup",
        "tests/shared/kv/test_cache_machine.py",
        "",
    ),
    "F44": (
        "reader stalls past its lease, page reused",
        "tests/services/prefill/test_machine_pool.py",
        "test_a_read_outlives_the_lease_and_keeps_the_pages",
    ),
    "F46": ("pool file damaged on disk", "", "this release keeps the pool in memory only"),
    "F52": (
        "control message above the payload limit",
        "tests/services/gateway/core/test_machine.py",
        "test_a_message_that_the_bus_cannot_carry_is_told",
    ),
    "F53": (
        "clock of one node jumps",
        "tests/architecture/test_rules.py",
        "test_only_the_clock_reads_the_wall_clock",
    ),
    "F58": ("OOM kill of any service", "", "as SIGKILL of that role: F07, F10, F15, F24, F41"),
}
"""Id -> what, file, test (a file without a test: the whole file; no file: the reason)."""
