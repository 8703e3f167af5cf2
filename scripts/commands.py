"""The commands of `headway`: what each is for, its options, its example. No import here takes time."""

from dataclasses import dataclass

from scripts.arguments import HELP, JSON, Option


SERVE = Option("--serve", 'a server\'s command, "vllm serve MODEL ..."; its flags become keys', "COMMAND")
BENCH = Option("--bench", 'a load generator\'s flags, "--request-rate 10 ..."; they become keys', "FLAGS")
ENGINE = Option("--engine", "engine and version, as vllm-0.33.0 or vllm-0.24; engine= is the same", "ENGINE")
CONFIG_DIR = Option("--config-dir", "a folder of your own with model/, hardware/ ... YAML files", "DIR", many=True)
CFG = Option("--cfg", "print the whole configuration as YAML and stop (--cfg job)", "WHAT")
MULTIRUN = Option("--multirun", "run every combination of KEY=A,B and KEY=range(A,B,STEP)", short="-m")
REPEAT = Option("--repeat", "processes per benchmark, of which the median is printed (3)", "N")
RUN = Option("--run", "compare a server's step log with a simulated run (its results folder)", "DIR")
FROM = Option("--from", "with --run: begin at Iteration(N) of the log, after the server's first requests", "N")

LEARN = Option("--from", "result of `vllm bench serve --save-result`, engine log, folder, table of servers", "FILE")

CALIBRATE = """Operator tables (docs/operator-tables.md):
device=NAME[,NAME]   of `headway hardware`
family=NAME[,NAME]   gemm, decode, mixed, moe, recurrent, elementwise (all that the tables hold)
sources=PATH[,PATH]  folders and files, or aiconfigurator-core (that package, extra headway[profiles])
out=DIR              gets <device>/, which predictor=DIR/<device> uses (predictors-fitted); families that it
                     lacks come from what is shipped for the device
splits=shapes, all   what is judged; all: every split, one fit each (shapes)
seed=N, quick=true, date=YYYY-MM-DD   of the fit (0, false: all steps, today)

--from: the server and its load are described as for headway simulate; writes out=run-fit.json, which
predictor=run-fit.json uses. --from TABLE.csv (measured servers, docs/serving-table.md): until=YYYY-MM-DD,
loads=N, jobs=N, predictor=, responses=FILE."""

VALIDATE = """run=DIR: a recorded run, request by request
  workload=FILE        what it was driven with (found near DIR by its hash)
  KEY=VALUE            keys of headway simulate, which win over what was recorded: hardware=, predictor= ...
serving=FILE: measured serving points, one simulated closed loop each
  limit=N              only N of them, chosen by a hash (all)
  mode=disaggregated   rows of prefill and decode instances instead, of a limit as many of each engine
  jobs=N               processes (one per core)
  results=DIR          where rows.csv and report.html go (results/serving_DATE_TIME)
  KEY=VALUE            as above
kv=FILE[,FILE]: measured KV-cache sizes
  results=DIR          where the csv and the page go (results/kv_DATE_TIME)
collectives=FILE: runs of ASTRA-sim's analytical network (csv of collectives, json of graphs) against its rules here
operators: held-out errors of the operator predictors
  device=NAME[,NAME]   of `headway hardware` (all)
  family=NAME[,NAME]   gemm, decode, mixed, moe, recurrent, elementwise (all)
  sources=PATH[,PATH]  operator tables, as for headway calibrate (aiconfigurator-core)
  splits=shapes, all, card
                       shapes: measured on the artifact; all: the other splits too, one fit each; card: as the
                       artifact's card tells them, no table is read (shapes)
  predictor=auto, analytic, DIR
                       what is judged; DIR: a folder that headway calibrate wrote (auto)
  seed=N, quick=true   of the fits of splits=all (0, false: all steps)"""

CONFIGURE = (SERVE, ENGINE, CONFIG_DIR, CFG)


@dataclass(frozen=True)
class Command:
    """One command; `module` has `run(arguments) -> Answer`. `keys`: groups whose keys its help lists.

    `names`: `module:MAPPING`, whose keys are what NAME may be.
    """

    name: str
    module: str
    usage: str
    summary: str
    example: str
    options: tuple[Option, ...] = ()
    keys: tuple[str, ...] = ()
    more: str = ""
    names: str = ""

    @property
    def all_options(self) -> tuple[Option, ...]:
        """Its own options and those that every command has."""
        return (*self.options, JSON, HELP)


