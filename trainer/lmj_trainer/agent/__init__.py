"""The agent of one pod: supervises its worker and answers the operator. Never imports torch: it starts at once."""
