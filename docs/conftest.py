"""Pages are tested, the scripts that build them are not pages."""

collect_ignore_glob = ["*.py", "_*"]
