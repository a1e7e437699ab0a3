"""Golden model: float reference and bit-exact integer model, in PyTorch, vectorised over heads and tokens."""