ALL_KEYS = ("", "model", "hardware", "workload", "engine", "deployment", "experts", "slo")

COMMANDS = {
    command.name: command
    for command in (
        Command(
            "simulate",
            "scripts.simulate",
            "[KEY=VALUE ...] [options]",
            "run a workload on a deployment: benchmark numbers, tables, a page",
            "headway simulate model=llama-3.1-8b hardware=h100-sxm workload=sharegpt workload.rate=10",
            (SERVE, BENCH, ENGINE, MULTIRUN, CONFIG_DIR, CFG),
            ALL_KEYS,
            "A group takes a shipped name or a file: model=PATH/config.json (or a HuggingFace id),\n"
            "hardware=chip.yaml, workload=trace.csv. Exit code 0: done; 2: bad input, or it does not fit.",
        ),
        Command(
            "memory",
            "scripts.memory",
            "[KEY=VALUE ...] [options]",
            "how much KV cache fits, term by term, as the engine logs it",
            "headway memory model=llama-3.3-70b hardware=h100-sxm deployment=tp4",
            CONFIGURE,
            ("model", "hardware", "engine", "deployment"),
        ),
        Command(
            "plan",
            "scripts.plan",
            "[KEY=VALUE ...] [options]",
            "a deployment as a tree: pools, ranks, shards, communicators, memory",
            "headway plan model=llama-3.3-70b hardware=h100-sxm deployment=pd-2p2d",
            CONFIGURE,
            ("model", "hardware", "engine", "deployment"),
        ),
        Command(
            "models",
            "scripts.models",
            "[NAME]",
            "the shipped models, or one of them (or a config.json) in full",
            "headway models qwen3-32b",
        ),
        Command(
            "hardware",
            "scripts.hardware",
            "[NAME]",
            "the shipped devices, or one of them (or a YAML file) in full",
            "headway hardware h100-sxm",
        ),
        Command(
            "collect",
            "scripts.collect",
            "DIR",
            "the results of a multirun in one table",
            "headway collect multirun/2026-01-31_12-00-00",
        ),
        Command(
            "validate",
            "scripts.validate",
            "run=DIR | serving=FILE | kv=FILE | collectives=FILE | operators  [KEY=VALUE ...]",
            "predictions against measurements: runs, serving points, KV, collectives, operators",
            "headway validate run=bench/Llama-3.1-8B",
            (CONFIG_DIR,),
            (),
            VALIDATE,
        ),
        Command(
            "experiment",
            "scripts.experiment",
            "[NAME] [KEY=VALUE ...]",
            "a shipped study in a table and a page: its configurations, simulated",
            "headway experiment naive-kv-budget",
            (CONFIG_DIR,),
            (),
            "NAME: one that is listed without it (docs/experiments.md). results=DIR: where report.html, table.csv and\n"
            "answer.json go (results/NAME_DATE_TIME). Other KEY=VALUE words change every case.",
        ),
        Command(
            "calibrate",
            "scripts.calibrate",
            "device=NAME[,NAME] [family=NAME] [sources=PATH,PATH] [out=DIR] | --from FILE [KEY=VALUE ...]",
            "fit step prices to operator tables of a device, or to a run of your own server",
            "headway calibrate --from result.json model=llama-3.1-8b hardware=h100-sxm",
            (LEARN, SERVE, BENCH, ENGINE, CONFIG_DIR),
            (),
            CALIBRATE,
        ),
        Command(
            "conformance",
            "scripts.conformance",
            "PATH [options]",
            "replay recorded schedules of real engines: who decides otherwise, and where",
            "headway conformance recordings/vllm-0.19.0-async",
            (RUN, FROM),
            (),
            "PATH: a folder with scenarios/ and traces/ in it, or one above such folders at any depth, or a file in\n"
            "one. Engine and version stand in each trace. With --run, PATH is the log of a vLLM server that was\n"
            "started with --enable-logging-iteration-details. Exit code 0: every decision is identical; 1: one\n"
            "differs, or a recording cannot be replayed; 2: a file is not what it should be, or its version unknown.",
        ),
        Command(
            "bench",
            "scripts.bench",
            "[NAME ...] [--repeat N]",
            "how fast the simulator itself is",
            "headway bench startup event-counted",
            (REPEAT,),
            names="scripts.bench:BENCHMARKS",
        ),
    )
}
