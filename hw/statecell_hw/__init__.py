"""Gateware of statecell, in Amaranth; imports statecell.spec and nothing else of the host side."""
