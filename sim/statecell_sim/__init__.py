"""Simulation: the Verilated board behind the driver, cocotb benches, and the stream contract."""
