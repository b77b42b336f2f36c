"""The driver: dependent tasks wait, independent tasks run at the same time, and no task runs twice."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from rebinding.engines.distributed import DistributedEngine, DriverSource, MissingOutcomes, Queue
from rebinding.engines.worker import Task, pack
from rebinding.evidence import Evidence, PromptSet
from rebinding.evidence.store import Store
from rebinding.experiments.unedited import Ability
from rebinding.experiments.workbench import Workbench
from rebinding.models import ModelError, load
from rebinding.study.engine import Session
from tests.engines.kinds import NAME, PAIRS, make_request
from tests.engines.local_pool import LocalPool, make_engine

SECOND_MODEL = "planted:global@llama"


def make_session(engine: DistributedEngine, store: Store | None = None, name: str = NAME) -> Session:
    """A session of the driver, for use inside of a job."""
    return engine.session(engine.loaded_model(name, dtype="float32", device="cpu", store=store), store)


def make_kind_request(
    engine: DistributedEngine, kind: str, store: Store | None = None, name: str = NAME
) -> Callable[[], Evidence]:
    """A job that requests evidence of one kind."""

    def job() -> Evidence:
        session = make_session(engine, store, name)
        return session.source.get(make_request(kind, session.prompts))

    return job


def computed(pool: LocalPool) -> list[str]:
    """The experiments of the tasks, in the order in which they were assigned."""
    return [task.address[0] for _, task in pool.log if task.request]


def test_blocks_run_at_the_same_time_and_tensors_first(tmp_path: Path) -> None:
    engine, pool = make_engine(3)
    store = Store(tmp_path)
    engine.prepare([make_kind_request(engine, "paths", store)])
    blocks = -(-PAIRS // 16)
    assert computed(pool) == ["paths"] * blocks
    assert pool.max_running == blocks == 2
    engine.finish(make_kind_request(engine, "ablation", store))
    assert computed(pool)[blocks:] == ["means", "ablation"]
    with_means = [task for _, task in pool.log if task.inputs]
    assert [task.inputs for task in with_means] == [(pool.log[-2][1].address,)]


def test_a_request_is_computed_once() -> None:
    """For two jobs at the same time and a third one afterwards."""
    engine, pool = make_engine(2)
    job = make_kind_request(engine, "ability")
    engine.prepare([job, job])
    engine.finish(job)
    assert computed(pool) == ["ability"]
    assert sum(task.request is None for _, task in pool.log) == 1


def test_a_job_keeps_its_own_order() -> None:
    """A request may depend on earlier evidence: a stage on the heads of the one before it."""
    engine, pool = make_engine(2)

    def job() -> tuple[int, ...]:
        session = make_session(engine)
        prompts = session.prompts
        first = session.source.get(make_request("ability", prompts))
        right = tuple(int(number) for number in first.rows.loc[first.rows["hit"] > 0, "prompt"])
        session.source.get(Ability(prompts.draw(prompts.design("published"), right[:2])))
        return right[:2]

    cost = engine.finish(job)
    (_, last) = pool.log[-1]
    assert last.request.prompts.ids == cost
    assert pool.max_running == 1


def test_a_resumed_job_comes_before_new_jobs() -> None:
    """A chain of tasks does not wait until the end, where its links would run alone."""
    engine, pool = make_engine(1)
    engine.finish(
        make_kind_request(engine, "ability")
    )  # the model is known, so the first task of each job is on evidence
    engine.prepare([chain(engine), *(make_kind_request(engine, kind) for kind in ("looks", "replays", "tracing"))])
    order = computed(pool)[1:]
    assert order[:4] == ["readout-diagnostic", "paths", "paths", "attention"]
    assert sorted(order[4:]) == ["replays", "tracing"]


def chain(engine: DistributedEngine) -> Callable[[], Evidence]:
    """A job with two requests, one after the other."""

    def job() -> Evidence:
        make_kind_request(engine, "diagnostic")()
        return make_kind_request(engine, "paths")()

    return job


def test_a_worker_gets_the_prompts_that_it_has_recorded() -> None:
    """Whatever their pairing, and even if another worker has recorded them too; then new prompts, and another worker's
    prompts last. Among equals urgent tasks come first."""
    engine, _ = make_engine(1)
    engine.finish(make_kind_request(engine, "ability"))
    session = make_session(engine)
    assert isinstance(session.source, DriverSource)
    prompts, load_options = session.prompts, session.source.load_options
    design = prompts.design("published")
    sets = [prompts.draw(design, range(start, start + 2)) for start in (0, 2, 4, 6)]
    paired = prompts.draw(design, range(2), ("noise", "independent"))
    queue = Queue(loaded_options=dict.fromkeys(range(2), load_options))

    def add(name: str, prompt_sets: Sequence[PromptSet], *, urgent: bool = False) -> None:
        tasks = [Task(load_options, Ability(prompts), "", (name, str(prompts.ids[0]))) for prompts in prompt_sets]
        queue.add(tasks, urgent=urgent)

    def begin(worker: int) -> str:
        task = queue.begin(worker)
        assert task is not None
        queue.end(worker)
        return task.id

    add("one", sets[:2])
    assert [begin(0), begin(1)] == ["one/0", "one/2"]
    add("two", sets[:3])
    add("three", [sets[1]])
    assert [begin(1) for _ in range(4)] == ["two/2", "three/2", "two/4", "two/0"]
    add("four", [sets[2], sets[0]])
    assert [begin(0), begin(0)] == ["four/0", "four/4"]
    add("five", [sets[1], sets[3], paired])
    assert [begin(0), begin(0), begin(0)] == ["five/0", "five/6", "five/2"]
    add("six", sets[:2])
    add("next", sets[:0:-1], urgent=True)
    assert [begin(1) for _ in range(5)] == ["next/4", "next/2", "six/0", "six/2", "next/6"]


def test_each_worker_stays_with_its_model() -> None:
    engine, pool = make_engine(2)
    engine.prepare(
        [
            make_kind_request(engine, kind, name=name)
            for name in (NAME, SECOND_MODEL)
            for kind in ("ability", "looks", "tracing")
        ]
    )
    assert pool.max_running == 2
    models = [[task.load_options for worker, task in pool.log if worker == number] for number in range(2)]
    changes = [pair for loadings in models for pair in pairwise(loadings) if pair[0] != pair[1]]
    assert {task.load_options.name for _, task in pool.log} == {NAME, SECOND_MODEL}
    assert len(pool.log) == 8
    assert len(changes) <= 1  # a worker without tasks on its own model may take one on the other


def test_a_second_driver_continues_from_the_store(tmp_path: Path) -> None:
    """The first driver stops in the middle: finished shards are in the store, and only the rest is assigned."""
    store = Store(tmp_path)
    first, pool = make_engine(1)
    take_outcome, remaining = pool.take, iter(range(3))

    def interrupt() -> object:
        if next(remaining, None) is None:
            raise KeyboardInterrupt
        return take_outcome()

    pool.take = interrupt

    def job(engine: DistributedEngine) -> Evidence:
        session = make_session(engine, store)
        session.source.get(make_request("ability", session.prompts))
        return session.source.get(make_request("paths", session.prompts))

    with pytest.raises(KeyboardInterrupt):
        first.finish(lambda: job(first))
    assert computed(pool) == ["ability", "paths", "paths"]
    second, second_pool = make_engine(1)
    assert second.finish(lambda: job(second)).rows["prompt"].nunique() == PAIRS
    assert computed(second_pool) == ["paths"]


def test_an_error_of_a_worker_is_raised_for_every_request() -> None:
    engine, pool = make_engine(1)

    def job() -> object:
        return make_session(engine, name="planted:nothing@llama")

    engine.prepare([job])  # ignores errors
    for _ in range(2):
        with pytest.raises(ModelError, match="nothing") as error:
            engine.finish(job)
    assert sum("on a worker" in note for note in error.value.__notes__) == 1
    assert len(pool.log) == 1


def test_evidence_of_other_source_is_refused() -> None:
    """A shard with another address than the driver's was computed by other source."""
    engine, pool = make_engine(1)
    run_task = pool.workers[0].run_task

    def run_task_at_another_address(task: object, inputs: object) -> object:
        outcome = run_task(task, inputs)
        if not isinstance(outcome, dict):
            return outcome
        (content,) = outcome.values()
        return {("ability", "f" * 64): content}

    pool.workers[0].run_task = run_task_at_another_address
    with pytest.raises(ModelError, match="not the driver's"):
        engine.finish(make_kind_request(engine, "ability"))


