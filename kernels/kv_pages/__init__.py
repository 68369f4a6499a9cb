"""Pages into and out of one contiguous buffer, whole or by head range, with a change of dtype."""
