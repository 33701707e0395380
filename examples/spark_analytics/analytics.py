"""Read a topic, aggregate, write back, archive, query: the daily round of a data engineer.

    python examples/spark_analytics/analytics.py            # against NAMESRV_ADDR or 127.0.0.1:9876

Copy the functions you need; each stands on its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import penstock.spark
from penstock import Message, sync
from penstock.admin import AdminClient, TopicSettings
from penstock.errors import PenstockError

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
ORDERS, REVENUE = "analytics-orders", "analytics-revenue"
ORDER = "id INT, customer STRING, cents INT"
"""The JSON in the bodies, as Spark names types."""


async def create_topics(name_server: str) -> None:
    async with AdminClient(name_server) as admin:
        for topic in (ORDERS, REVENUE):
            await admin.create_topic(topic, TopicSettings(read_queues=4, write_queues=4))


def send_some_orders(name_server: str, count: int = 300) -> None:
    """Stands for the shop."""
    asyncio.run(create_topics(name_server))
    with sync.Producer(name_server, group="analytics-shop") as producer:
        orders = [
            Message(
                ORDERS,
                json.dumps({"id": n, "customer": f"customer-{n % 7}", "cents": 100 + n}).encode(),
                tag="paid" if n % 3 else "open",
                keys=[f"order-{n}"],
            )
            for n in range(count)
        ]
        producer.send_many(orders)


def read(spark: SparkSession, name_server: str, topic: str) -> DataFrame:
    """A topic as it is now. Only the columns that are asked for travel."""
    return (
        spark.read.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("columns", "topic,queueId,queueOffset,tags,keys,body,storeTimestamp")
        .load()
    )


def parsed(messages: DataFrame) -> DataFrame:
    """The JSON of the bodies as columns."""
    order = f.from_json(f.col("body").cast("string"), ORDER).alias("order")
    return messages.select("tags", "storeTimestamp", order).select("tags", "storeTimestamp", "order.*")


def revenue(orders: DataFrame) -> DataFrame:
    paid = orders.where("tags = 'paid'")
    return paid.groupBy("customer").agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))


def write_back(rows: DataFrame, name_server: str, topic: str) -> None:
    """A message for each row: its key is the customer, so that the totals of one stay in order."""
    messages = rows.select(
        f.to_json(f.struct(*rows.columns)).alias("body"),
        f.col("customer").alias("keys"),
        f.col("customer").alias("shardingKey"),
        f.lit("revenue").alias("tags"),
    )
    sink = messages.write.format("rocketmq").option("nameServer", name_server).option("topic", topic)
    sink.mode("append").save()


def archive(spark: SparkSession, name_server: str, topic: str, lake: str) -> int:
    """What is new since the last call, into Parquet files, each message once. Gives the number of messages.

    `trigger(processingTime="1 minute")` instead of `availableNow` makes it run for ever; `penstock pipeline`
    does all of this without code.
    """
    stream = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("consumerGroup", "analytics-archive")  # where lag displays see the progress
        .load()
        .withColumn("day", f.to_date("storeTimestamp"))
    )
    query = (
        stream.writeStream.format("parquet")
        .option("path", f"{lake}/{topic}")
        .option("checkpointLocation", f"{lake}/_checkpoints/{topic}")
        .partitionBy("day")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress.numInputRows for progress in query.recentProgress)


def best_customers(spark: SparkSession, lake: str, topic: str) -> DataFrame:
    """A query over the archive, where retention does not matter."""
    parsed(spark.read.parquet(f"{lake}/{topic}")).createOrReplaceTempView("orders")
    return spark.sql(
        """
        SELECT customer, count(*) AS orders, sum(cents) AS cents
        FROM orders WHERE tags = 'paid' GROUP BY customer ORDER BY cents DESC LIMIT 3
        """
    )


def main(spark: SparkSession, name_server: str, lake: str) -> None:
    send_some_orders(name_server)

    orders = parsed(read(spark, name_server, ORDERS))
    print(f"{orders.count()} orders in the topic")

    totals = revenue(orders).cache()
    write_back(totals, name_server, REVENUE)
    print(f"{totals.count()} totals written to {REVENUE}")

    print(f"{archive(spark, name_server, ORDERS, lake)} orders archived")
    print(f"{archive(spark, name_server, ORDERS, lake)} orders archived by a second run: nothing is new")

    for row in best_customers(spark, lake, ORDERS).collect():
        print(f"{row.customer}: {row.orders} orders, {row.cents / 100:.2f}")


if __name__ == "__main__":
    session = penstock.spark.session("analytics", config={"spark.log.level": "ERROR"})
    try:
        main(session, NAME_SERVER, tempfile.mkdtemp(prefix="analytics-"))
    except PenstockError as error:
        sys.exit(f"{error}")
    finally:
        session.stop()
