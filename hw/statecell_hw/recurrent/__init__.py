"""Recurrent state: read-out, update and write-back of state rows, one a cycle."""
