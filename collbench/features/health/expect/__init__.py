"""Tables of expected bandwidths: learned from nodes, shown, and what they would find how often."""
