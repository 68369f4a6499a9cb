"""One quantity varied, everything else held: axes, plots and the page with both."""
