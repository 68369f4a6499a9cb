"""`python -m services.kvpool`: one pool node."""

import sys

from services.kvpool.app import KvPoolApp
from services.kvpool.config import KvPoolConfig
from shared.runtime.service import launch

if __name__ == "__main__":
    sys.exit(launch("kvpool", KvPoolConfig, KvPoolApp))
