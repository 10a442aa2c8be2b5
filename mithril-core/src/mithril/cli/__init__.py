"""The `mithril` command: a module per group of sub-commands, importing what it needs late."""
