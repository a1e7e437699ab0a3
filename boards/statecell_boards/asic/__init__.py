"""Standard cells: area and timing of the tile in a real cell library, memories as macros of a stated size."""
