"""Owns the member that asks OR-Tools' CP-SAT (extra ``optimal``): two-dimensional no-overlap with hints."""

from __future__ import annotations

import importlib
import threading
from typing import Any

import numpy as np

from planner_core.errors import PlanError
from planner_core.memory.bounds import lower_bound
from planner_core.memory.placement.clock import Clock, now
from planner_core.memory.placement.first_fit import first_fit
from planner_core.memory.placement.registry import Found, strategy
from planner_core.memory.problem import Budget, Problem

__all__ = ["cp_sat"]

_SECONDS, _LOOK = 10.0, 0.01


@strategy("cp_sat", "OR-Tools CP-SAT, started from first fit (needs the extra 'optimal').", proves=True, aims=True,
          needs="ortools")
def cp_sat(problem: Problem, budget: Budget, target: int = 0) -> Found:
    """One interval a buffer and axis, the arena's height minimised; one worker, so that a seed gives one answer
    (within ``work`` counted as deterministic microseconds). Raises ``PlanError`` without ortools."""
    try:
        cp_model: Any = importlib.import_module("ortools.sat.python.cp_model")
    except ImportError as e:
        raise PlanError("strategy 'cp_sat' needs OR-Tools: pip install 'rlx-viz[optimal]'") from e

    clock = Clock(budget)
    hint = first_fit(problem)
    bound = lower_bound(problem)[0]
    need = problem.size + problem.guard
    busy = np.flatnonzero(need > 0)
    if problem.height(hint) <= max(bound, target) or clock.over():
        return hint, bound
    unit = int(np.gcd.reduce(np.concatenate([need[busy], problem.alignment[busy], np.maximum(problem.fixed[busy], 0)])))
    top = problem.height(hint) // unit
    started = now()
    model: Any = cp_model.CpModel()
    arena = model.new_int_var(-(-bound // unit), top, "arena")
    times, places, starts = [], [], []
    events = np.unique(np.concatenate([problem.birth, problem.death]))  # the solver's integers end below nanosecond stamps
    born, dead = np.searchsorted(events, problem.birth).tolist(), np.searchsorted(events, problem.death).tolist()
    for k, i in enumerate(busy.tolist()):
        # the rest of the model, then the solver's own copy of it, must fit as well
        if k % 64 == 63 and (clock.over() or not clock.room((now() - started) * (3 * len(busy) / k - 1))):
            return hint, bound
        size, step = int(need[i]) // unit, int(problem.alignment[i]) // unit
        if problem.fixed[i] >= 0:
            start = model.new_constant(int(problem.fixed[i]) // unit)
        else:
            slot = model.new_int_var(0, (top - size) // step, f"s{i}")
            model.add_hint(slot, int(hint[i]) // unit // step)
            start = slot * step
        model.add(start + size <= arena)
        starts.append(start)
        places.append(model.new_fixed_size_interval_var(start, size, f"p{i}"))
        times.append(model.new_fixed_size_interval_var(born[i], dead[i] - born[i] + 1, f"t{i}"))
    model.add_no_overlap_2d(times, places)
    model.add_hint(arena, top)
    model.minimize(arena)
    # the solver first copies and presolves the model without looking at its limit: about as long as building took
    loading = now() - started
    if not clock.room(2 * loading):
        return hint, bound
    solver: Any = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False  # its handler would outlive it, and Ctrl-C end the process
    solver.parameters.random_seed = budget.seed % (1 << 31)
    if budget.seconds is not None:
        solver.parameters.max_time_in_seconds = max(clock.seconds_left() - loading, 0.0)
    elif budget.work is not None:
        solver.parameters.max_deterministic_time = budget.work / 1e6
    else:
        solver.parameters.max_deterministic_time = _SECONDS

    class Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            if clock.over() or self.objective_value * unit <= (target):
                self.stop_search()

    code = _solve(solver, model, Watch(), clock)
    offsets = hint.copy()
    if code in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        offsets[busy] = [solver.value(s) * unit for s in starts]
    if problem.height(offsets) > problem.height(hint):
        offsets = hint
    proved = int(np.ceil(solver.best_objective_bound - 1e-6)) * unit if code != cp_model.UNKNOWN else 0
    return offsets, min(max(proved, bound), problem.height(offsets))


def _solve(solver: Any, model: Any, watch: Any, clock: Clock) -> Any:
    """The solver's status. It works in a thread of its own, so that a deadline, ``cancel`` and Ctrl-C reach it between two
    solutions too."""
    done: list[Any] = []
    finished = threading.Event()  # not the thread's join, which an interrupt can leave believing that it ended

    def work() -> None:
        try:
            done.append(solver.solve(model, watch))
        except BaseException as e:  # for the caller
            done.append(e)
        finally:
            finished.set()

    threading.Thread(target=work, name="cp_sat", daemon=True).start()
    while not finished.is_set():
        try:
            finished.wait(_LOOK)
        except KeyboardInterrupt:
            clock.stop()
        if clock.over():
            watch.stop_search()
    if isinstance(done[0], BaseException):
        raise done[0]
    return done[0]
