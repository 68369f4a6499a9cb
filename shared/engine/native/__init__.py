"""The CPU's own products, norms and attention: C sources, and what calls them."""
