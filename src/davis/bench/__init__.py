"""Benchmarks: activations cached on disk, every method scored from them, tables and figures."""
