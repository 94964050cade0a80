"""Public data sets: where they come from, and their download into the folders where the tasks read them.

The catalogue needs only the standard library. `longscan.datasets.storage`, which downloads, needs the extra `data`.
"""

from longscan.datasets.catalogue import DATA_SETS, DataSet, RemoteFile, find_data_set

__all__ = ["DATA_SETS", "DataSet", "RemoteFile", "find_data_set"]
