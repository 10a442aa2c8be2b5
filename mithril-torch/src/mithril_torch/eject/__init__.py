"""Programs as files that run without Mithril."""
