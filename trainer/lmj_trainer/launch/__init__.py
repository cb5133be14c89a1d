"""The worker of ``strategy: Command``: it starts the processes of a user's script, watches them, and says how they do."""
