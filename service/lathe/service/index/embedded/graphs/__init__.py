"""Search graphs over the first rows of a generation: one file per engine, and the choice among them."""
