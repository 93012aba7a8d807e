"""One package a unit, of one shape: rubrics and checks in `exercises`; the guest loads `drivers` only."""
