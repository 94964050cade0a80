"""The command `longscan data`: list and download public data sets."""

import os
from pathlib import Path
from typing import Annotated, Literal

from longscan._errors import SettingError, setting_error
from longscan._types import Doc
from longscan.cli._console import echo, print_table


def data(
    action: Annotated[Literal["list", "get"], Doc("list: show the public data sets; get: download one of them")],
    name: Annotated[str | None, Doc("name of the data set to get")] = None,
    *,
    root: Annotated[str | None, Doc("folder of all data (default: the environment variable LONGSCAN_DATA)")] = None,
) -> int:
    """List the public data sets, or download one of them into the folder where its task looks for it."""
    folder = root or os.environ.get("LONGSCAN_DATA")
    if action == "list" and name is not None:
        raise setting_error("name", name, "left out with `longscan data list`, which shows all data sets")
    if action == "list":
        return _print_data_sets(None if folder is None else Path(folder))
    from longscan.cli.runs import errors_as_lines
    from longscan.datasets import find_data_set
    from longscan.datasets.storage import fetch

    if name is None:
        raise SettingError("`name` must be a data set of `longscan data list`, got nothing")
    with errors_as_lines():
        data_set = find_data_set(name)
        if folder is None:
            by_hand = f"{data_set.name} must be downloaded by hand from {data_set.page}, and --root says where to"
            raise SettingError(
                "`--root` must be the folder of all data, got nothing; or set LONGSCAN_DATA to this folder"
                + (f"; {by_hand}" if data_set.is_by_hand else "")
            )
        place = fetch(data_set, Path(folder))
    echo(f"{data_set.name}: {place}, licence: {data_set.licence}, {data_set.page}")
    if data_set.use:
        variable = "" if os.environ.get("LONGSCAN_DATA") == folder else f"export LONGSCAN_DATA={folder}; "
        echo(f"to read it: {variable}longscan train {data_set.use.format(folder=place)} --out RUN")
    return 0


def _print_data_sets(root: Path | None) -> int:
    from rich.table import Table

    from longscan.cli.runs import errors_as_lines
    from longscan.datasets import DATA_SETS
    from longscan.datasets.storage import is_available

    table = Table("data set", "size", "licence", "available", "obtained by")
    with errors_as_lines():
        for one in DATA_SETS.values():
            available = "no" if root is None or not is_available(one, root) else "yes"
            table.add_row(one.name, one.size, one.licence, available, "hand" if one.is_by_hand else "longscan data get")
    print_table(table)
    echo("Generated, without files: listops, pathfinder, pendulum, fitzhugh_nagumo and the formal languages.")
    echo("`longscan data get NAME` downloads a data set, or says where to get it by hand.")
    if root is None:
        echo("None is shown as available: set LONGSCAN_DATA, or give --root, to name the folder of all data.")
    return 0
