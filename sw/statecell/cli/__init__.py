"""The `statecell` command line: one module per command group."""
