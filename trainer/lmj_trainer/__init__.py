"""What runs in a rank: the agent (supervises, no torch) and the worker (trains)."""
