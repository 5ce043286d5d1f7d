"""Models: exhaustive searches over small worlds, for rules that no run can prove."""
