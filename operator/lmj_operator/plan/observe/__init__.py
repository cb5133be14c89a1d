"""What a pass of the plan reads: pods, agents, and what is known of each rank."""
