"""Matrix products that keep the GPU busy until killed: ``python -m benchmarks.live.load``; prints when they begin."""

import torch

SIZE = 4096
BURST = 50  # products between two waits, about 10 ms: the queue stays short, the GPU stays busy


def main() -> None:
    left, right = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = left @ right
    torch.cuda.synchronize()
    print("busy", flush=True)
    while True:
        for _ in range(BURST):
            torch.mm(left, right, out=out)
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
