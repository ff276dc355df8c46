"""What a job calls, recorded while it runs."""
