"""The `mithril` command: one module per group of sub-commands, each importing what it needs late."""
