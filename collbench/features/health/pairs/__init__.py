"""Every pair of ranks, measured by itself."""
