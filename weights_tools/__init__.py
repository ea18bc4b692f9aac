"""Offline tools for Recurve checkpoints. Run as `python -m weights_tools`."""
