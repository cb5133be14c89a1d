"""The dataset of a job: its rows selected by the task's rules, tokenized once, and kept for all ranks."""
