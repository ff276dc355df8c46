"""Who makes a group slow, found by halving slow groups."""
