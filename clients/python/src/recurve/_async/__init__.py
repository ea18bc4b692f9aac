"""The client whose calls are awaited; file by file as in recurve._sync."""
