# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Turns of consumers: with ``ping_pong`` one after another issues its scores, so that their exponentials alternate."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.gluon import GROUP_THREADS, barrier_arrive, barrier_sync

TURN_THREADS = gl.constexpr(2 * GROUP_THREADS.value)  # one consumer waits for its turn, the one before it comes
FIRST_TURN = gl.constexpr(9)  # named barriers; Triton takes its own from 0 up


@gluon.jit
def begin_turn(CONSUMER: gl.constexpr, SCHEDULE: gl.constexpr):
    """Wait until the consumer before this one has ended its turn."""
    if SCHEDULE.ping_pong:
        barrier_sync(FIRST_TURN + CONSUMER, TURN_THREADS)


@gluon.jit
def end_turn(CONSUMER: gl.constexpr, SCHEDULE: gl.constexpr):
    """Let the next consumer begin its turn."""
    if SCHEDULE.ping_pong:
        barrier_arrive(FIRST_TURN + (CONSUMER + 1) % SCHEDULE.consumers, TURN_THREADS)
