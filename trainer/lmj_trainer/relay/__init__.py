"""The relay of a pod: connections between workers leave it inside TLS, and nobody reaches a worker but through it."""
