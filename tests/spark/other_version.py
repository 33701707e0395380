"""Run by another version of PySpark: a batch read, and a stream with a limit."""

from __future__ import annotations

import re
import sys
import tempfile

from penstock.spark import session

name_server, topic = sys.argv[1:]
spark = session("other version", master="local[2,4]", memory="700m")
options = {"nameServer": name_server, "subscribe": topic, "startingOffsets": "earliest"}
print("batch", spark.read.format("rocketmq").options(**options).load().count())
try:
    stream = spark.readStream.format("rocketmq").options(**options, maxOffsetsPerTrigger="20").load()
    with tempfile.TemporaryDirectory() as folder:
        writer = stream.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(120)
        print("stream", [progress.numInputRows for progress in query.recentProgress if progress.numInputRows])
except Exception as error:
    print(*re.findall("streams need PySpark.*?:", str(error))[:1])
