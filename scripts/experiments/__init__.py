"""Studies that `conf/experiment` describes: one module each, with `run(experiment, own, config_dirs) -> Answer`."""
