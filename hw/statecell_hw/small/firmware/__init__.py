"""The small device's program, a file for each part of its work; syntax: `statecell_hw.small.assembler`."""
