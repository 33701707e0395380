"""The broker's disk: commit log, consume queues, key index, journal and their recovery."""
