"""A Delta table, through `deltalake`: the log names the batch as an application transaction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no type information
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # as above

from penstock.errors import InvalidArgument, MissingExtra
from penstock.spark.pipeline.tables.files import PARTITIONS, batch_files, batch_name, read_files, write_batch

try:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, CommitProperties, Transaction
except ImportError as error:
    raise MissingExtra("Delta tables need deltalake: pip install 'penstock[delta]'") from error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Delta:
    def __init__(self, path: str) -> None:
        self._path = path

    def add(self, batch: DataFrame, query_id: str, batch_id: int) -> None:
        schema = _schema(batch)
        table = DeltaTable.create(self._path, schema, mode="ignore", partition_by=list(PARTITIONS))
        _check_columns(table, schema, self._path)
        if (done := table.transaction_version(query_id)) is not None and done >= batch_id:
            return
        name = batch_name(query_id, batch_id)
        write_batch(batch, name, self._path, PARTITIONS)
        # Nothing to list is fine as well: the transaction then only says that the batch is done.
        actions: list[Any] = [
            _add_action(file, Path(self._path), {key: values[key] for key in PARTITIONS})
            for file, values in batch_files(name, self._path)
        ]
        done_now = CommitProperties(app_transactions=[Transaction(query_id, batch_id)])
        table.create_write_transaction(
            actions, mode="append", schema=schema, partition_by=list(PARTITIONS), commit_properties=done_now
        )

    def read(self, spark: SparkSession) -> DataFrame:
        if not DeltaTable.is_deltatable(self._path):
            raise InvalidArgument(f"path: {self._path} is not a Delta table")
        files = DeltaTable(self._path).file_uris()
        if not files:
            raise InvalidArgument(f"path: the table {self._path} is empty")
        return read_files(spark, files, self._path)


def _schema(batch: DataFrame) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(batch.schema, timezone="UTC")


def _check_columns(table: DeltaTable, schema: pa.Schema, path: str) -> None:
    """A transform that changed would otherwise make a table whose files disagree."""
    found = {field.name: str(field.type) for field in table.schema().fields}
    given = {field.name: str(field.type) for field in _delta_schema(schema).fields}
    if found != given:
        other = sorted(found.items() ^ given.items())[0][0]
        raise InvalidArgument(
            f"the table {path} has other columns than this job (see {other}): use another path"
        )


def _delta_schema(schema: pa.Schema) -> Any:
    from deltalake import Schema

    return Schema.from_arrow(schema)


def _add_action(file: Path, folder: Path, values: dict[str, str]) -> AddAction:
    status = file.stat()
    return AddAction(
        path=str(file.relative_to(folder)),
        size=status.st_size,
        partition_values=values,
        modification_time=int(status.st_mtime * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": pq.read_metadata(file).num_rows}),
    )
