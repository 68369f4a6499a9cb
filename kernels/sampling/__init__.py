"""Draws tokens from logits under top-k, top-p and min-p."""
