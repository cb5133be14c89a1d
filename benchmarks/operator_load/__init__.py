"""Parts of the benchmark of the operator's scale: a control plane, faked nodes and agents, and what was called and used."""
