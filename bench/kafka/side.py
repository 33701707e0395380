"""The Kafka side of the Spark benchmark, run by the PySpark that its source exists for.

side.py fill BOOTSTRAP TOPIC BODY_BYTES ROWS      writes the topic
side.py read BOOTSTRAP TOPIC ROWS RUNS            prints seconds of each run as JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ["PYSPARK_PYTHON"] = sys.executable
jars = ",".join(str(jar) for jar in Path(os.environ["KAFKA_SOURCE_JARS"]).glob("*.jar"))
builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
for name, value in {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
command, bootstrap, topic = sys.argv[1:4]
options = {"kafka.bootstrap.servers": bootstrap}

if command == "fill":
    size, rows = int(sys.argv[4]), int(sys.argv[5])
    frame = spark.range(0, rows, 1, 4).selectExpr(
        "cast(id AS string) AS key", f"cast(repeat('x', {size}) AS binary) AS value"
    )
    frame.write.format("kafka").options(**options, topic=topic).option("kafka.linger.ms", "20").save()
else:
    rows, runs = int(sys.argv[4]), int(sys.argv[5])
    frame = spark.read.format("kafka").options(**options, subscribe=topic, startingOffsets="earliest").load()
    assert frame.count() == rows
    seconds = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        seconds.append(time.perf_counter() - began)
    print("seconds", json.dumps(seconds[1:]))