def test_the_driver_computes_nothing() -> None:
    engine, _ = make_engine(1)
    session = engine.finish(lambda: make_session(engine))
    with pytest.raises(MissingOutcomes):
        session.source.get(make_request("replays", session.prompts))
    with pytest.raises(ModelError, match="on workers only"):
        _ = session.loaded_model.model


def test_an_engine_has_one_store(tmp_path: Path) -> None:
    engine, _ = make_engine(1)
    engine.finish(lambda: make_session(engine, Store(tmp_path)))
    with pytest.raises(ValueError, match="make another engine"):
        engine.finish(lambda: make_session(engine, None))


@pytest.mark.parametrize(("kind", "sizes"), [("paths", [16, 4]), ("answered", [20, 4]), ("ability", [4])])
def test_tasks_are_blocks_with_the_addresses_of_this_process(kind: str, sizes: list[int], tmp_path: Path) -> None:
    """So both can use the same store. `MissingOutcomes` has all blocks at once."""
    loaded_model = load(NAME, device="cpu")
    bench = Workbench(loaded_model, Store(tmp_path))
    request = make_request(kind, bench.prompts)
    blocks = bench.prompts.blocks(request)
    engine, _ = make_engine(1)
    session = engine.finish(lambda: make_session(engine))
    with pytest.raises(MissingOutcomes) as missing:
        session.source.get(make_request(kind, session.prompts))
    tasks = missing.value.tasks
    assert [task.request for task in tasks] == blocks
    assert [task.address for task in tasks] == [bench.address(block) for block in blocks]
    assert [len(block.prompts.ids) for block in blocks] == sizes


def test_only_missing_blocks_are_tasks(tmp_path: Path) -> None:
    """A driver assigns no block that this process stored."""
    loaded_model, store = load(NAME, device="cpu"), Store(tmp_path)
    bench = Workbench(loaded_model, store)
    first, second = bench.prompts.blocks(make_request("answered", bench.prompts))
    bench.get(second)
    engine, _ = make_engine(1)
    session = engine.finish(lambda: make_session(engine, store))
    with pytest.raises(MissingOutcomes) as missing:
        session.source.get(make_request("answered", session.prompts))
    assert [task.request for task in missing.value.tasks] == [first]


def test_an_error_that_cannot_be_pickled_is_sent_as_text() -> None:
    class Local(Exception):
        """No other module can import it."""

    error = Local("no way")
    error.add_note("somewhere")
    outcome = pickle.loads(pack(error))
    assert isinstance(outcome, RuntimeError)
    assert "Local: no way" in str(outcome)
    assert outcome.__notes__ == ["somewhere"]
