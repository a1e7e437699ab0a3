"""cocotb benches and what they share."""
