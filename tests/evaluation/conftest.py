"""What several files of tests read."""

import pytest

from tests.evaluation.report_runs import write_sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return write_sweep(tmp_path_factory.mktemp("sweep"))
