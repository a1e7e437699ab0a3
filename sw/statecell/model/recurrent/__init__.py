"""Recurrent state in the array: float reference, families of layers, and the bit-exact integer model."""
