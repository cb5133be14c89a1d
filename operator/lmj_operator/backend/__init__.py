"""Where pods really run. One port, an adapter for each place, and one contract test suite for all of them."""
