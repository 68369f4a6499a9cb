"""`python -m services.prefill`: one prefill worker."""

import sys

from services.prefill.app import PrefillApp
from services.prefill.config import PrefillConfig
from shared.runtime.service import launch

if __name__ == "__main__":
    sys.exit(launch("prefill", PrefillConfig, PrefillApp))
