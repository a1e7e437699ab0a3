"""Models, texts and built simulators in the user's cache folder."""
