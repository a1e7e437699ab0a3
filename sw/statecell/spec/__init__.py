"""The one source of truth: geometry, number formats, commands, frames and their fingerprint (standard library only)."""
