"""An Iceberg table, through `pyiceberg`: the snapshot that adds a batch names it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import InvalidArgument, MissingExtra
from penstock.spark.pipeline.tables.files import PARTITIONS, batch_files, batch_name, read_files, write_batch

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import assign_fresh_schema_ids
    from pyiceberg.transforms import IdentityTransform
except ImportError as error:
    raise MissingExtra("Iceberg tables need pyiceberg: pip install 'penstock[iceberg]'") from error

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

QUERY: Final = "penstock.query-id"
BATCH: Final = "penstock.batch-id"
"""Properties of a snapshot."""

_FOLDERS: Final = {f"in_{name}": name for name in PARTITIONS}
"""Spark takes the columns that name directories out of the files, but Iceberg needs topic and day in them."""


class Iceberg:
    def __init__(self, path: str, table: str, catalog: dict[str, str]) -> None:
        self._path = path
        self._table = table
        self._catalog_properties = catalog or {
            "type": "sql",
            "uri": f"sqlite:///{path}/catalog.db",
            "warehouse": Path(path).as_uri(),
        }

    def add(self, batch: DataFrame, query_id: str, batch_id: int) -> None:
        Path(self._path).mkdir(parents=True, exist_ok=True)
        table = self._open_or_create(batch)
        if _is_done(table, query_id, batch_id):
            return
        name = batch_name(query_id, batch_id)
        folder = f"{self._path}/data"
        rows = batch.selectExpr("*", *(f"{column} AS {directory}" for directory, column in _FOLDERS.items()))
        write_batch(rows, name, folder, list(_FOLDERS))
        files = [str(file) for file, _ in batch_files(name, folder)]
        if files:
            # The files are named after the batch, so that none of them can be in the table already.
            done_now = {QUERY: query_id, BATCH: str(batch_id)}
            table.add_files(files, snapshot_properties=done_now, check_duplicate_files=False)

    def read(self, spark: SparkSession) -> DataFrame:
        if not Path(self._path).is_dir():
            raise InvalidArgument(f"path: there is no folder {self._path}")
        try:
            table = self._catalog().load_table(self._table)
        except NoSuchTableError:
            raise InvalidArgument(f"path: there is no table {self._table} in {self._path}") from None
        files = [task.file.file_path for task in table.scan().plan_files()]
        if not files:
            raise InvalidArgument(f"path: the table {self._table} is empty")
        return read_files(spark, files)

    def _catalog(self) -> Catalog:
        return load_catalog("penstock", **self._catalog_properties)

    def _open_or_create(self, batch: DataFrame) -> Table:
        from pyspark.sql.pandas.types import to_arrow_schema

        catalog = self._catalog()
        arrow = to_arrow_schema(batch.schema, timezone="UTC")
        schema = assign_fresh_schema_ids(catalog._convert_schema_if_needed(arrow))
        try:
            table = catalog.load_table(self._table)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(self._table.partition(".")[0])
            return catalog.create_table(
                self._table, schema, location=Path(self._path).as_uri(), partition_spec=_partitions(schema)
            )
        if _columns(table.schema()) != _columns(schema):
            raise InvalidArgument(
                f"the table {self._table} has other columns than this job: use another table"
            )
        return table


def _partitions(schema: Schema) -> PartitionSpec:
    fields = [
        PartitionField(schema.find_field(name).field_id, 1000 + number, IdentityTransform(), name)
        for number, name in enumerate(PARTITIONS)
    ]
    return PartitionSpec(*fields)


def _columns(schema: Schema) -> dict[str, Any]:
    return {schema.find_column_name(field_id) or "": None for field_id in schema.field_ids}


def _is_done(table: Table, query_id: str, batch_id: int) -> bool:
    for snapshot in reversed(table.snapshots()):
        properties = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if properties.get(QUERY) == query_id:
            return int(properties[BATCH]) >= batch_id
    return False
