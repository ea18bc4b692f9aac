"""Offline tools for Recurve checkpoints: train, golden, inspect. Run as `python -m weights_tools`."""
