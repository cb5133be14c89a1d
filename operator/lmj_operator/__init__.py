"""Observe, plan, apply: from a LiveMigrationJob to running ranks; backends, and the lmj command. Never imports torch."""
