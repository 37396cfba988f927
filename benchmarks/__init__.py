"""Benchmarks and stress runs; not part of the installed package."""
