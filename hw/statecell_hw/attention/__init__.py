"""Attention behind the dot unit: scores, softmax, accumulators, normaliser and block packer."""
