"""`python -m services.scheduler`: one scheduler process."""

import sys

from services.scheduler.app import SchedulerApp
from services.scheduler.config import SchedulerConfig
from shared.runtime.service import launch

if __name__ == "__main__":
    sys.exit(launch("scheduler", SchedulerConfig, SchedulerApp))
