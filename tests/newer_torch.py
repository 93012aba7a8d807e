"""What an older PyTorch cannot do, for tests that run on several (`make test-torch`)."""

import pytest

from course_lib.runtime.communication.torch_versions import before

SINCE_2_8 = pytest.mark.skipif(
    before((2, 8)),
    reason="install PyTorch 2.8 or later: FSDP2 was for GPUs only, and pipelines left messages open",
)

SINCE_2_14 = pytest.mark.skipif(
    before((2, 14)), reason="install PyTorch 2.14 or later, which has gather_single"
)
