"""The wide engine: thousands of serving simulations at once, in one compiled loop."""

from sim.scan.jobs import HELP as HELP, LaneJob as LaneJob, Status as Status, lane_job as lane_job
from sim.scan.recover import LaneRun as LaneRun, Unbalanced as Unbalanced
from sim.scan.wide import ScanResult as ScanResult, scan as scan
