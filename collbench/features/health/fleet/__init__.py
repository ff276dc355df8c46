"""Single-node runs of one night, held against each other: which nodes are odd."""
