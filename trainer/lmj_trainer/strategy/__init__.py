"""How ranks share the work: a folder for each strategy, and a line in the registry."""
