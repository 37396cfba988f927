"""An app that cannot be imported."""

raise RuntimeError("this app is broken")
