"""Names and copies of static files for browsers: each name holds a digest of its content, each file has a compressed copy.

Used where HEADRACE_STATIC_COLLECTED is on, which `headrace up` sets once it has collected them. Elsewhere (tests, a web server started by
hand) files are served from where they lie, under their own names.
"""

from __future__ import annotations

from servestatic.storage import CompressedManifestStaticFilesStorage


class DigestNames(CompressedManifestStaticFilesStorage):  # type: ignore[misc]  # the package has no types
    """Imports between the ES modules are rewritten to the names with digests, so all of them may be kept for ever."""

    support_js_module_import_aggregation = True
