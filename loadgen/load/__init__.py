"""The load generator's client side: plan, schedule, sockets, processes."""
