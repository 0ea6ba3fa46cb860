"""In the worker, once torch is imported: opens what is left of the GPU, and answers its parent, one JSON line each."""

import contextlib
import json
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

import torch
import triton

from autotune import platforms
from autotune.errors import one_line
from autotune.executor import messages
from autotune.executor.child import send
from autotune.executor.gpu_beginning import Beginning
from autotune.executor.harness import Harness, UnopenedError
from autotune.executor.messages import decode, encode
from autotune.executor.worker_race import race_entrants
from autotune.kernels.compiles import settle_cache_keys
from autotune.trial import Outcome, Policy, Status


def answer_opening(
    request: messages.OpenProblem, policy: Policy, index: int, own_pid: int | None, answers: BinaryIO
) -> Harness | None:
    """Open a problem and say that it is open, or why it is not: that is no verdict on a candidate."""
    torch.cuda.empty_cache()
    try:
        harness = Harness(*request.problem.resolve(), policy, index=index, own_pid=own_pid)
    except Exception as error:
        reason = str(error) if isinstance(error, UnopenedError) else one_line(error)
        _answer(answers, messages.Unopened(reason, request.number))
        return None
    _answer(answers, messages.Opened(request.number))
    return harness


def answer_screening(harness: Harness, request: messages.Screen, answers: BinaryIO) -> None:
    """Answer with a verdict; an exception is one too, and one that broke the context ends the process."""
    announce = partial(_announce, answers)
    screen = partial(harness.screen, request.candidate, early_stop=request.early_stop, announce=announce)
    _attempt(screen, partial(harness.refuse, request.candidate), answers)


def answer_race(harness: Harness, request: messages.RunRace, answers: BinaryIO) -> None:
    """Announce each step, so that the parent knows which entrant ended the race; then answer with the race."""
    race = partial(
        race_entrants,
        harness,
        request.candidates,
        seconds=request.seconds,
        baselines=request.baselines,  # type: ignore[arg-type] # a tuple of names, or a ``Choice``
        without=request.without,
        announce=partial(_announce, answers),
    )
    _attempt(race, lambda error: messages.RaceFailed(harness.classify(error), one_line(error)), answers)


def _attempt(
    work: Callable[[], messages.FromWorker], refuse: Callable[[Exception], messages.FromWorker], answers: BinaryIO
) -> None:
    try:
        answer = work()
    except UnopenedError as error:
        answer = messages.Unopened(str(error))
    except OSError as error:
        answer = messages.MachineFault(one_line(error))
    except Exception as error:
        answer = refuse(error)
    _answer(answers, answer)
    if isinstance(answer, Outcome | messages.RaceFailed) and answer.status is Status.ILLEGAL_ACCESS:
        os._exit(1)


def _announce(answers: BinaryIO, entrant: messages.Entrant) -> None:
    _answer(answers, messages.WorkingOn(entrant))


def _answer(answers: BinaryIO, answer: messages.FromWorker) -> None:
    send(answers, encode(answer))


def load_driver() -> None:
    """Let Triton build the C that it loads kernels by while the GPU opens: with a cold cache it is compiled here."""
    with contextlib.suppress(Exception):  # met again, and told, by the first launch
        _ = triton.runtime.driver.active.utils


def serve(requests: BinaryIO, answers: BinaryIO, policy: Policy, index: int, beginning: Beginning) -> None:
    """Answer until the requests end."""
    settle_cache_keys()
    threading.Thread(target=load_driver, name="driver of Triton", daemon=True).start()
    if beginning.device is None:
        _answer(answers, messages.Identified(platforms.current_device(index), platforms.toolchain()))
    torch.cuda.set_device(index)
    own_pid = platforms.open_context(index)
    own_pid = beginning.own_pid if beginning.is_open else own_pid
    _answer(answers, messages.Started())
    harness: Harness | None = None
    with torch.no_grad():
        for line in requests:
            request = decode(json.loads(line))
            if isinstance(request, messages.OpenProblem):
                harness = None  # frees the last problem's inputs before the next are made
                harness = answer_opening(request, policy, index, own_pid, answers)
                continue
            assert harness is not None
            if isinstance(request, messages.Screen):
                answer_screening(harness, request, answers)
            elif isinstance(request, messages.RunRace):
                answer_race(harness, request, answers)
