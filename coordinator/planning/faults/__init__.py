"""What plans owe to faults: redundancy, sticky placement, audits, migration."""
