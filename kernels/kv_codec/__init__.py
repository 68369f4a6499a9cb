"""Lossy coding of KV pages: differences within token groups, quantised uniformly."""
