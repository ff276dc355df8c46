"""Traces judged: what ranks did together, what is lost, where time goes, and who hung a job."""
