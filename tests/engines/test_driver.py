"""The driver: what depends on something waits for it, everything else runs beside it, nothing is done twice."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from rebinding.engines.distributed import DistributedEngine
from rebinding.engines.queue import Queue
from rebinding.engines.stores import DriverSource
from rebinding.engines.tasks import Computing, Describing, Failure, Missing, Shards
from rebinding.engines.worker import packed
from rebinding.evidence import Evidence, PromptSet
from rebinding.evidence.store import Store
from rebinding.experiments.unedited.request import Ability
from rebinding.experiments.workbench import Workbench
from rebinding.models import ModelError, load
from rebinding.study.engine import Session
from tests.engines.kinds import NAME, PAIRS, made
from tests.engines.nearby import Nearby, engine

OTHER = "planted:global@llama"


def session_of(how: DistributedEngine, store: Store | None = None, name: str = NAME) -> Session:
    """A session of the driver, for use inside of a job."""
    return how.session(how.loaded_model(name, dtype="float32", device="cpu", store=store), store)


def ask(how: DistributedEngine, kind: str, store: Store | None = None, name: str = NAME) -> Callable[[], Evidence]:
    """A job that asks for one request of a kind."""

    def job() -> Evidence:
        session = session_of(how, store, name)
        return session.source.get(made(kind, session.prompts))

    return job


def asked(pool: Nearby) -> list[str]:
    """What was computed, in the order in which it was given out."""
    return [task.address[0] for _, task in pool.log if isinstance(task, Computing)]


def test_blocks_run_beside_each_other_and_tensors_come_first(tmp_path: Path) -> None:
    how, pool = engine(3)
    store = Store(tmp_path)
    how.prepare([ask(how, "paths", store)])
    blocks = -(-PAIRS // 16)
    assert asked(pool) == ["paths"] * blocks
    assert pool.most == blocks == 2
    how.finish(ask(how, "ablation", store))
    assert asked(pool)[blocks:] == ["means", "ablation"]
    with_means = [task for _, task in pool.log if isinstance(task, Computing) and task.given]
    assert [task.given for task in with_means] == [(pool.log[-2][1].address,)]


def test_what_is_asked_for_twice_is_computed_once() -> None:
    """By two jobs at the same time, and by a third one afterwards."""
    how, pool = engine(2)
    job = ask(how, "ability")
    how.prepare([job, job])
    how.finish(job)
    assert asked(pool) == ["ability"]
    assert sum(isinstance(task, Describing) for _, task in pool.log) == 1


def test_a_job_goes_on_in_its_own_order() -> None:
    """What a job asks for next may depend on what it was given before: a stage on the heads of the one before it."""
    how, pool = engine(2)

    def job() -> tuple[int, ...]:
        session = session_of(how)
        prompts = session.prompts
        first = session.source.get(made("ability", prompts))
        right = tuple(int(number) for number in first.rows.loc[first.rows["hit"] > 0, "prompt"])
        session.source.get(Ability(prompts.draw(prompts.design("published"), right[:2])))
        return right[:2]

    used = how.finish(job)
    (_, last) = pool.log[-1]
    assert isinstance(last, Computing)
    assert last.request.prompts.ids == used
    assert pool.most == 1


def test_a_job_that_goes_on_comes_before_those_that_were_not_begun() -> None:
    """A chain is not left for the end, where its links would run alone."""
    how, pool = engine(1)
    how.finish(ask(how, "ability"))  # the model is known, so the first task of each job is on evidence
    how.prepare([chain(how), *(ask(how, kind) for kind in ("looks", "replays", "tracing"))])
    order = asked(pool)[1:]
    assert order[:4] == ["readout-diagnostic", "paths", "paths", "attention"]
    assert sorted(order[4:]) == ["replays", "tracing"]


def chain(how: DistributedEngine) -> Callable[[], Evidence]:
    """A job that asks for two things, one after the other."""

    def job() -> Evidence:
        ask(how, "diagnostic")()
        return ask(how, "paths")()

    return job


def test_a_worker_gets_the_prompts_that_it_has_recorded() -> None:
    """Whatever they are paired with, and whoever else has had them; where none of its own is left, those that nobody
    had, and another's at last. Apart from that what much may follow from comes first."""
    how, _ = engine(1)
    how.finish(ask(how, "ability"))
    session = session_of(how)
    assert isinstance(session.source, DriverSource)
    prompts, loading = session.prompts, session.source.loading
    drawn = prompts.design("published")
    sets = [prompts.draw(drawn, range(start, start + 2)) for start in (0, 2, 4, 6)]
    paired = prompts.draw(drawn, range(2), ("noise", "independent"))
    queue = Queue(loaded=dict.fromkeys(range(2), loading))

    def add(name: str, some: Sequence[PromptSet], *, urgent: bool = False) -> None:
        asked = [Computing(loading, Ability(one), "", (name, str(one.ids[0]))) for one in some]
        queue.add(asked, urgent=urgent)

    def begun(worker: int) -> str:
        task = queue.begin(worker)
        assert task is not None
        queue.end(worker)
        return task.id

    add("one", sets[:2])
    assert [begun(0), begun(1)] == ["one/0", "one/2"]
    add("two", sets[:3])
    add("three", [sets[1]])
    assert [begun(1) for _ in range(4)] == ["two/2", "three/2", "two/4", "two/0"]
    add("four", [sets[2], sets[0]])
    assert [begun(0), begun(0)] == ["four/0", "four/4"]
    add("five", [sets[1], sets[3], paired])
    assert [begun(0), begun(0), begun(0)] == ["five/0", "five/6", "five/2"]
    add("six", sets[:2])
    add("next", sets[:0:-1], urgent=True)
    assert [begun(1) for _ in range(5)] == ["next/4", "next/2", "six/0", "six/2", "next/6"]


