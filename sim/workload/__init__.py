"""What arrives: arrival processes, length laws and traces, all of them turned into one `Workload`."""

from sim.workload.build import build_workload as build_workload
from sim.workload.conf import WorkloadConf as WorkloadConf
from sim.workload.trace import Workload as Workload, seconds_to_ns as seconds_to_ns
