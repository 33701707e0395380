"""Penstock: RocketMQ for Python and Spark people."""
