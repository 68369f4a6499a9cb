"""From a live run's rows and spans to a price list for the simulator."""
