"""Rotary positions: of new keys on their way into pages, and of cached keys that move."""
