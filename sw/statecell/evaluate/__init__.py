"""How much a cache format costs: perplexity, and agreement of generated text with the float model."""
