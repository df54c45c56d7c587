"""One thread, and `--quick`: of everything a little, for between two edits."""

from collections import Counter

import torch

torch.set_num_threads(1)  # small tensors and many threads do not mix, and pytest-xdist uses the cores already

VARIANTS = 1  # of a parametrised test that --quick runs


def pytest_addoption(parser):
    parser.addoption(
        "--quick", action="store_true", help=f"no slow tests, and {VARIANTS} variant of each of the others"
    )


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--quick"):
        return
    seen, kept, left = Counter(), [], []
    for item in items:
        function = item.nodeid.partition("[")[0]
        seen[function] += 1
        (left if item.get_closest_marker("slow") or seen[function] > VARIANTS else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
