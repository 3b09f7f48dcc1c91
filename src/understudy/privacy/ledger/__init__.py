"""The ledger: sources, budgets and charges that outlive a run."""
