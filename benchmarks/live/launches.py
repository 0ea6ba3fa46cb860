"""The device's own answer to each config: ``python -m benchmarks.live.launches CONFIGS.json``.

Prints one line of JSON for each config, as it is known: ``fits``, ``shared memory``, ``does not compile`` or an
exception.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from triton.runtime.errors import OutOfResources, PTXASError

from autotune.kernels.flash_attention.triton import KERNEL
from autotune.registry import load_definition
from autotune.space import Config
from benchmarks.live.problem import MAIN, from_plain, make_tensors
from benchmarks.shipped_problems import OPERATION


def ask(config: Config, inputs: Any, outputs: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    try:
        KERNEL.launch(config, inputs, outputs)
        torch.cuda.synchronize()
    except OutOfResources as error:
        return {"answer": error.name, "required": error.required, "limit": error.limit}
    except PTXASError as error:
        return {"answer": "does not compile", "message": str(error)[:200]}
    except Exception as error:
        name = "does not compile" if "PassManager" in str(error) else f"{type(error).__name__}: {error}"[:300]
        return {"answer": name}
    return {"answer": "fits"}


def main() -> None:
    configs = [from_plain(values) for values in json.loads(Path(sys.argv[1]).read_text())]
    inputs, outputs = make_tensors(load_definition(OPERATION).check_shapes(MAIN)[0])
    with torch.no_grad():
        for config in configs:
            print(json.dumps({"config": dict(config), **ask(config, inputs, outputs)}), flush=True)


if __name__ == "__main__":
    main()
