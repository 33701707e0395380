"""A driver to be killed: one topic to Parquet files and, message by message, to another topic, for ever.

Started by kill_loop.py. Everything that must survive a kill is in the two checkpoints.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame

from penstock.spark import session


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("name-server", "source", "target", "folder", "master"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--limit", default="400", help="messages of a batch")
    options = parser.parse_args()
    folder = Path(options.folder)
    spark = session(
        "pump",
        master=options.master,
        memory="700m",
        config={
            "spark.executor.memory": "512m",
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.log.level": "ERROR",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )

    def stream() -> DataFrame:
        given = {
            "nameServer": options.name_server,
            "subscribe": options.source,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": options.limit,
            "includeProperties": "none",
            "fetchOffset.numRetries": "60",
        }
        return spark.readStream.format("rocketmq").options(**given).load()

    writers = [
        stream().writeStream.format("parquet").option("path", str(folder / "parquet")),
        stream()
        .selectExpr("concat(queueId, '/', queueOffset, '/', cast(body AS string)) AS body")
        .writeStream.format("rocketmq")
        .options(nameServer=options.name_server, topic=options.target, batchMessages="50", retries="12"),
    ]
    queries = []
    for number, writer in enumerate(writers):
        queries.append(writer.option("checkpointLocation", str(folder / f"checkpoint-{number}")).start())
        # One after the other: Spark gives the process of a source only ten seconds to start.
        while queries[-1].isActive and queries[-1].lastProgress is None:
            time.sleep(0.1)
    (folder / "started").touch()
    while all(query.isActive for query in queries):
        time.sleep(0.2)
    for query in queries:
        print(query.exception(), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