def test_two_models_at_a_time_and_each_worker_stays_with_its_own() -> None:
    how, pool = engine(2)
    how.prepare([ask(how, kind, name=name) for name in (NAME, OTHER) for kind in ("ability", "looks", "tracing")])
    assert pool.most == 2
    models = [[task.loading for worker, task in pool.log if worker == number] for number in range(2)]
    changes = [pair for own in models for pair in pairwise(own) if pair[0] != pair[1]]
    assert {task.loading.name for _, task in pool.log} == {NAME, OTHER}
    assert len(pool.log) == 8
    assert len(changes) <= 1  # who has nothing left to do on its own may help with the other


def test_a_second_driver_goes_on_from_the_store(tmp_path: Path) -> None:
    """The first one ends in the middle: what workers had brought is there, and only the rest is given out."""
    store = Store(tmp_path)
    first, pool = engine(1)
    take, brought = pool.take, iter(range(3))

    def stopped() -> object:
        if next(brought, None) is None:
            raise KeyboardInterrupt
        return take()

    pool.take = stopped

    def job(how: DistributedEngine) -> Evidence:
        session = session_of(how, store)
        session.source.get(made("ability", session.prompts))
        return session.source.get(made("paths", session.prompts))

    with pytest.raises(KeyboardInterrupt):
        first.finish(lambda: job(first))
    assert asked(pool) == ["ability", "paths", "paths"]
    second, others = engine(1)
    assert second.finish(lambda: job(second)).rows["prompt"].nunique() == PAIRS
    assert asked(others) == ["paths"]


def test_an_error_of_the_work_is_raised_where_it_was_asked_for_and_stays() -> None:
    how, pool = engine(1)

    def job() -> object:
        return session_of(how, name="planted:nothing@llama")

    how.prepare([job])  # errors are left to those who ask in earnest
    for _ in range(2):
        with pytest.raises(ModelError, match="nothing") as error:
            how.finish(job)
    assert sum("on a worker" in note for note in error.value.__notes__) == 1
    assert len(pool.log) == 1


def test_evidence_of_other_source_is_refused() -> None:
    """What comes home under another address than the driver's was computed by something else."""
    how, pool = engine(1)
    do = pool.workers[0].do

    def elsewhere(task: object, given: object) -> object:
        found = do(task, given)
        if not isinstance(found, Shards):
            return found
        (content,) = found.found.values()
        return Shards({("ability", "f" * 64): content})

    pool.workers[0].do = elsewhere
    with pytest.raises(ModelError, match="not the driver's"):
        how.finish(ask(how, "ability"))


def test_the_driver_computes_nothing() -> None:
    how, _ = engine(1)
    session = how.finish(lambda: session_of(how))
    with pytest.raises(Missing):
        session.source.get(made("replays", session.prompts))
    with pytest.raises(ModelError, match="on workers alone"):
        _ = session.loaded_model.model


def test_one_store_an_engine(tmp_path: Path) -> None:
    how, _ = engine(1)
    how.finish(lambda: session_of(how, Store(tmp_path)))
    with pytest.raises(ValueError, match="cannot in"):
        how.finish(lambda: session_of(how, None))


@pytest.mark.parametrize(("kind", "sizes"), [("paths", [16, 4]), ("answered", [20, 4]), ("ability", [4])])
def test_tasks_are_blocks_with_the_addresses_of_this_process(kind: str, sizes: list[int], tmp_path: Path) -> None:
    """So a store that one of them wrote serves the other. All blocks are named at once."""
    loaded_model = load(NAME, device="cpu")
    here = Workbench(loaded_model, Store(tmp_path).shelf(loaded_model=loaded_model.fingerprint, dtype="float32"))
    request = made(kind, here.prompts)
    blocks = here.prompts.blocks(request)
    how, _ = engine(1)
    session = how.finish(lambda: session_of(how))
    with pytest.raises(Missing) as missing:
        session.source.get(made(kind, session.prompts))
    tasks = missing.value.tasks
    assert all(isinstance(task, Computing) for task in tasks)
    assert [task.request for task in tasks if isinstance(task, Computing)] == blocks
    assert [task.address for task in tasks if isinstance(task, Computing)] == [here.address(one) for one in blocks]
    assert [len(block.prompts.ids) for block in blocks] == sizes


def test_only_blocks_that_are_not_there_are_tasks(tmp_path: Path) -> None:
    """What this process put into the store, a driver does not give out."""
    loaded_model, store = load(NAME, device="cpu"), Store(tmp_path)
    here = Workbench(loaded_model, store.shelf(loaded_model=loaded_model.fingerprint, dtype="float32"))
    first, second = here.prompts.blocks(made("answered", here.prompts))
    here.get(second)
    how, _ = engine(1)
    session = how.finish(lambda: session_of(how, store))
    with pytest.raises(Missing) as missing:
        session.source.get(made("answered", session.prompts))
    assert [task.request for task in missing.value.tasks if isinstance(task, Computing)] == [first]


def test_a_failure_that_cannot_travel_travels_as_words() -> None:
    class Local(Exception):
        """Nobody else can import it."""

    outcome = pickle.loads(packed(Failure(Local("no way"), "somewhere")))
    assert isinstance(outcome.error, RuntimeError)
    assert "Local: no way" in str(outcome.error)
