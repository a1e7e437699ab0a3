"""The array: rotation, row writer, banks, row stream and dot unit."""
