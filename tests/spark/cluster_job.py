"""The pipeline of the cluster test: a topic to a table and, aggregated, to another topic, to the end."""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

from penstock.spark import session


def send_sums(batch: DataFrame, name_server: str) -> None:
    """By batch: a sink in Python takes whole streams in append mode only, and running sums are updates."""
    batch.write.format("rocketmq").options(nameServer=name_server, topic="sums").mode("append").save()


def run(spark: SparkSession, name_server: str, folder: str) -> dict[str, object]:
    options = {"nameServer": name_server, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1500"}
    source = spark.readStream.format("rocketmq").options(**options, subscribe="orders").load()
    archive = (
        source.writeStream.format("parquet")
        .option("path", f"{folder}/table")
        .option("checkpointLocation", f"{folder}/checkpoint-table")
        .trigger(availableNow=True)
        .start()
    )
    # One after the other: Spark gives the process of a source only ten seconds to start.
    archive.awaitTermination()
    sums = (
        source.groupBy("tags")
        .count()
        .selectExpr("tags AS keys", "concat(tags, '=', count) AS body")
        .writeStream.foreachBatch(lambda batch, _: send_sums(batch, name_server))
        .outputMode("update")
        .option("checkpointLocation", f"{folder}/checkpoint-sums")
        .trigger(availableNow=True)
        .start()
    )
    sums.awaitTermination()
    hosts = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # type: ignore[union-attr]
    written = spark.read.format("rocketmq").options(nameServer=name_server, subscribe="sums").load()
    table = spark.read.parquet(f"{folder}/table")
    batch = spark.read.format("rocketmq").options(nameServer=name_server, subscribe="orders").load()
    return {
        "executors": hosts,
        "table rows": table.count(),
        "distinct rows": table.select("brokerName", "queueId", "queueOffset").distinct().count(),
        "brokers": sorted(row.brokerName for row in table.select("brokerName").distinct().collect()),
        "sums": sorted(bytes(row.body).decode() for row in written.collect()),
        "by tag": {row.tags: row["count"] for row in batch.groupBy("tags").count().collect()},
    }


if __name__ == "__main__":
    master, name_server, folder = sys.argv[1:]
    started = session("cluster", master=master, memory="700m", config={"spark.executor.memory": "700m"})
    print("facts", json.dumps(run(started, name_server, folder)))
    started.stop()
