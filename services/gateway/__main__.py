"""`python -m services.gateway`: one gateway process."""

import sys

from services.gateway.app import GatewayApp
from services.gateway.config import GatewayConfig
from shared.runtime.service import launch

if __name__ == "__main__":
    sys.exit(launch("gateway", GatewayConfig, GatewayApp))
