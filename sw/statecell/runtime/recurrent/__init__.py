"""Recurrent states of a transformers model in an engine."""
