"""Tables of measured figures in Markdown, made from ``benchmarks/results``."""
