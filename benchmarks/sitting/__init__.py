"""The parts of benchmarks/gpu_sitting.py: what is to do, how data get there, the work there, what comes home."""
