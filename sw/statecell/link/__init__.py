"""Links between driver and device: frames in, frames out."""
