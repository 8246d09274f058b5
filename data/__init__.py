"""Where examples come from: readers, downloads, stand-ins and the cache of parsed arrays."""
