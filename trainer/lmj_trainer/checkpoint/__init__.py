"""Checkpoints as files, without torch: digests, atomic writes, verification, and the choice of what is removed."""
