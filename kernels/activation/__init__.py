"""The gate of the feed-forward half."""
