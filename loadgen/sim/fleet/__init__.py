"""Performance runs: the five cores in their simulated shells, engines by price, links by speed."""
