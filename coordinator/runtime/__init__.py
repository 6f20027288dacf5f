"""The coordinator at work: it joins workers, watches their health, and runs calls on them."""
