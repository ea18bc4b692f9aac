"""One of the two clients: the build generates recurve._sync from recurve._async."""
