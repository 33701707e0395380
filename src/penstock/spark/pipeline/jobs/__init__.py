"""The ready jobs: each turns its part of the file into a streaming query or a batch run."""
