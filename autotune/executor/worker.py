"""The process that owns a GPU: checks, screens and races candidates as its parent asks.

It imports everything, and waits for ``Start`` before it touches the GPU, so that it can stand by; one that is wanted at
once finds and opens the GPU meanwhile. A kernel that corrupts its CUDA context takes this process with it and nothing
else. Run by ``WorkerKeeper``: ``python -m autotune.executor.worker SETTINGS``.
"""

import json
import os
import sys

from autotune.executor.child import end_imports, take_standard_output
from autotune.executor.gpu_beginning import Beginning
from autotune.executor.messages import from_plain
from autotune.trial import Policy


def main() -> None:
    """Run the child: the policy and the GPU's index come as one JSON argument; it answers until its input ends."""
    settings = json.loads(sys.argv[1])
    policy, index = from_plain(Policy, settings["policy"]), int(settings["index"])
    answers = take_standard_output()
    beginning = Beginning(sys.stdin.fileno(), answers, index)
    from autotune.executor.worker_answers import serve  # imports torch and triton, which takes seconds

    end_imports()
    beginning.end()
    if beginning.is_wanted:
        serve(sys.stdin.buffer, answers, policy, index, beginning)
    os._exit(0)  # the driver tidies up after a process, which torch takes longer to do


if __name__ == "__main__":
    main()
