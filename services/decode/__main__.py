"""`python -m services.decode`: one decode worker."""

import sys

from services.decode.app import DecodeApp
from services.decode.config import DecodeConfig
from shared.runtime.service import launch

if __name__ == "__main__":
    sys.exit(launch("decode", DecodeConfig, DecodeApp))
