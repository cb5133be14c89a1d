"""A script's state in memory that outlives its processes: snapshots in a folder of tmpfs, and how a script's libraries write them."""
