"""The child processes of a GPU's executor: they can be started before what their parent imports."""

from dataclasses import dataclass

from autotune import platforms
from autotune.executor.compile_pool import CompilePool, Jobs, limit_jobs
from autotune.executor.settings import Settings
from autotune.executor.worker_keeper import WorkerKeeper


@dataclass(frozen=True, slots=True)
class GpuChildren:
    """The processes of an executor: they import torch and triton, which takes seconds, from when they are started."""

    workers: WorkerKeeper
    pool: CompilePool
    jobs: Jobs

    def close(self) -> None:
        """End them; safe to call twice."""
        self.pool.close()
        self.workers.close()


def start_children(settings: Settings) -> GpuChildren:
    """Start the worker and the compile server of a GPU with these settings, and do not wait for them."""
    jobs = limit_jobs(settings.jobs)
    index = platforms.current_index() if settings.index is None else settings.index
    workers = WorkerKeeper(settings.policy, index)
    try:
        return GpuChildren(workers, CompilePool(None, jobs=jobs.count, timeout=settings.compile_seconds), jobs)
    except BaseException:
        workers.close()
        raise
