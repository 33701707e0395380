"""The door through which Spark finds the format `rocketmq` by itself.

Spark imports every top-level module named `pyspark_*` and registers its `DefaultSource`.
"""

from penstock.spark.source import RocketMQSource as DefaultSource

__all__ = ["DefaultSource"]
