"""Training of hybrid-tiny: a byte-level hybrid of Gated DeltaNet and softmax layers, and of its stored state."""
