"""Pipelines: ready jobs over ordinary Spark queries, described by a TOML file and run by one command."""
