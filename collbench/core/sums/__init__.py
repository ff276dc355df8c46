"""The order in which a reduction adds: as a tree, from results alone, in bits, and by name."""
