"""The options of a run that judges claims, each declared once; subcommands take those that they share from here.

A field of `Options` is an option. Its name, type and default say how it is parsed: a flag is a bool, a repeatable
option a tuple, and a Literal lists the choices. Its metadata has the help text, and why some runs refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from rebinding.models.devices import Dtype
from rebinding.task.designs import DesignName
from rebinding.task.text import WordingName

Value = TypeVar("Value")
MODEL = "an alias, ALIAS=FOLDER, a folder, FILE.gguf, a Hub id, planted:MECHANISM or learned:NAME"
"""The names of models that every command takes."""
GROUPS = {
    "claims": "claims of the paper",
    "simulation": "how often each verdict comes out on simulated evidence",
    "cost": "memory, FLOP and time of a run, without running it",
}
"""The groups of options, by the title that `--help` shows."""
NO_MODEL, NO_WORKERS, NO_WORLD = (
    "no model runs",
    "nothing is computed by workers",
    "only models of the paper have worlds",
)


def option(
    default: Value, help: str, metavar: str | None = None, *, group: str = "claims", simulate: str = "", cost: str = ""
) -> Value:
    """A field that is an option. `simulate` and `cost` say why a run with --simulate, or --cost, would ignore it."""
    metadata = {"help": help, "metavar": metavar, "group": group, "simulate": simulate, "cost": cost}
    declared: Value = field(default=default, metadata=metadata)
    return declared


def design_help(default: str) -> str:
    """The help text of `--design`, whose default differs between commands."""
    return f"design of the stories (default {default}; e.g. --design counterbalanced)"


_simulation, _cost = partial(option, group="simulation"), partial(option, group="cost")


@dataclass(frozen=True)
class Options:
    """The options as given; `--help` and the page of options list them in this order."""

    model: tuple[str, ...] = option(
        (),
        f"model to judge, repeatable: {MODEL} (default: three planted models; the paper's four with -m gpu,"
        " --remote, --simulate or --cost; e.g. --model planted:pointer@gemma2)",
        "NAME",
    )
    planted: Literal["all"] | None = option(
        None, "judge every planted mechanism, architecture and variant (default: only --model)", simulate=NO_WORLD
    )
    learned: Literal["all"] | None = option(
        None, "judge every model that learned the task by an adapter (default: only --model)", simulate=NO_WORLD
    )
    samples: int | None = option(None, "prompts per claim (default: as each claim declares; e.g. --samples 120)", "N")
    skip_prompts: int = option(
        0, "skip the first N prompts, to repeat a run on new ones (default 0; e.g. --skip-prompts 400)", "N"
    )
    every_token: bool = option(
        False,
        "trace every token in section 3, for its figures; verdicts use only tokens with a role",
        simulate="maps are simulated at tokens that have a role",
    )
    design: DesignName = option("published", design_help("published"))  # noqa: RUF009  # a field, of an alias
    wording: WordingName = option(  # noqa: RUF009  # a field, of an alias
        "published",
        "words of all stories: as published, or one of three paraphrases that keep the tokens' roles (default"
        " published; e.g. --wording holds)",
        simulate="stories are simulated in the published words",
    )
    procedure: str = option(
        "both", "published, controlled, both, or a file that changes conventions of one of them (default both)", "WHICH"
    )
    circuit: str | None = option(
        None,
        "published, discovered, discovered-all-positions, or a file that `discover --save` wrote (default: the"
        " published or planted circuit if the model has one, else discovered)",
        "WHICH",
        simulate="the paper's own circuit is simulated",
    )
    dtype: Dtype | None = option(  # noqa: RUF009  # a field, of an alias
        None,
        "number format (default: as published for the paper's models, bfloat16 for others on the"
        " Hub, as saved for folders, else float32)",
        simulate=NO_MODEL,
    )
    fingerprint: tuple[str, ...] = option(
        (),
        "refuse the model NAME unless it has this fingerprint, as in claims.json; repeatable (default: any)",
        "NAME=SHA256",
    )
    device: str = option(
        "auto",
        "auto (all GPUs, or the CPU if there is none), cpu, cuda, cuda:N or mps (default auto)",
        "DEVICE",
        simulate=NO_MODEL,
        cost=f"{NO_MODEL}; --gpu, --tflops and --bandwidth describe the device",
    )
    remote: bool = option(False, "run Hub models on NDIF (needs an API key)", simulate=NO_MODEL, cost=NO_MODEL)
    engine: Literal["here", "ray"] = option(
        "here",
        "where evidence is computed: in this process or on Ray workers (default here)",
        simulate=NO_WORKERS,
        cost=NO_MODEL,
    )
    address: str | None = option(
        None,
        "--engine ray: a running cluster, or auto (default: a new one on this machine, for this run)",
        "HOST:PORT",
        simulate=NO_WORKERS,
    )
    gpus_per_model: float | None = option(
        None,
        "--engine ray: GPUs of a worker (default: one, if the cluster has any; e.g. --gpus-per-model 2)",
        "N",
        simulate=NO_WORKERS,
    )
    workers: int | None = option(
        None, "--engine ray: workers (default: as many as fit into the cluster)", "N", simulate=NO_WORKERS
    )
    store: str | None = option(
        None,
        "folder of the evidence (default: REBINDING_STORE, else .rebinding)",
        "DIR",
        simulate="simulated evidence is not saved",
        cost="no evidence is saved",
    )
    no_store: bool = option(False, "save no evidence; an interrupted run starts again")
    report: str | None = option(
        None, "write claims.json, evidence/*.parquet and a page to this folder (default: no report)", "DIR"
    )
    strict_verdicts: bool = option(
        False,
        "an inconclusive claim fails the run",
        simulate="the run reports how often each verdict comes out, and no verdict fails it",
        cost="nothing is judged",
    )
    skip_unavailable: bool = option(
        False, "skip models that this machine cannot load", simulate="no model is loaded", cost="no weights are needed"
    )
    simulate: tuple[str, ...] = _simulation(
        (),
        "judge simulated evidence of a world: of one in which the paper is right, or its rival is, or of means of"
        " your own in a TOML file; repeatable (default: judge models; e.g. --simulate paper --simulate mine.toml)",
        "WORLD",
    )
    runs: int | None = _simulation(None, "--simulate: samples of each world at most (default 10; e.g. --runs 100)", "N")
    seed: int | None = _simulation(None, "--simulate: seed of the first sample (default 0)", "N")
    spread: tuple[float, ...] = _simulation(
        (),
        "--simulate: judge headline rows also with all declared spreads times FACTOR; repeatable (default: only as"
        " declared; e.g. --spread 2)",
        "FACTOR",
    )
    cost: bool = _cost(False, "estimate memory, FLOP and time of the claims; loads nothing")
    gpu: str = _cost("80GB", "--cost: memory of one GPU (default 80GB; e.g. --gpu 16GB)", "SIZE")
    gpus: int = _cost(1, "--cost: number of GPUs (default 1)", "N")
    tflops: float = _cost(400.0, "--cost: TFLOP per second of one GPU (default 400)", "X")
    bandwidth: float = _cost(3.0, "--cost: memory bandwidth in TB per second (default 3)", "X")
    tokens: int | None = _cost(None, "--cost: tokens per prompt (default: as the model's tokenizer has it)", "N")

    @classmethod
    def read(cls, get: Callable[[str], Any]) -> Options:
        """The options that a parser has read; `get` returns the value of an option such as `--skip-prompts`."""
        values: dict[str, Any] = {name: get(flag_of(name)) for name in FIELDS}
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**values | lists)

    def without_effect(self, purpose: Literal["simulate", "cost"]) -> Iterator[tuple[str, str]]:
        """The options on the command line that a run with --simulate, or --cost, would ignore, and why."""
        for flag, value in non_defaults(self, *flags_of("claims")):
            reason = FIELDS[name_of(flag)].metadata[purpose]
            if reason and value:
                yield flag if value is True else f"{flag} {value}", reason


FIELDS = {declared.name: declared for declared in fields(Options)}


def flag_of(name: str) -> str:
    """The option of a field, such as `--skip-prompts`."""
    return f"--{name.replace('_', '-')}"


def name_of(flag: str) -> str:
    """The field of an option."""
    return flag.removeprefix("--").replace("-", "_")


def flags_of(group: str) -> list[str]:
    """The options of a group."""
    return [flag_of(name) for name, declared in FIELDS.items() if declared.metadata["group"] == group]


def help_of(flag: str) -> str:
    """The help text of an option."""
    return str(FIELDS[name_of(flag)].metadata["help"])


def declare(add: Callable[..., Any], *flags: str, **changes: Any) -> None:
    """Add options such as `--device` to a parser; `add` is the function of argparse or of pytest. `changes` replace
    keywords, where a command takes an option in another way."""
    types = get_type_hints(Options)
    for flag in flags:
        declared = FIELDS[name_of(flag)]
        texts = {name: declared.metadata[name] for name in ("help", "metavar") if declared.metadata[name] is not None}
        add(flag, **{**_parsing(types[declared.name], declared.default), **texts, **changes})


def _parsing(kind: Any, default: Any) -> dict[str, Any]:
    """How argparse and pytest read an option: a flag, a list, one of some choices, a number, or any text."""
    parts = [part for part in get_args(kind) if part is not type(None)]
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is tuple:
        return {**_parsing(parts[0], []), "action": "append"}
    if get_origin(kind) is Literal:
        return {"default": default, "choices": parts}
    if parts:  # a union with None
        return _parsing(parts[0], default)
    return {"default": default} if kind is str else {"default": default, "type": kind}


def non_defaults(values: object, *flags: str) -> Iterator[tuple[str, Any]]:
    """Those of the options that differ from their default, with their values."""
    for flag in flags:
        value = getattr(values, name_of(flag))
        if value != FIELDS[name_of(flag)].default:
            yield flag, value


def words(values: object, *flags: str) -> Iterator[str]:
    """The words of a command line that give those of the options that differ from their default."""
    for flag, value in non_defaults(values, *flags):
        yield from (flag,) if value is True else (flag, str(value))
