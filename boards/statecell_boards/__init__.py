"""Boards: one module each, which gives the device its clock, pins and link."""
