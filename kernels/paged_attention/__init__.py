"""Attention whose keys and values lie in pages, for decode (one query) and prefill (many)."""
