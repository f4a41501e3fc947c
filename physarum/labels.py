"""The names that traces bear, besides `step N` and those of implementations."""

STAGES = ("sense", "motor", "deposit", "diffuse", "decay")  # joined by + where one kernel does several
SORT = "sort"  # the agents, so that near ones lie beside each other in memory
RESET = "reset"  # the counts and the clock of the triton backend
NOW_AND_THEN = (SORT, RESET)  # which not every step has
COMPILE = "compile kernels"  # the first launches of the triton backend
WHOLE_STEP = ", whole step"  # how the name of an implementation ends whose stages are not apart
