"""Tables of numbers in files: .npy, .npz, .csv and .parquet, without pickle."""

from bayeslista.tables._reading import Table, read_named_table, read_table
from bayeslista.tables._writing import WRITTEN, table_writer

__all__ = ["WRITTEN", "Table", "read_named_table", "read_table", "table_writer"]
