"""The project's targets for a search, measured on the GPU here: ``python -m benchmarks.live PART... --json FILE``.

Each part prints a summary and one line ``target ...: met`` or ``missed`` for every promise, and adds both to the JSON
file as it ends; a part that fails is recorded and the next one runs. The main shape is
``benchmark_shape(128, True, 4096)`` of ``benchmarks.shipped_problems``: batch 4, 16 heads, 4096 causal bf16 queries of
128. Nothing here reads the user's store, and only ``ladder_shipped`` and ``contention`` may begin from shipped winners.
This process holds no CUDA context, so that it contends with nobody. Seconds behind a part are a guess of what it takes
on an H200 host with 16 cores.

search (45 s)
    A process of its own searches the main shape with the default limits (120 trials, 60 s, ends when converged), an
    empty store and an empty Triton cache. Wall time runs from just before the process starts to the stored winner,
    imports (this process has brought the libraries' files into memory) and the opening of the GPU included. Then the
    winner and the fastest config of the recorded sweep are raced, interleaved.
overhead (0 s)
    The time of ``search`` by its parts: start-up, first trial, GPU seconds a trial, idle compilers.
triton_autotune (70 s)
    ``triton.autotune`` over a seeded tenth of the main shape's valid configs, with its own bench settings and an empty
    Triton cache; a tuner for pointers and one for descriptors, over the kernel, inputs and arguments of our launch. Its
    seconds (compiling and timing alone, no start-up) times valid / chosen, over the wall seconds of ``search``.
helion (90 s)
    Helion's external tuner over the same parameters and kernel. Its budget is 4/3 of our wall seconds, of which it
    keeps a quarter for a final selection, so that it searches as long as all of ours took; its imports are free.
    Configs that our space calls invalid are filtered for it; it finds out itself which do not compile or fit, and
    checks numbers against the default config. It times in its own process, since a closure cannot be sent to its
    worker. Its best (the best so far if it has to be killed) is raced against the winner of ``search``.
shared_memory (50 s)
    The pool compiles every valid config of the main shape and predicts from the metadata which ones the device refuses;
    then each is launched on a small problem that runs the same binaries. The device's other answers are counted.
contention (50 s)
    ``autotune search --seq 1024 --trials 20 --budget 20s`` beside a process that multiplies matrices, then alone: rows
    marked, and whether the output says so.
ladder (150 s), ladder_shipped (100 s)
    Wall time of the command ``autotune search --seq 128,...,16384``, eight lengths, from an empty store and an empty
    Triton cache. ``ladder``, which is judged, hides the shipped winners: neighbours come from the run itself alone.
repeat (260 s)
    Ten shapes are searched twice with different seeds, each time from an empty store (120 trials, 60 s, ends when
    converged, as ``autotune search``; Triton's cache is shared). The two winners are raced; the same config differs
    by 0.

``overhead``, ``triton_autotune`` and ``helion`` take the figures of ``search`` from the JSON file, or run it first.
"""
