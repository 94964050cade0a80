"""benchmarks/row_rates.py: the time of kernels from a profile, the generated data, and the record of a row."""

from pathlib import Path
from types import ModuleType

import pytest

from longscan.reproduce.archive import MAX_PARTS, PART_BYTES, checkpoint_bytes
from longscan.reproduce.rows import find_rows, read_rows
from longscan.reproduce.runs import row_argv
from longscan.training.parsing import parse_settings
from scripts import load_script

FILE = Path(__file__).parents[2] / "benchmarks/row_rates.py"


@pytest.fixture(scope="module")
def row_rates() -> ModuleType:
    return load_script(FILE, "benchmark_row_rates")


def test_a_kernel_that_waited_in_one_update_does_not_count_as_long(row_rates: ModuleType) -> None:
    kernels = [(20.0, 3.0, "b"), (0.0, 1.0, "a"), (2.0, 90.0, "b"), (10.0, 1.0, "a"), (12.0, 3.0, "b"), (18.0, 1.0, "a")]
    assert row_rates.gpu_seconds(kernels, 3) == pytest.approx(4e-6), "by place: 1 and the median of 90, 3 and 3"
    assert row_rates.gpu_seconds([*kernels, (30.0, 6.0, "c")], 3) == pytest.approx((3 * 1 + 3 * 3 + 6) / 3 * 1e-6), "by name"


def test_kernels_from_a_lambda_count_and_annotations_do_not(row_rates: ModuleType) -> None:
    kernel = "void at::native::elementwise_kernel<128, at::native::sin_kernel_cuda(at::TensorIterator&)::{lambda(float)#1}>()"
    names = [kernel, "chunk_scan_fwd_kernel", "Optimizer.step#AdamW.step", "ProfilerStep#3"]
    assert [row_rates.is_annotation(name) for name in names] == [False, False, True, True]


@pytest.mark.parametrize(
    "name", ["aussm/table2/self_regulation_scp2", "s7/table1/shd", "thesis/table4/imdb/mamba-s4", "s7/table2/pathfinder"]
)
def test_generated_data_are_those_of_the_rows_task(row_rates: ModuleType, tmp_path: Path, name: str) -> None:
    (row,) = find_rows(name)
    settings = parse_settings([*row_argv(row, 0), *row_rates.write_data(row, tmp_path)])
    if row.data in row_rates.LENGTHS:
        batch = settings.task.batch("train", 0, 2)
        assert batch.inputs.shape[1:] == (1152, 7)
    assert (settings.task.size("train") or 0) >= 20


LARGEST = {  # of each paper, among all its settings
    "aussm/table2/heartbeat",
    "aussm/table1/majority_count/aa/aaaaaa-0.001",
    "s7/table5/human_activity",
    "s7/table2/listops",
    "thesis/table4/imdb/mamba-s4",
    "mamba_lra/table1/retrieval/mamba",
}

FEWER_SEEDS = ("s7/table5/human_activity", 4)  # the row whose seeds do not all fit, and how many do


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(row.id, marks=() if row.id in LARGEST else pytest.mark.slow)
        for row in read_rows()
        if row.status == "recipe" and (row.candidate_of is None or row.id.endswith("aaaaaa-0.001"))  # of equal sizes one
    ],
)
def test_unfinished_runs_of_the_seeds_of_a_row_fit_into_one_archive(row_rates: ModuleType, tmp_path: Path, name: str) -> None:
    """All seeds of a row, or as many as docs/howto/reproduce.md says."""
    (row,) = find_rows(name)
    settings = parse_settings([*row_argv(row, 0), *row_rates.write_data(row, tmp_path)])
    most = 0.95 * MAX_PARTS * PART_BYTES  # the rest is for settings, logs and records
    assert int(most / checkpoint_bytes(settings)) >= row.seeds or (name, int(most / checkpoint_bytes(settings))) == FEWER_SEEDS


def test_record_has_the_rate_of_the_timed_updates(row_rates: ModuleType, tmp_path: Path) -> None:
    (row,) = find_rows("aussm/table1/parity/ma")
    settings = ["--training.batch_size=4", "--training.device=cpu"]
    record = row_rates.measure(row, 2, 3, 60.0, tmp_path / "lock", settings)
    assert (record["row"], record["updates_timed"], record["updates_published"]) == (row.id, 3, 100_000)
    assert record["settings"] == settings
    assert record["updates_per_second"] > 0
