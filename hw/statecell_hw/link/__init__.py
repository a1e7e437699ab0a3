"""Frames on the link: CRC-32, deframer and framer."""
