"""Names for the strings and numbers that identify things across services.

Owns only the types; knows nothing about how an id is made or sent.
"""

from __future__ import annotations

from typing import NewType

RequestId = NewType("RequestId", str)
"""A client's request, 26 characters, sortable by time. One per HTTP request."""

Attempt = NewType("Attempt", int)
"""1, 2, ... : how often the gateway has placed this request."""

WorkerId = NewType("WorkerId", str)
"""A service instance: 'prefill-0'. Stable over restarts; the epoch is not."""

Epoch = NewType("Epoch", int)
"""One incarnation of a worker id, taken by compare-and-set; grows at every start."""

BlockHash = NewType("BlockHash", str)
"""32 hex characters: the 128-bit chained name of a block of token positions."""

PageId = NewType("PageId", int)
"""Index of a page inside one worker's page memory."""

Generation = NewType("Generation", int)
"""Grows at each grant of a page; a reader compares it to detect reuse."""
