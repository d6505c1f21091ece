"""Ray: the only folder that imports it.

Ray reads its authentication settings once, when it is imported, so they are settled here. A cluster that this process starts
for itself has a token nobody else knows and listens on loopback alone; a cluster that is named by RAY_ADDRESS has settings of its own.
"""

import os
import secrets

if not os.environ.get("RAY_ADDRESS"):
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Ray gives up the loopback address it is told, and listens on every interface, unless clusters of several hosts are off.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
