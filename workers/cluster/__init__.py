"""Ray: the only folder that imports it.

Ray reads its authentication settings once, when it is imported, so they are settled here. A cluster that this process starts
for itself has a token nobody else knows; a cluster that is named by RAY_ADDRESS has settings of its own.
"""

import os
import secrets

if not os.environ.get("RAY_ADDRESS"):
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
