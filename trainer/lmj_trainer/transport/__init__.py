"""Messages between ranks: one port, one adapter over RPC, one in memory."""
