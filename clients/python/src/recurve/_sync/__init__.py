"""The client whose calls block."""
